// The part of the process group that moves data on devices without reducing it.

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "backend/staging_process_group.h"
#include "backend/tensors.h"

namespace topoopt {

// ---- broadcast and gathers ---------------------------------------------------------------------

StagingProcessGroup::WorkPtr StagingProcessGroup::broadcast(Tensors& tensors,
                                                            const c10d::BroadcastOptions& options) {
  const auto device = deviceOf("broadcast", {&tensors});
  if (!device) {
    afterStaged();
    return ProcessGroupTopoopt::broadcast(tensors, options);
  }
  checkOne(tensors, "broadcast");
  checkRank(options.rootRank, "broadcast");
  StagingCall call = begin(*device, c10d::OpType::BROADCAST, "topoopt:broadcast", tensors, tensors);
  c10d::BroadcastOptions inner = options;
  inner.asyncOp = true;
  const bool root = isRoot(options.rootRank);
  const at::Tensor flat = root ? call.read(tensors[0]) : call.write(tensors[0]);
  forEachPiece(flat.numel(), flat.nbytes(), [&](int64_t first, int64_t count) {
    const at::Tensor part = flat.narrow(0, first, count);
    StagingBuffer buffer = bufferFor(part, {}, {});
    (root ? buffer.reads : buffer.writes).push_back({part, 0});
    call.add({std::move(buffer)},
             [this, inner](Tensors& host) { return ProcessGroupTopoopt::broadcast(host, inner); });
  });
  return submit(call);
}

void StagingProcessGroup::addAllGather(StagingCall& call, const at::Tensor& output,
                                       const at::Tensor& input, c10d::AllgatherOptions options) {
  checkSameType(output, input, "all_gather");
  TORCH_CHECK_VALUE(output.numel() == input.numel() * getSize(),
                    "topoopt: all_gather_into_tensor: the output has ", output.numel(),
                    " elements, not the input's ", input.numel(), " times ", getSize(), " ranks");
  const at::Tensor from = call.read(input);
  const at::Tensor to = call.write(output);
  options.asyncOp = true;
  forEachPiece(from.numel(), to.nbytes(), [&](int64_t first, int64_t count) {
    const at::Tensor part = from.narrow(0, first, count);
    call.add(
        {bufferFor(part, {{part, 0}}, {}),
         {to.scalar_type(), count * getSize(), {}, partsOfBlocks(to, getSize(), first, count)}},
        [this, options](Tensors& host) {
          return ProcessGroupTopoopt::_allgather_base(host[1], host[0], options);
        });
  });
}

// Outputs that differ in size go in one piece, for the ranks could not agree on several.
void StagingProcessGroup::addAllGather(StagingCall& call, const Tensors& outputs,
                                       const at::Tensor& input, c10d::AllgatherOptions options) {
  TORCH_CHECK_VALUE(static_cast<int>(outputs.size()) == getSize(),
                    "topoopt: all_gather takes one output per rank, got ", outputs.size(), " for ",
                    getSize(), " ranks");
  for (const at::Tensor& output : outputs) checkSameType(output, input, "all_gather");
  TORCH_CHECK_VALUE(outputs[getRank()].numel() == input.numel(), "topoopt: all_gather: output ",
                    getRank(), " has ", outputs[getRank()].numel(), " elements, the input ",
                    input.numel());
  const at::Tensor from = call.read(input);
  const Tensors to = call.writeAll(outputs);
  options.asyncOp = true;
  if (!sameNumels(to)) {
    call.add({bufferFor(from, {{from, 0}}, {}), bufferToWrite(to)},
             [this, options, sizes = numels(to)](Tensors& host) {
               Tensors ins{host[0]};
               std::vector<Tensors> outs{host[1].split_with_sizes(sizes)};
               return ProcessGroupTopoopt::allgather(outs, ins, options);
             });
    return;
  }
  forEachPiece(from.numel(), from.nbytes() * to.size(), [&](int64_t first, int64_t count) {
    const at::Tensor part = from.narrow(0, first, count);
    call.add({bufferFor(part, {{part, 0}}, {}),
              {from.scalar_type(), count * getSize(), {}, partsOf(to, first, count)}},
             [this, options](Tensors& host) {
               return ProcessGroupTopoopt::_allgather_base(host[1], host[0], options);
             });
  });
}

StagingProcessGroup::WorkPtr StagingProcessGroup::allgather(std::vector<Tensors>& outputs,
                                                            Tensors& inputs,
                                                            const c10d::AllgatherOptions& options) {
  const auto device = deviceOf("all_gather", {&inputs, outputs.empty() ? &inputs : &outputs[0]});
  if (!device) {
    afterStaged();
    return ProcessGroupTopoopt::allgather(outputs, inputs, options);
  }
  checkOne(inputs, "all_gather");
  TORCH_CHECK_VALUE(outputs.size() == 1, "topoopt: all_gather takes one list of outputs");
  StagingCall call =
      begin(*device, c10d::OpType::ALLGATHER, "topoopt:all_gather", inputs, outputs[0]);
  addAllGather(call, outputs[0], inputs[0], options);
  return submit(call);
}

StagingProcessGroup::WorkPtr StagingProcessGroup::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  const Tensors both{output, input};
  const auto device = deviceOf("all_gather_into_tensor", {&both});
  if (!device) {
    afterStaged();
    return ProcessGroupTopoopt::_allgather_base(output, input, options);
  }
  StagingCall call =
      begin(*device, c10d::OpType::_ALLGATHER_BASE, "topoopt:_all_gather_base", {input}, {output});
  addAllGather(call, output, input, options);
  return submit(call);
}

