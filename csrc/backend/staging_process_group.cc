#include "backend/staging_process_group.h"

#include <ATen/DeviceAccelerator.h>

#include <string>
#include <utility>

#include "backend/tensors.h"
#include "backend/without_gil.h"

namespace topoopt {

StagingProcessGroup::~StagingProcessGroup() { shutdown(); }

StagingCall StagingProcessGroup::begin(c10::Device device, c10d::OpType type, const char* title,
                                       const Tensors& inputs, const Tensors& outputs, Order order) {
  checkNotInherited();
  return {device, order,
          c10::make_intrusive<StagingWork>(device, session_->pool(), getRank(), type, title, inputs,
                                           outputs, group_->sequenceNumber())};
}

StagingProcessGroup::WorkPtr StagingProcessGroup::submit(StagingCall& call) {
  return call.submitTo(*staging(true));
}

std::shared_ptr<Staging> StagingProcessGroup::staging(bool create) {
  std::lock_guard lock(mutex_);
  if (!staging_ && create) {
    staging_ = std::make_shared<Staging>([this](const std::string& why) { group_->abort(why); },
                                         [this] { return group_->error(); });
  }
  return staging_;
}

void StagingProcessGroup::afterStaged() {
  if (const auto staged = staging(false)) staged->awaitStarted();
}

void StagingProcessGroup::shutdown() {
  ProcessGroupTopoopt::shutdown();
  const auto staged = staging(false);
  if (!staged) return;
  if (session_->inherited()) {
    // There is no thread to stop; the copy of its state goes with the process.
    new std::shared_ptr<Staging>(staged);
    return;
  }
  const WithoutGil without_gil;
  staged->stop();
}

std::optional<c10::Device> StagingProcessGroup::deviceOf(
    const char* what, std::initializer_list<const Tensors*> lists) {
  std::optional<c10::Device> device;
  for (const Tensors* list : lists) {
    for (const at::Tensor& tensor : *list) {
      if (!device) device = tensor.device();
      TORCH_CHECK_VALUE(tensor.device() == *device, "topoopt: ", what,
                        " takes tensors on one device, got ", *device, " and ", tensor.device());
    }
  }
  if (!device || device->is_cpu()) return std::nullopt;
  TORCH_CHECK_VALUE(at::accelerator::isAccelerator(device->type()), "topoopt: ", what,
                    " takes tensors on the CPU or an accelerator, got one on ", *device);
  for (const Tensors* list : lists) {
    for (const at::Tensor& tensor : *list) {
      TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "topoopt: ", what,
                        " takes dense tensors, got layout ", tensor.layout());
    }
  }
  return device;
}

// ---- reductions --------------------------------------------------------------------------------

void StagingProcessGroup::addAllReduce(StagingCall& call, const at::Tensor& tensor,
                                       c10d::AllreduceOptions options) {
  const at::Tensor to = call.update(tensor);
  const at::Tensor from = premultiplied(to, options.reduceOp);
  options.asyncOp = true;
  forEachPiece(to.numel(), to.nbytes(), [&](int64_t first, int64_t count) {
    const at::Tensor part = to.narrow(0, first, count);
    call.add(
        {bufferFor(part, {{from.narrow(0, first, count), 0}}, {{part, 0}})},
        [this, options](Tensors& host) { return ProcessGroupTopoopt::allreduce(host, options); });
  });
}

StagingProcessGroup::WorkPtr StagingProcessGroup::allreduce(Tensors& tensors,
                                                            const c10d::AllreduceOptions& options) {
  const auto device = deviceOf("all_reduce", {&tensors});
  if (!device) {
    afterStaged();
    return ProcessGroupTopoopt::allreduce(tensors, options);
  }
  checkOne(tensors, "all_reduce");
  StagingCall call =
      begin(*device, c10d::OpType::ALLREDUCE, "topoopt:all_reduce", tensors, tensors);
  addAllReduce(call, tensors[0], options);
  return submit(call);
}

StagingProcessGroup::WorkPtr StagingProcessGroup::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const auto device = deviceOf("all_reduce_coalesced", {&tensors});
  if (!device) {
    afterStaged();
    return ProcessGroupTopoopt::allreduce_coalesced(tensors, options);
  }
  StagingCall call = begin(*device, c10d::OpType::ALLREDUCE_COALESCED,
                           "topoopt:all_reduce_coalesced", tensors, tensors);
  for (const at::Tensor& tensor : tensors) addAllReduce(call, tensor, options);
  return submit(call);
}

StagingProcessGroup::WorkPtr StagingProcessGroup::reduce(Tensors& tensors,
                                                         const c10d::ReduceOptions& options) {
  const auto device = deviceOf("reduce", {&tensors});
  if (!device) {
    afterStaged();
    return ProcessGroupTopoopt::reduce(tensors, options);
  }
  checkOne(tensors, "reduce");
  checkRank(options.rootRank, "reduce");
  StagingCall call = begin(*device, c10d::OpType::REDUCE, "topoopt:reduce", tensors, tensors);
  c10d::ReduceOptions inner = options;
  inner.asyncOp = true;
  const bool root = isRoot(options.rootRank);
  const at::Tensor to = root ? call.update(tensors[0]) : call.read(tensors[0]);
  const at::Tensor from = premultiplied(to, inner.reduceOp);
  forEachPiece(to.numel(), to.nbytes(), [&](int64_t first, int64_t count) {
    const at::Tensor part = to.narrow(0, first, count);
    using Parts = StagingCall::Parts;
    call.add(
        {bufferFor(part, {{from.narrow(0, first, count), 0}}, root ? Parts{{part, 0}} : Parts{})},
        [this, inner](Tensors& host) { return ProcessGroupTopoopt::reduce(host, inner); });
  });
  return submit(call);
}

