// The operations of the process group that move data without reducing it.

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <numeric>
#include <utility>

#include "backend/process_group_call.h"
#include "backend/tensors.h"

namespace topoopt {
namespace {

size_t sum(const std::vector<size_t>& values, size_t count) {
  return std::accumulate(values.begin(), values.begin() + static_cast<ptrdiff_t>(count), size_t{0});
}

MessageBuffer messageOf(const at::Tensor& tensor) {
  return {bytesOf(tensor), tensor.nbytes(), elementTypeOf(tensor)};
}

// PyTorch does not report whether its caller waits for a message; most do eventually.
const CallTerms kWaitedFor{c10d::kUnsetTimeout, /*synchronous=*/true};

// The accelerator of a barrier, which PyTorch names by its index or not at all. Without a driver
// for the default kind there is no accelerator, and no stream to wait for.
std::optional<c10::Device> barrierDevice(const c10d::BarrierOptions& options) {
  c10::Device device = options.device.value_or(c10::kCPU);
  const auto accelerator = at::accelerator::getAccelerator();
  if (device.is_cpu() && accelerator && !options.device_ids.empty()) device = *accelerator;
  if (accelerator == device.type() && at::accelerator::deviceCount() == 0) return std::nullopt;
  if (device.is_cpu()) return std::nullopt;
  if (!options.device_ids.empty()) {
    device.set_index(static_cast<c10::DeviceIndex>(options.device_ids[0]));
  } else if (!device.has_index()) {
    device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  }
  return device;
}

// Every rank knows one block only, so all have to be equal.
void checkBlocks(at::TensorList blocks, const at::Tensor& own, const char* name) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    checkSameType(blocks[i], own, name);
    TORCH_CHECK_VALUE(blocks[i].numel() == own.numel(), "topoopt: ", name, ": block ", i, " has ",
                      blocks[i].numel(), " elements, not ", own.numel(), " as the root's own");
  }
}

}  // namespace

// ---- broadcast and gathers ---------------------------------------------------------------------

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::broadcast(Tensors& tensors,
                                                            const c10d::BroadcastOptions& options) {
  checkOne(tensors, "broadcast");
  checkRank(options.rootRank, "broadcast");
  const int root = static_cast<int>(options.rootRank);
  Call call(*this, {c10d::OpType::BROADCAST, "topoopt:broadcast", "broadcast", root}, tensors,
            tensors, termsOf(options));
  const at::Tensor data = isRoot(root) ? call.read(tensors[0]) : call.write(tensors[0]);
  const Call::TensorSide side =
      isRoot(root) ? Call::TensorSide{data, {}} : Call::TensorSide{{}, data};
  call.add(Call::Cutting::kLanding, {side}, [this, root](const HostCall& on, at::TensorList host) {
    group_->broadcast(bytesOf(host[0]), host[0].nbytes(), root, on.terms.of(elementTypeOf(host[0])),
                      on.done);
  });
  return call.submit();
}

// Member i contributes bytes[i], this one its input, or the data already in its place.
void ProcessGroupTopoopt::startAllGather(const HostCall& call, const at::Tensor& output,
                                         const at::Tensor& input, std::vector<size_t> bytes) {
  if (input.defined()) {
    copyBytes(bytesOf(output) + sum(bytes, getRank()), bytesOf(input), input.nbytes());
  }
  group_->allGather(bytesOf(output), std::move(bytes), call.terms.of(elementTypeOf(output)),
                    call.done);
}

void ProcessGroupTopoopt::checkAllGather(const at::Tensor& output, const at::Tensor& input) const {
  checkSameType(output, input, "all_gather");
  TORCH_CHECK_VALUE(output.numel() == input.numel() * getSize(),
                    "topoopt: all_gather_into_tensor: the output has ", output.numel(),
                    " elements, not the input's ", input.numel(), " times ", getSize(), " ranks");
}

void ProcessGroupTopoopt::checkAllGather(const Tensors& outputs, const at::Tensor& input) const {
  TORCH_CHECK_VALUE(static_cast<int>(outputs.size()) == getSize(),
                    "topoopt: all_gather takes one output per rank, got ", outputs.size(), " for ",
                    getSize(), " ranks");
  for (const at::Tensor& output : outputs) checkSameType(output, input, "all_gather");
  TORCH_CHECK_VALUE(outputs[getRank()].numel() == input.numel(), "topoopt: all_gather: output ",
                    getRank(), " has ", outputs[getRank()].numel(), " elements, the input ",
                    input.numel());
}