StagingProcessGroup::WorkPtr StagingProcessGroup::allgather_coalesced(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  Tensors all;
  for (const Tensors& list : outputs) all.insert(all.end(), list.begin(), list.end());
  const auto device = deviceOf("all_gather_coalesced", {&inputs, &all});
  if (!device) {
    afterStaged();
    return ProcessGroupTopoopt::allgather_coalesced(outputs, inputs, options);
  }
  StagingCall call = begin(*device, c10d::OpType::ALLGATHER_COALESCED,
                           "topoopt:all_gather_coalesced", inputs, all);
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors of_all_ranks;
    for (const Tensors& list : outputs) {
      TORCH_CHECK_VALUE(list.size() == inputs.size(),
                        "topoopt: all_gather_coalesced: each list of outputs has one tensor per "
                        "input, got ",
                        list.size(), " for ", inputs.size());
      of_all_ranks.push_back(list[i]);
    }
    addAllGather(call, of_all_ranks, inputs[i], options);
  }
  return submit(call);
}

StagingProcessGroup::WorkPtr StagingProcessGroup::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const auto device = deviceOf("all_gather_into_tensor_coalesced", {&outputs, &inputs});
  if (!device) {
    afterStaged();
    return ProcessGroupTopoopt::allgather_into_tensor_coalesced(outputs, inputs, options);
  }
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(),
                    "topoopt: all_gather_into_tensor_coalesced: ", outputs.size(), " outputs and ",
                    inputs.size(), " inputs");
  StagingCall call = begin(*device, c10d::OpType::COALESCED,
                           "topoopt:all_gather_into_tensor_coalesced", inputs, outputs);
  for (size_t i = 0; i < outputs.size(); ++i) addAllGather(call, outputs[i], inputs[i], options);
  return submit(call);
}

// ---- exchanges: in one piece, for ranks know only the sizes of their own blocks ----------------

StagingProcessGroup::WorkPtr StagingProcessGroup::gather(std::vector<Tensors>& outputs,
                                                         Tensors& inputs,
                                                         const c10d::GatherOptions& options) {
  const auto device = deviceOf("gather", {&inputs, outputs.empty() ? &inputs : &outputs[0]});
  if (!device) {
    afterStaged();
    return ProcessGroupTopoopt::gather(outputs, inputs, options);
  }
  checkOne(inputs, "gather");
  checkRank(options.rootRank, "gather");
  const bool root = isRoot(options.rootRank);
  TORCH_CHECK_VALUE(root ? outputs.size() == 1 && static_cast<int>(outputs[0].size()) == getSize()
                         : outputs.empty(),
                    "topoopt: gather takes one output per rank at the root, and none elsewhere");
  StagingCall call =
      begin(*device, c10d::OpType::GATHER, "topoopt:gather", inputs, root ? outputs[0] : Tensors{});
  c10d::GatherOptions inner = options;
  inner.asyncOp = true;
  const at::Tensor from = call.read(inputs[0]);
  std::vector<StagingBuffer> buffers{bufferFor(from, {{from, 0}}, {})};
  std::vector<int64_t> sizes;
  if (root) {
    for (const at::Tensor& output : outputs[0]) checkSameType(output, from, "gather");
    buffers.push_back(bufferToWrite(call.writeAll(outputs[0])));
    sizes = numels(outputs[0]);
  }
  call.add(std::move(buffers), [this, inner, root, sizes](Tensors& host) {
    std::vector<Tensors> outs;
    if (root) outs.push_back(host[1].split_with_sizes(sizes));
    Tensors ins{host[0]};
    return ProcessGroupTopoopt::gather(outs, ins, inner);
  });
  return submit(call);
}