void StagingProcessGroup::addReduceScatter(StagingCall& call, const at::Tensor& output,
                                           const at::Tensor& input,
                                           c10d::ReduceScatterOptions options) {
  checkSameType(output, input, "reduce_scatter");
  TORCH_CHECK_VALUE(input.numel() == output.numel() * getSize(),
                    "topoopt: reduce_scatter_tensor: the input has ", input.numel(),
                    " elements, not the output's ", output.numel(), " times ", getSize(), " ranks");
  const at::Tensor from = premultiplied(call.read(input), options.reduceOp);
  const at::Tensor to = call.write(output);
  options.asyncOp = true;
  forEachPiece(to.numel(), from.nbytes(), [&](int64_t first, int64_t count) {
    call.add(
        {{from.scalar_type(), count * getSize(), partsOfBlocks(from, getSize(), first, count), {}},
         bufferFor(to.narrow(0, first, count), {}, {{to.narrow(0, first, count), 0}})},
        [this, options](Tensors& host) {
          return ProcessGroupTopoopt::_reduce_scatter_base(host[1], host[0], options);
        });
  });
}

StagingProcessGroup::WorkPtr StagingProcessGroup::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  const Tensors both{output, input};
  const auto device = deviceOf("reduce_scatter_tensor", {&both});
  if (!device) {
    afterStaged();
    return ProcessGroupTopoopt::_reduce_scatter_base(output, input, options);
  }
  StagingCall call = begin(*device, c10d::OpType::_REDUCE_SCATTER_BASE,
                           "topoopt:_reduce_scatter_base", {input}, {output});
  addReduceScatter(call, output, input, options);
  return submit(call);
}

StagingProcessGroup::WorkPtr StagingProcessGroup::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  const auto device = deviceOf("reduce_scatter_tensor_coalesced", {&outputs, &inputs});
  if (!device) {
    afterStaged();
    return ProcessGroupTopoopt::reduce_scatter_tensor_coalesced(outputs, inputs, options);
  }
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(),
                    "topoopt: reduce_scatter_tensor_coalesced: ", outputs.size(), " outputs and ",
                    inputs.size(), " inputs");
  StagingCall call = begin(*device, c10d::OpType::COALESCED,
                           "topoopt:reduce_scatter_tensor_coalesced", inputs, outputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    addReduceScatter(call, outputs[i], inputs[i], options);
  }
  return submit(call);
}

StagingProcessGroup::WorkPtr StagingProcessGroup::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  const auto device =
      deviceOf("reduce_scatter", {&outputs, inputs.empty() ? &outputs : &inputs[0]});
  if (!device) {
    afterStaged();
    return ProcessGroupTopoopt::reduce_scatter(outputs, inputs, options);
  }
  checkOne(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1 && static_cast<int>(inputs[0].size()) == getSize(),
                    "topoopt: reduce_scatter takes one input tensor per rank");
  for (const at::Tensor& input : inputs[0]) checkSameType(outputs[0], input, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs[0][getRank()].numel() == outputs[0].numel(),
                    "topoopt: reduce_scatter: the output has ", outputs[0].numel(),
                    " elements, input ", getRank(), " has ", inputs[0][getRank()].numel());
  StagingCall call =
      begin(*device, c10d::OpType::REDUCE_SCATTER, "topoopt:reduce_scatter", inputs[0], outputs);
  c10d::ReduceScatterOptions inner = options;
  inner.asyncOp = true;
  Tensors from = call.readAll(inputs[0]);
  for (at::Tensor& flat : from) {
    inner.reduceOp = options.reduceOp;
    flat = premultiplied(flat, inner.reduceOp);
  }
  const at::Tensor to = call.write(outputs[0]);
  if (!sameNumels(from)) {
    call.add({bufferToRead(from), bufferFor(to, {}, {{to, 0}})},
             [this, inner, sizes = numels(from)](Tensors& host) {
               std::vector<Tensors> ins{host[0].split_with_sizes(sizes)};
               Tensors outs{host[1]};
               return ProcessGroupTopoopt::reduce_scatter(outs, ins, inner);
             });
    return submit(call);
  }
  forEachPiece(to.numel(), to.nbytes() * from.size(), [&](int64_t first, int64_t count) {
    const at::Tensor part = to.narrow(0, first, count);
    call.add({{to.scalar_type(), count * getSize(), partsOf(from, first, count), {}},
              bufferFor(part, {}, {{part, 0}})},
             [this, inner](Tensors& host) {
               return ProcessGroupTopoopt::_reduce_scatter_base(host[1], host[0], inner);
             });
  });
  return submit(call);
}

}  // namespace topoopt