// The input is staged in its place in the output. Without `sizes` all blocks are equal.
void ProcessGroupTopoopt::stageAllGather(Call& call, at::TensorList outputs,
                                         const at::Tensor& input, std::vector<size_t> sizes) {
  const int64_t blocks = outputs.size() == 1 ? getSize() : 1;
  call.add(sizes.empty() ? Call::Cutting::kLanding : Call::Cutting::kWhole,
           {{{}, outputs, blocks, input}},
           [this, sizes = std::move(sizes)](const HostCall& on, at::TensorList host) {
             const size_t block = host[0].nbytes() / static_cast<size_t>(getSize());
             startAllGather(on, host[0], {},
                            sizes.empty() ? std::vector<size_t>(getSize(), block) : sizes);
           });
}

void ProcessGroupTopoopt::addAllGather(Call& call, const at::Tensor& output,
                                       const at::Tensor& input) {
  const at::Tensor from = call.read(input);
  const at::Tensor to = call.write(output);
  if (call.staged()) return stageAllGather(call, to, from, {});
  call.add(Call::Cutting::kPieces, {{from, {}}, {{}, to, getSize()}},
           [this](const HostCall& on, at::TensorList host) {
             startAllGather(on, host[1], host[0], std::vector<size_t>(getSize(), host[0].nbytes()));
           });
}

// Outputs of different sizes are not split, because ranks could not agree on the pieces.
void ProcessGroupTopoopt::addAllGather(Call& call, const Tensors& outputs,
                                       const at::Tensor& input) {
  const at::Tensor from = call.read(input);
  const Tensors to = call.writeAll(outputs);
  std::vector<size_t> sizes = sizesInBytes(outputs);
  if (call.staged()) {
    if (sameSizes(outputs)) sizes.clear();
    return stageAllGather(call, to, from, std::move(sizes));
  }
  call.add(Call::Cutting::kWhole, {{from, {}}, {{}, to}},
           [this, sizes = std::move(sizes)](const HostCall& on, at::TensorList host) {
             startAllGather(on, host[1], host[0], sizes);
           });
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::allgather(std::vector<Tensors>& outputs,
                                                            Tensors& inputs,
                                                            const c10d::AllgatherOptions& options) {
  checkOne(inputs, "all_gather");
  TORCH_CHECK_VALUE(outputs.size() == 1, "topoopt: all_gather takes one list of outputs");
  Call call(*this, {c10d::OpType::ALLGATHER, "topoopt:all_gather", "all_gather"}, inputs,
            outputs[0], termsOf(options));
  checkAllGather(outputs[0], inputs[0]);
  addAllGather(call, outputs[0], inputs[0]);
  return call.submit();
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  Call call(*this,
            {c10d::OpType::_ALLGATHER_BASE, "topoopt:_all_gather_base", "all_gather_into_tensor"},
            {input}, {output}, termsOf(options));
  checkAllGather(output, input);
  addAllGather(call, output, input);
  return call.submit();
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::allgather_coalesced(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && static_cast<int>(outputs.size()) == getSize(),
                    "topoopt: all_gather_coalesced takes one list of outputs per rank");
  Tensors all;
  for (const Tensors& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(),
                      "topoopt: all_gather_coalesced: each list of outputs has one tensor per "
                      "input, got ",
                      list.size(), " for ", inputs.size());
    all.insert(all.end(), list.begin(), list.end());
  }
  Call call(
      *this,
      {c10d::OpType::ALLGATHER_COALESCED, "topoopt:all_gather_coalesced", "all_gather_coalesced"},
      inputs, all, termsOf(options), inputs.size());
  std::vector<Tensors> of_all_ranks(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (const Tensors& list : outputs) of_all_ranks[i].push_back(list[i]);
    checkAllGather(of_all_ranks[i], inputs[i]);
  }
  for (size_t i = 0; i < inputs.size(); ++i) addAllGather(call, of_all_ranks[i], inputs[i]);
  return call.submit();
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(!outputs.empty() && outputs.size() == inputs.size(),
                    "topoopt: all_gather_into_tensor_coalesced: ", outputs.size(), " outputs and ",
                    inputs.size(), " inputs");
  Call call(*this,
            {c10d::OpType::COALESCED, "topoopt:all_gather_into_tensor_coalesced",
             "all_gather_into_tensor_coalesced"},
            inputs, outputs, termsOf(options), outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) checkAllGather(outputs[i], inputs[i]);
  for (size_t i = 0; i < outputs.size(); ++i) addAllGather(call, outputs[i], inputs[i]);
  return call.submit();
}