StagingProcessGroup::WorkPtr StagingProcessGroup::scatter(Tensors& outputs,
                                                          std::vector<Tensors>& inputs,
                                                          const c10d::ScatterOptions& options) {
  const auto device = deviceOf("scatter", {&outputs, inputs.empty() ? &outputs : &inputs[0]});
  if (!device) {
    afterStaged();
    return ProcessGroupTopoopt::scatter(outputs, inputs, options);
  }
  checkOne(outputs, "scatter");
  checkRank(options.rootRank, "scatter");
  const bool root = isRoot(options.rootRank);
  TORCH_CHECK_VALUE(
      root ? inputs.size() == 1 && static_cast<int>(inputs[0].size()) == getSize() : inputs.empty(),
      "topoopt: scatter takes one input per rank at the root, and none elsewhere");
  StagingCall call = begin(*device, c10d::OpType::SCATTER, "topoopt:scatter",
                           root ? inputs[0] : Tensors{}, outputs);
  c10d::ScatterOptions inner = options;
  inner.asyncOp = true;
  const at::Tensor to = call.write(outputs[0]);
  std::vector<StagingBuffer> buffers{bufferFor(to, {}, {{to, 0}})};
  std::vector<int64_t> sizes;
  if (root) {
    for (const at::Tensor& input : inputs[0]) checkSameType(to, input, "scatter");
    buffers.push_back(bufferToRead(call.readAll(inputs[0])));
    sizes = numels(inputs[0]);
  }
  call.add(std::move(buffers), [this, inner, root, sizes](Tensors& host) {
    std::vector<Tensors> ins;
    if (root) ins.push_back(host[1].split_with_sizes(sizes));
    Tensors outs{host[0]};
    return ProcessGroupTopoopt::scatter(outs, ins, inner);
  });
  return submit(call);
}

StagingProcessGroup::WorkPtr StagingProcessGroup::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  const Tensors both{output, input};
  const auto device = deviceOf("all_to_all_single", {&both});
  if (!device) {
    afterStaged();
    return ProcessGroupTopoopt::alltoall_base(output, input, output_splits, input_splits, options);
  }
  checkSameType(output, input, "all_to_all_single");
  StagingCall call =
      begin(*device, c10d::OpType::ALLTOALL_BASE, "topoopt:all_to_all", {input}, {output});
  addExchange(call, "all_to_all_single", {call.read(input)},
              splitBytes(input, input_splits, getSize(), "input"), {call.write(output)},
              splitBytes(output, output_splits, getSize(), "output"), options);
  return submit(call);
}

StagingProcessGroup::WorkPtr StagingProcessGroup::alltoall(Tensors& outputs, Tensors& inputs,
                                                           const c10d::AllToAllOptions& options) {
  const auto device = deviceOf("all_to_all", {&outputs, &inputs});
  if (!device) {
    afterStaged();
    return ProcessGroupTopoopt::alltoall(outputs, inputs, options);
  }
  TORCH_CHECK_VALUE(
      static_cast<int>(outputs.size()) == getSize() && static_cast<int>(inputs.size()) == getSize(),
      "topoopt: all_to_all takes one input and one output per rank");
  for (const Tensors* list : {&inputs, &outputs}) {
    for (const at::Tensor& tensor : *list) checkSameType(tensor, inputs[0], "all_to_all");
  }
  StagingCall call = begin(*device, c10d::OpType::ALLTOALL, "topoopt:all_to_all", inputs, outputs);
  addExchange(call, "all_to_all", call.readAll(inputs), sizesInBytes(inputs),
              call.writeAll(outputs), sizesInBytes(outputs), options);
  return submit(call);
}

