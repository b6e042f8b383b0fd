// The part of the process group that moves data without reducing it.

#include <numeric>
#include <utility>

#include "backend/process_group.h"
#include "backend/tensors.h"

namespace topoopt {
namespace {

size_t sum(const std::vector<size_t>& values, size_t count) {
  return std::accumulate(values.begin(), values.begin() + static_cast<ptrdiff_t>(count), size_t{0});
}

}  // namespace

// ---- broadcast and gathers ---------------------------------------------------------------------

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::broadcast(Tensors& tensors,
                                                            const c10d::BroadcastOptions& options) {
  checkSingle(tensors, "broadcast");
  checkRank(options.rootRank, "broadcast");
  const Call call =
      begin(c10d::OpType::BROADCAST, "topoopt:broadcast", tensors, tensors, asked(options));
  const bool root = isRoot(options.rootRank);
  const at::Tensor data = root ? tensors[0].contiguous() : destination(tensors[0], *call.finishers);
  call.work->keep(data);
  group_->broadcast(bytesOf(data), data.nbytes(), static_cast<int>(options.rootRank), call.terms,
                    call.done);
  return call.work;
}

// `outputs` may differ in size; this rank's is as large as `input`.
void ProcessGroupTopoopt::startAllGather(const Call& call, const Tensors& outputs,
                                         const at::Tensor& input) {
  checkTensor(input, "all_gather");
  TORCH_CHECK_VALUE(static_cast<int>(outputs.size()) == getSize(),
                    "topoopt: all_gather takes one output per rank, got ", outputs.size(), " for ",
                    getSize(), " ranks");
  int64_t elements = 0;
  for (const at::Tensor& output : outputs) {
    checkTensor(output, "all_gather");
    checkSameType(output, input, "all_gather");
    elements += output.numel();
  }
  TORCH_CHECK_VALUE(outputs[getRank()].numel() == input.numel(), "topoopt: all_gather: output ",
                    getRank(), " has ", outputs[getRank()].numel(), " elements, the input ",
                    input.numel());
  const at::Tensor flat = flatLike(input, elements);
  const std::vector<size_t> bytes = sizesInBytes(outputs);
  const at::Tensor own = input.contiguous();
  copyBytes(bytesOf(flat) + sum(bytes, getRank()), bytesOf(own), own.nbytes());
  call.work->keep(flat);
  call.finishers->push_back([flat, outputs] { unflatten(flat, outputs); });
  group_->allGather(bytesOf(flat), bytes, call.terms, call.done);
}

void ProcessGroupTopoopt::startAllGather(const Call& call, const at::Tensor& output,
                                         const at::Tensor& input) {
  checkTensor(input, "all_gather");
  checkTensor(output, "all_gather");
  checkSameType(output, input, "all_gather");
  TORCH_CHECK_VALUE(output.numel() == input.numel() * getSize(),
                    "topoopt: all_gather_into_tensor: the output has ", output.numel(),
                    " elements, not the input's ", input.numel(), " times ", getSize(), " ranks");
  const at::Tensor data = destination(output, *call.finishers);
  const at::Tensor own = input.contiguous();
  copyBytes(bytesOf(data) + own.nbytes() * getRank(), bytesOf(own), own.nbytes());
  call.work->keep(data);
  group_->allGather(bytesOf(data), std::vector<size_t>(getSize(), own.nbytes()), call.terms,
                    call.done);
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::allgather(std::vector<Tensors>& outputs,
                                                            Tensors& inputs,
                                                            const c10d::AllgatherOptions& options) {
  checkSingle(inputs, "all_gather");
  TORCH_CHECK_VALUE(outputs.size() == 1, "topoopt: all_gather takes one list of outputs");
  const Call call =
      begin(c10d::OpType::ALLGATHER, "topoopt:all_gather", inputs, outputs[0], asked(options));
  startAllGather(call, outputs[0], inputs[0]);
  return call.work;
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  const Call call = begin(c10d::OpType::_ALLGATHER_BASE, "topoopt:_all_gather_base", {input},
                          {output}, asked(options));
  startAllGather(call, output, input);
  return call.work;
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
  const Call call = begin(c10d::OpType::ALLGATHER_COALESCED, "topoopt:all_gather_coalesced", inputs,
                          all, asked(options), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors of_all_ranks;
    for (const Tensors& list : outputs) of_all_ranks.push_back(list[i]);
    startAllGather(call, of_all_ranks, inputs[i]);
  }
  return call.work;
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(!outputs.empty() && outputs.size() == inputs.size(),
                    "topoopt: all_gather_into_tensor_coalesced: ", outputs.size(), " outputs and ",
                    inputs.size(), " inputs");
  const Call call = begin(c10d::OpType::COALESCED, "topoopt:all_gather_into_tensor_coalesced",
                          inputs, outputs, asked(options), outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) startAllGather(call, outputs[i], inputs[i]);
  return call.work;
}

// ---- exchanges ---------------------------------------------------------------------------------

// `input` and `output` are contiguous, with blocks of the given sizes; an undefined tensor stands
// for no bytes at all. This rank's own block is copied here.
void ProcessGroupTopoopt::startExchange(const Call& call, const char* name, const at::Tensor& input,
                                        std::vector<size_t> send_bytes, const at::Tensor& output,
                                        std::vector<size_t> receive_bytes) {
  const size_t self = getRank();
  TORCH_CHECK_VALUE(send_bytes[self] == receive_bytes[self], "topoopt: ", name,
                    ": this rank sends itself ", send_bytes[self], " bytes and expects ",
                    receive_bytes[self]);
  std::byte* from = input.defined() ? bytesOf(input) : nullptr;
  std::byte* to = output.defined() ? bytesOf(output) : nullptr;
  if (send_bytes[self] > 0) {
    copyBytes(to + sum(receive_bytes, self), from + sum(send_bytes, self), send_bytes[self]);
  }
  call.work->keep(input);
  call.work->keep(output);
  group_->exchange(name, from, std::move(send_bytes), to, std::move(receive_bytes), call.terms,
                   call.done);
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::gather(std::vector<Tensors>& outputs,
                                                         Tensors& inputs,
                                                         const c10d::GatherOptions& options) {
  checkSingle(inputs, "gather");
  checkRank(options.rootRank, "gather");
  const bool root = isRoot(options.rootRank);
  TORCH_CHECK_VALUE(root ? outputs.size() == 1 && static_cast<int>(outputs[0].size()) == getSize()
                         : outputs.empty(),
                    "topoopt: gather takes one output per rank at the root, and none elsewhere");
  const Call call = begin(c10d::OpType::GATHER, "topoopt:gather", inputs,
                          root ? outputs[0] : Tensors{}, asked(options));
  const at::Tensor input = inputs[0].contiguous();
  std::vector<size_t> send_bytes(getSize(), 0);
  std::vector<size_t> receive_bytes(getSize(), 0);
  send_bytes[options.rootRank] = input.nbytes();
  at::Tensor flat;
  if (root) {
    int64_t elements = 0;
    for (const at::Tensor& output : outputs[0]) {
      checkTensor(output, "gather");
      checkSameType(output, input, "gather");
      elements += output.numel();
    }
    flat = flatLike(input, elements);
    receive_bytes = sizesInBytes(outputs[0]);
    call.finishers->push_back([flat, list = outputs[0]] { unflatten(flat, list); });
  }
  startExchange(call, "gather", input, std::move(send_bytes), flat, std::move(receive_bytes));
  return call.work;
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::scatter(Tensors& outputs,
                                                          std::vector<Tensors>& inputs,
                                                          const c10d::ScatterOptions& options) {
  checkSingle(outputs, "scatter");
  checkRank(options.rootRank, "scatter");
  const bool root = isRoot(options.rootRank);
  TORCH_CHECK_VALUE(
      root ? inputs.size() == 1 && static_cast<int>(inputs[0].size()) == getSize() : inputs.empty(),
      "topoopt: scatter takes one input per rank at the root, and none elsewhere");
  const Call call = begin(c10d::OpType::SCATTER, "topoopt:scatter", root ? inputs[0] : Tensors{},
                          outputs, asked(options));
  std::vector<size_t> send_bytes(getSize(), 0);
  std::vector<size_t> receive_bytes(getSize(), 0);
  at::Tensor flat;
  if (root) {
    for (const at::Tensor& input : inputs[0]) {
      checkTensor(input, "scatter");
      checkSameType(outputs[0], input, "scatter");
    }
    flat = flatten(inputs[0]);
    send_bytes = sizesInBytes(inputs[0]);
  }
  const at::Tensor output = destination(outputs[0], *call.finishers);
  receive_bytes[options.rootRank] = output.nbytes();
  startExchange(call, "scatter", flat, std::move(send_bytes), output, std::move(receive_bytes));
  return call.work;
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  checkTensor(output, "all_to_all_single");
  checkTensor(input, "all_to_all_single");
  checkSameType(output, input, "all_to_all_single");
  const std::vector<size_t> send_bytes = splitBytes(input, input_splits, getSize(), "input");
  const std::vector<size_t> receive_bytes = splitBytes(output, output_splits, getSize(), "output");
  const Call call =
      begin(c10d::OpType::ALLTOALL_BASE, "topoopt:all_to_all", {input}, {output}, asked(options));
  startExchange(call, "all_to_all_single", input.contiguous(), send_bytes,
                destination(output, *call.finishers), receive_bytes);
  return call.work;
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::alltoall(Tensors& outputs, Tensors& inputs,
                                                           const c10d::AllToAllOptions& options) {
  TORCH_CHECK_VALUE(
      static_cast<int>(outputs.size()) == getSize() && static_cast<int>(inputs.size()) == getSize(),
      "topoopt: all_to_all takes one input and one output per rank");
  int64_t elements = 0;
  for (int i = 0; i < getSize(); ++i) {
    checkTensor(inputs[i], "all_to_all");
    checkTensor(outputs[i], "all_to_all");
    checkSameType(inputs[i], inputs[0], "all_to_all");
    checkSameType(outputs[i], inputs[0], "all_to_all");
    elements += outputs[i].numel();
  }
  const Call call =
      begin(c10d::OpType::ALLTOALL, "topoopt:all_to_all", inputs, outputs, asked(options));
  const at::Tensor flat = flatLike(inputs[0], elements);
  call.finishers->push_back([flat, outputs] { unflatten(flat, outputs); });
  startExchange(call, "all_to_all", flatten(inputs), sizesInBytes(inputs), flat,
                sizesInBytes(outputs));
  return call.work;
}

// ---- point to point and barrier ----------------------------------------------------------------

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::send(Tensors& tensors, int target, int tag) {
  checkSingle(tensors, "send");
  checkRank(target, "send");
  TORCH_CHECK_VALUE(target != getRank(), "topoopt: send: rank ", target, " is this rank");
  const Call call = begin(c10d::OpType::SEND, "topoopt:send", tensors, {}, c10d::kUnsetTimeout);
  const at::Tensor data = tensors[0].contiguous();
  call.work->keep(data);
  group_->send(bytesOf(data), data.nbytes(), target, tag, call.terms.limit, call.done);
  return call.work;
}

// `source` is -1 for any rank.
ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::receive(Tensors& tensors, int source, int tag) {
  const bool any = source < 0;
  const Call call =
      begin(any ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV,
            any ? "topoopt:recvAnySource" : "topoopt:recv", tensors, tensors, c10d::kUnsetTimeout);
  const at::Tensor data = destination(tensors[0], *call.finishers);
  call.work->keep(data);
  if (any) {
    group_->receiveAny(
        bytesOf(data), data.nbytes(), tag, call.terms.limit,
        [work = call.work](int from) { work->setSource(from); }, call.done);
  } else {
    call.work->setSource(source);
    group_->receive(bytesOf(data), data.nbytes(), source, tag, call.terms.limit, call.done);
  }
  return call.work;
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::recv(Tensors& tensors, int source, int tag) {
  checkSingle(tensors, "recv");
  checkRank(source, "recv");
  TORCH_CHECK_VALUE(source != getRank(), "topoopt: recv: rank ", source, " is this rank");
  return receive(tensors, source, tag);
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::recvAnysource(Tensors& tensors, int tag) {
  checkSingle(tensors, "recv");
  return receive(tensors, -1, tag);
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::barrier(const c10d::BarrierOptions& options) {
  const Call call = begin(c10d::OpType::BARRIER, "topoopt:barrier", {}, {}, asked(options));
  group_->barrier(call.terms, call.done);
  return call.work;
}

}  // namespace topoopt