// ---- gather, scatter and exchanges: not split --------------------------------------------------

// The root has one block per rank, and others have none, in `to` of a gather and in `from` of a
// scatter. The root's own block is copied here.
void ProcessGroupTopoopt::addRooted(Call& call, CallName name, const Tensors& from,
                                    const Tensors& to, int root) {
  const bool gathers = name == CallName::kGather;
  const at::Tensor& own = gathers ? from[0] : to[0];
  call.add(Call::Cutting::kWhole, {{from, {}}, {{}, to}},
           [this, gathers, root, bytes = own.nbytes(), type = elementTypeOf(own)](
               const HostCall& on, at::TensorList host) {
             std::byte* const input = host[0].defined() ? bytesOf(host[0]) : nullptr;
             std::byte* const output = host[1].defined() ? bytesOf(host[1]) : nullptr;
             const size_t place = static_cast<size_t>(root) * bytes;
             const CallTerms terms = on.terms.of(type);
             if (gathers) {
               if (isRoot(root)) copyBytes(output + place, input, bytes);
               group_->gather(input, output, bytes, root, terms, on.done);
             } else {
               if (isRoot(root)) copyBytes(output, input + place, bytes);
               group_->scatter(input, output, bytes, root, terms, on.done);
             }
           });
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::gather(std::vector<Tensors>& outputs,
                                                         Tensors& inputs,
                                                         const c10d::GatherOptions& options) {
  checkOne(inputs, "gather");
  checkRank(options.rootRank, "gather");
  const int root = static_cast<int>(options.rootRank);
  TORCH_CHECK_VALUE(isRoot(root)
                        ? outputs.size() == 1 && static_cast<int>(outputs[0].size()) == getSize()
                        : outputs.empty(),
                    "topoopt: gather takes one output per rank at the root, and none elsewhere");
  const Tensors to = isRoot(root) ? outputs[0] : Tensors{};
  checkBlocks(to, inputs[0], "gather");
  Call call(*this, {c10d::OpType::GATHER, "topoopt:gather", "gather", root}, inputs, to,
            termsOf(options));
  const Tensors from = call.readAll(inputs);
  addRooted(call, CallName::kGather, from, call.writeAll(to), root);
  return call.submit();
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::scatter(Tensors& outputs,
                                                          std::vector<Tensors>& inputs,
                                                          const c10d::ScatterOptions& options) {
  checkOne(outputs, "scatter");
  checkRank(options.rootRank, "scatter");
  const int root = static_cast<int>(options.rootRank);
  TORCH_CHECK_VALUE(isRoot(root)
                        ? inputs.size() == 1 && static_cast<int>(inputs[0].size()) == getSize()
                        : inputs.empty(),
                    "topoopt: scatter takes one input per rank at the root, and none elsewhere");
  const Tensors from = isRoot(root) ? inputs[0] : Tensors{};
  checkBlocks(from, outputs[0], "scatter");
  Call call(*this, {c10d::OpType::SCATTER, "topoopt:scatter", "scatter", root}, from, outputs,
            termsOf(options));
  const Tensors read = call.readAll(from);
  addRooted(call, CallName::kScatter, read, call.writeAll(outputs), root);
  return call.submit();
}

// The blocks of `from` and `to` have the given sizes, in order; an empty list means no bytes. This
// rank's own block is copied here.
void ProcessGroupTopoopt::addExchange(Call& call, CallName name, const Tensors& from,
                                      std::vector<size_t> send_bytes, const Tensors& to,
                                      std::vector<size_t> receive_bytes) {
  const size_t self = getRank();
  TORCH_CHECK_VALUE(send_bytes[self] == receive_bytes[self], "topoopt: ", nameOf(name),
                    ": this rank sends itself ", send_bytes[self], " bytes and expects ",
                    receive_bytes[self]);
  Tensors sent = from;
  if (sent.size() == 1 && to.size() == 1 && overlap(sent[0], to[0])) {
    sent[0] = sent[0].clone();  // received blocks may arrive before all is sent
    call.work().keep(sent[0]);
  }
  call.add(Call::Cutting::kWhole, {{sent, {}}, {{}, to}},
           [this, name, self, type = elementTypeOf(from.empty() ? to[0] : from[0]),
            send_bytes = std::move(send_bytes),
            receive_bytes = std::move(receive_bytes)](const HostCall& on, at::TensorList host) {
             std::byte* const input = host[0].defined() ? bytesOf(host[0]) : nullptr;
             std::byte* const output = host[1].defined() ? bytesOf(host[1]) : nullptr;
             if (send_bytes[self] > 0) {
               copyBytes(output + sum(receive_bytes, self), input + sum(send_bytes, self),
                         send_bytes[self]);
             }
             group_->exchange(name, input, send_bytes, output, receive_bytes, on.terms.of(type),
                              on.done);
           });
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  checkSameType(output, input, "all_to_all_single");
  Call call(*this, {c10d::OpType::ALLTOALL_BASE, "topoopt:all_to_all", "all_to_all_single"},
            {input}, {output}, termsOf(options));
  addExchange(call, CallName::kAllToAllSingle, {call.read(input)},
              splitBytes(input, input_splits, getSize(), "input"), {call.write(output)},
              splitBytes(output, output_splits, getSize(), "output"));
  return call.submit();
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::alltoall(Tensors& outputs, Tensors& inputs,
                                                           const c10d::AllToAllOptions& options) {
  TORCH_CHECK_VALUE(
      static_cast<int>(outputs.size()) == getSize() && static_cast<int>(inputs.size()) == getSize(),
      "topoopt: all_to_all takes one input and one output per rank");
  for (const Tensors* list : {&inputs, &outputs}) {
    for (const at::Tensor& tensor : *list) checkSameType(tensor, inputs[0], "all_to_all");
  }
  Call call(*this, {c10d::OpType::ALLTOALL, "topoopt:all_to_all", "all_to_all"}, inputs, outputs,
            termsOf(options));
  addExchange(call, CallName::kAllToAll, call.readAll(inputs), sizesInBytes(inputs),
              call.writeAll(outputs), sizesInBytes(outputs));
  return call.submit();
}

// ---- point to point and barrier ----------------------------------------------------------------

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::send(Tensors& tensors, int target, int tag) {
  checkOne(tensors, "send");
  checkOther(target, "send");
  Call call(
      *this,
      {c10d::OpType::SEND, "topoopt:send", "send", target, tag, StagingOperation::Order::kMessage},
      tensors, {}, kWaitedFor);
  call.work().awaitWith(group_);
  const at::Tensor data = call.read(tensors[0]);
  call.add(Call::Cutting::kWhole, {{data, {}}},
           [this, target, tag](const HostCall& on, at::TensorList host) {
             group_->send(messageOf(host[0]), target, tag, on.terms, on.done);
           });
  return call.submit();
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::recv(Tensors& tensors, int source, int tag) {
  checkOne(tensors, "recv");
  checkOther(source, "recv");
  Call call(
      *this,
      {c10d::OpType::RECV, "topoopt:recv", "recv", source, tag, StagingOperation::Order::kMessage},
      tensors, tensors, kWaitedFor);
  call.work().awaitWith(group_);
  call.work().setSource(source);
  const at::Tensor data = call.write(tensors[0]);
  call.add(Call::Cutting::kWhole, {{{}, data}},
           [this, source, tag](const HostCall& on, at::TensorList host) {
             group_->receive(messageOf(host[0]), source, tag, on.terms, on.done);
           });
  return call.submit();
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::recvAnysource(Tensors& tensors, int tag) {
  checkOne(tensors, "recv");
  Call call(*this,
            {c10d::OpType::RECVANYSOURCE, "topoopt:recvAnySource", "recv", -1, tag,
             StagingOperation::Order::kMessage},
            tensors, tensors, kWaitedFor);
  call.work().awaitWith(group_);
  const at::Tensor data = call.write(tensors[0]);
  call.add(Call::Cutting::kWhole, {{{}, data}},
           [this, tag](const HostCall& on, at::TensorList host) {
             group_->receiveAny(
                 messageOf(host[0]), tag, on.terms,
                 [work = on.work](int from) { work->setSource(from); }, on.done);
           });
  return call.submit();
}

// A barrier on a device begins after the work enqueued on the caller's stream.
ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::barrier(const c10d::BarrierOptions& options) {
  Call call(*this, {c10d::OpType::BARRIER, "topoopt:barrier"}, barrierDevice(options), {}, {},
            termsOf(options), 1);
  call.add(Call::Cutting::kWhole, {},
           [this](const HostCall& on, at::TensorList) { group_->barrier(on.terms, on.done); });
  return call.submit(/*awaits_device=*/true);
}

}  // namespace topoopt