// The blocks of `from` and `to`, one after the other, have the given sizes.
void StagingProcessGroup::addExchange(StagingCall& call, const char* name, const Tensors& from,
                                      const std::vector<size_t>& send_bytes, const Tensors& to,
                                      const std::vector<size_t>& receive_bytes,
                                      c10d::AllToAllOptions options) {
  const size_t self = getRank();
  TORCH_CHECK_VALUE(send_bytes[self] == receive_bytes[self], "topoopt: ", name,
                    ": this rank sends itself ", send_bytes[self], " bytes and expects ",
                    receive_bytes[self]);
  options.asyncOp = true;
  const auto elements = [size = from[0].element_size()](const std::vector<size_t>& bytes) {
    std::vector<int64_t> counts;
    for (const size_t block : bytes) counts.push_back(static_cast<int64_t>(block / size));
    return counts;
  };
  call.add({bufferToRead(from), bufferToWrite(to)},
           [this, options, send = elements(send_bytes),
            receive = elements(receive_bytes)](Tensors& host) mutable {
             return ProcessGroupTopoopt::alltoall_base(host[1], host[0], receive, send, options);
           });
}

// ---- point to point and barrier ----------------------------------------------------------------

StagingProcessGroup::WorkPtr StagingProcessGroup::send(Tensors& tensors, int target, int tag) {
  const auto device = deviceOf("send", {&tensors});
  if (!device) return ProcessGroupTopoopt::send(tensors, target, tag);
  checkOne(tensors, "send");
  checkRank(target, "send");
  TORCH_CHECK_VALUE(target != getRank(), "topoopt: send: rank ", target, " is this rank");
  StagingCall call =
      begin(*device, c10d::OpType::SEND, "topoopt:send", tensors, {}, Order::kMessage);
  const at::Tensor flat = call.read(tensors[0]);
  call.add({bufferFor(flat, {{flat, 0}}, {})}, [this, target, tag](Tensors& host) {
    return ProcessGroupTopoopt::send(host, target, tag);
  });
  return submit(call);
}

StagingProcessGroup::WorkPtr StagingProcessGroup::recv(Tensors& tensors, int source, int tag) {
  const auto device = deviceOf("recv", {&tensors});
  if (!device) return ProcessGroupTopoopt::recv(tensors, source, tag);
  checkOne(tensors, "recv");
  checkRank(source, "recv");
  TORCH_CHECK_VALUE(source != getRank(), "topoopt: recv: rank ", source, " is this rank");
  StagingCall call =
      begin(*device, c10d::OpType::RECV, "topoopt:recv", tensors, tensors, Order::kMessage);
  call.work()->setSource(source);
  const at::Tensor flat = call.write(tensors[0]);
  call.add({bufferFor(flat, {}, {{flat, 0}})}, [this, source, tag](Tensors& host) {
    return ProcessGroupTopoopt::recv(host, source, tag);
  });
  return submit(call);
}

StagingProcessGroup::WorkPtr StagingProcessGroup::recvAnysource(Tensors& tensors, int tag) {
  const auto device = deviceOf("recv", {&tensors});
  if (!device) return ProcessGroupTopoopt::recvAnysource(tensors, tag);
  checkOne(tensors, "recv");
  StagingCall call = begin(*device, c10d::OpType::RECVANYSOURCE, "topoopt:recvAnySource", tensors,
                           tensors, Order::kMessage);
  const at::Tensor flat = call.write(tensors[0]);
  call.add({bufferFor(flat, {}, {{flat, 0}})},
           [this, tag](Tensors& host) { return ProcessGroupTopoopt::recvAnysource(host, tag); });
  return submit(call);
}

// A barrier on a device begins when the caller's stream has come this far. PyTorch names the device
// by its number, or not at all; and the kind of device that it was built for has none where there
// is no driver, so that there is no stream to wait for either.
StagingProcessGroup::WorkPtr StagingProcessGroup::barrier(const c10d::BarrierOptions& options) {
  c10::Device device = options.device.value_or(c10::kCPU);
  const auto accelerator = at::accelerator::getAccelerator();
  if (device.is_cpu() && accelerator && !options.device_ids.empty()) device = *accelerator;
  if (accelerator == device.type() && at::accelerator::deviceCount() == 0) device = c10::kCPU;
  if (device.is_cpu()) {
    afterStaged();
    return ProcessGroupTopoopt::barrier(options);
  }
  if (!options.device_ids.empty()) {
    device.set_index(static_cast<c10::DeviceIndex>(options.device_ids[0]));
  } else if (!device.has_index()) {
    device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  }
  StagingCall call = begin(device, c10d::OpType::BARRIER, "topoopt:barrier", {}, {});
  c10d::BarrierOptions inner = options;
  inner.asyncOp = true;
  call.add({}, [this, inner](Tensors&) { return ProcessGroupTopoopt::barrier(inner); });
  return call.submitTo(*staging(true), /*awaits_device=*/true);
}

}  // namespace topoopt
