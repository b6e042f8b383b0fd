#include "backend/process_group.h"

#include <Python.h>

#include <cstring>
#include <numeric>
#include <utility>

#include "backend/tensors.h"
#include "common/errors.h"

namespace topoopt {
namespace {

// The reactor thread may need the GIL to free a tensor, so nobody waits for it while holding it.
class WithoutGil {
 public:
  WithoutGil() : state_(PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }

 private:
  PyThreadState* const state_;
};

// Calls `done` when `count` operations are over, with the first error if there was one. All calls
// come on the reactor thread.
Done joint(size_t count, Done done) {
  struct State {
    size_t left;
    std::exception_ptr error;
    Done done;
  };
  auto state = std::make_shared<State>(State{count, nullptr, std::move(done)});
  return [state](std::exception_ptr error) {
    if (error && !state->error) state->error = error;
    if (--state->left == 0) state->done(state->error);
  };
}

// Divides the reduced elements by the size of the group, if the reduction is an average.
Done averaging(const Reduction& reduction, void* data, size_t count, int size, Done done) {
  if (!reduction.average) return done;
  return
      [done = std::move(done), data, count, size, type = reduction.type](std::exception_ptr error) {
        if (!error) divideBy(type, data, count, size);
        done(error);
      };
}

// Where the operation works: `tensor` itself, or a new contiguous tensor that is copied to it
// later.
at::Tensor destination(const at::Tensor& tensor, std::vector<std::function<void()>>& finishers) {
  if (tensor.is_contiguous()) return tensor;
  at::Tensor copy = at::empty(tensor.sizes(), tensor.options());
  finishers.push_back([tensor, copy] { tensor.copy_(copy); });
  return copy;
}

size_t sum(const std::vector<size_t>& values, size_t count) {
  return std::accumulate(values.begin(), values.begin() + static_cast<ptrdiff_t>(count), size_t{0});
}

std::byte* bytesOf(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

void copyBytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

}  // namespace

ProcessGroupTopoopt::ProcessGroupTopoopt(std::shared_ptr<Session> session, GroupConfig config,
                                         std::chrono::milliseconds timeout)
    : Backend(config.rank, static_cast<int>(config.ranks.size())),
      session_(std::move(session)),
      group_(Group::open(session_->endpoint(), std::move(config))),
      timeout_ms_(timeout.count()) {
  init();
  session_->groupOpened();
}

ProcessGroupTopoopt::~ProcessGroupTopoopt() { shutdown(); }

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupTopoopt::getBackendOptions() {
  return c10::make_intrusive<Options>(std::chrono::milliseconds(timeout_ms_.load()));
}

void ProcessGroupTopoopt::setTimeout(std::chrono::milliseconds timeout) {
  timeout_ms_ = timeout.count();
}

c10d::ErrorType ProcessGroupTopoopt::getError() {
  const std::exception_ptr error = group_->error();
  if (!error) return c10d::ErrorType::SUCCESS;
  try {
    std::rethrow_exception(error);
  } catch (const TimeoutError&) {
    return c10d::ErrorType::TIMEOUT;
  } catch (const PeerLostError&) {
    return c10d::ErrorType::REMOTE_ERROR;
  } catch (const std::exception&) {
    return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupTopoopt::abort() {
  group_->abort("the process group was aborted by rank " + std::to_string(getRank()));
}

void ProcessGroupTopoopt::shutdown() {
  if (shut_down_.exchange(true)) return;
  const WithoutGil without_gil;
  group_->shutdown();
  session_->groupClosed(std::chrono::milliseconds(timeout_ms_.load()));
}

ProcessGroupTopoopt::Call ProcessGroupTopoopt::begin(c10d::OpType type, const char* title,
                                                     Tensors inputs, Tensors outputs,
                                                     std::chrono::milliseconds asked,
                                                     size_t operations) {
  Call call;
  call.work =
      c10::make_intrusive<TopooptWork>(session_->pool(), getRank(), type, title, std::move(inputs),
                                       std::move(outputs), group_->sequenceNumber());
  call.finishers = std::make_shared<Finishers>();
  call.limit = asked == c10d::kUnsetTimeout ? std::chrono::milliseconds(timeout_ms_.load()) : asked;
  call.done =
      joint(operations, [work = call.work, finishers = call.finishers](std::exception_ptr error) {
        if (finishers->empty()) return work->complete(error, nullptr);
        work->complete(error, [finishers] {
          for (const auto& finisher : *finishers) finisher();
        });
      });
  return call;
}

void ProcessGroupTopoopt::checkRank(int64_t rank, const char* what) const {
  TORCH_CHECK_VALUE(rank >= 0 && rank < getSize(), "topoopt: ", what, ": rank ", rank,
                    " is not in 0..", getSize() - 1);
}

// ---- reductions --------------------------------------------------------------------------------

void ProcessGroupTopoopt::startAllReduce(const Call& call, const at::Tensor& tensor,
                                         const c10d::ReduceOp& op) {
  checkTensor(tensor, "all_reduce");
  const at::Tensor real = asReal(tensor, op);
  const Reduction reduction = reductionOf(real, op);
  at::Tensor data = real;
  if (!real.is_contiguous()) {
    data = real.contiguous();
    call.work->keep(data);
    call.finishers->push_back([real, data] { real.copy_(data); });
  }
  if (reduction.factor) data.mul_(*reduction.factor);
  const size_t count = data.numel();
  group_->allReduce(bytesOf(data), count, reduction.type, reduction.op, call.limit,
                    averaging(reduction, bytesOf(data), count, getSize(), call.done));
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::allreduce(Tensors& tensors,
                                                            const c10d::AllreduceOptions& options) {
  checkSingle(tensors, "all_reduce");
  const Call call =
      begin(c10d::OpType::ALLREDUCE, "topoopt:all_reduce", tensors, tensors, options.timeout);
  startAllReduce(call, tensors[0], options.reduceOp);
  return call.work;
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK_VALUE(!tensors.empty(), "topoopt: all_reduce_coalesced: no tensors");
  for (const at::Tensor& tensor : tensors) {
    checkTensor(tensor, "all_reduce_coalesced");
    reductionOf(asReal(tensor, options.reduceOp), options.reduceOp);
  }
  const Call call = begin(c10d::OpType::ALLREDUCE_COALESCED, "topoopt:all_reduce_coalesced",
                          tensors, tensors, options.timeout, tensors.size());
  for (const at::Tensor& tensor : tensors) startAllReduce(call, tensor, options.reduceOp);
  return call.work;
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::reduce(Tensors& tensors,
                                                         const c10d::ReduceOptions& options) {
  checkSingle(tensors, "reduce");
  checkRank(options.rootRank, "reduce");
  const at::Tensor real = asReal(tensors[0], options.reduceOp);
  const Reduction reduction = reductionOf(real, options.reduceOp);
  const Call call =
      begin(c10d::OpType::REDUCE, "topoopt:reduce", tensors, tensors, options.timeout);
  at::Tensor input = real.contiguous();
  if (reduction.factor) input = input.mul(*reduction.factor);
  call.work->keep(input);
  at::Tensor output;
  void* memory = nullptr;
  const size_t count = input.numel();
  Done done = call.done;
  if (isRoot(options.rootRank)) {
    output = getSize() == 1 ? input.clone() : at::empty_like(input);
    memory = bytesOf(output);
    call.work->keep(output);
    call.finishers->push_back([real, output] { real.copy_(output); });
    done = averaging(reduction, memory, count, getSize(), call.done);
  }
  group_->reduce(bytesOf(input), memory, count, reduction.type, reduction.op,
                 static_cast<int>(options.rootRank), call.limit, std::move(done));
  return call.work;
}

// `input` is contiguous; `counts` elements of it are for each member.
void ProcessGroupTopoopt::startReduceScatter(const Call& call, const at::Tensor& output,
                                             const at::Tensor& input, std::vector<size_t> counts,
                                             const c10d::ReduceOp& op) {
  checkTensor(output, "reduce_scatter");
  checkSameType(output, input, "reduce_scatter");
  TORCH_CHECK_VALUE(counts[getRank()] == static_cast<size_t>(output.numel()),
                    "topoopt: reduce_scatter: the output has ", output.numel(), " elements, block ",
                    getRank(), " of the input ", counts[getRank()]);
  at::Tensor from = asReal(input, op);
  const at::Tensor to = asReal(output, op);
  if (input.is_complex()) {
    for (size_t& count : counts) count *= 2;
  }
  const Reduction reduction = reductionOf(from, op);
  if (reduction.factor) from = from.mul(*reduction.factor);
  // The result may lie inside the input (FSDP does that), which other members still need.
  const bool direct = to.is_contiguous() && !to.is_alias_of(from);
  at::Tensor data = direct ? to : at::empty(to.sizes(), to.options());
  if (!direct) call.finishers->push_back([to, data] { to.copy_(data); });
  call.work->keep(from);
  call.work->keep(data);
  if (getSize() == 1) copyBytes(bytesOf(data), bytesOf(from), from.nbytes());
  const size_t count = counts[getRank()];
  group_->reduceScatter(bytesOf(from), bytesOf(data), std::move(counts), reduction.type,
                        reduction.op, call.limit,
                        averaging(reduction, bytesOf(data), count, getSize(), call.done));
}

void ProcessGroupTopoopt::startReduceScatter(const Call& call, const at::Tensor& output,
                                             const at::Tensor& input, const c10d::ReduceOp& op) {
  checkTensor(input, "reduce_scatter");
  TORCH_CHECK_VALUE(input.numel() == output.numel() * getSize(),
                    "topoopt: reduce_scatter_tensor: the input has ", input.numel(),
                    " elements, not the output's ", output.numel(), " times ", getSize(), " ranks");
  startReduceScatter(call, output, input.contiguous(),
                     std::vector<size_t>(getSize(), output.numel()), op);
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  checkSingle(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1 && static_cast<int>(inputs[0].size()) == getSize(),
                    "topoopt: reduce_scatter takes one input tensor per rank");
  for (const at::Tensor& input : inputs[0]) {
    checkTensor(input, "reduce_scatter");
    checkSameType(outputs[0], input, "reduce_scatter");
  }
  const Call call = begin(c10d::OpType::REDUCE_SCATTER, "topoopt:reduce_scatter", inputs[0],
                          outputs, options.timeout);
  startReduceScatter(call, outputs[0], flatten(inputs[0]), sizesInElements(inputs[0]),
                     options.reduceOp);
  return call.work;
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  const Call call = begin(c10d::OpType::_REDUCE_SCATTER_BASE, "topoopt:_reduce_scatter_base",
                          {input}, {output}, options.timeout);
  startReduceScatter(call, output, input, options.reduceOp);
  return call.work;
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(!outputs.empty() && outputs.size() == inputs.size(),
                    "topoopt: reduce_scatter_tensor_coalesced: ", outputs.size(), " outputs and ",
                    inputs.size(), " inputs");
  const Call call = begin(c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED,
                          "topoopt:reduce_scatter_tensor_coalesced", inputs, outputs,
                          options.timeout, outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    startReduceScatter(call, outputs[i], inputs[i], options.reduceOp);
  }
  return call.work;
}

// ---- broadcast and gathers ---------------------------------------------------------------------

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::broadcast(Tensors& tensors,
                                                            const c10d::BroadcastOptions& options) {
  checkSingle(tensors, "broadcast");
  checkRank(options.rootRank, "broadcast");
  const Call call =
      begin(c10d::OpType::BROADCAST, "topoopt:broadcast", tensors, tensors, options.timeout);
  const bool root = isRoot(options.rootRank);
  const at::Tensor data = root ? tensors[0].contiguous() : destination(tensors[0], *call.finishers);
  call.work->keep(data);
  group_->broadcast(bytesOf(data), data.nbytes(), static_cast<int>(options.rootRank), call.limit,
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
  group_->allGather(bytesOf(flat), bytes, call.limit, call.done);
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
  group_->allGather(bytesOf(data), std::vector<size_t>(getSize(), own.nbytes()), call.limit,
                    call.done);
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::allgather(std::vector<Tensors>& outputs,
                                                            Tensors& inputs,
                                                            const c10d::AllgatherOptions& options) {
  checkSingle(inputs, "all_gather");
  TORCH_CHECK_VALUE(outputs.size() == 1, "topoopt: all_gather takes one list of outputs");
  const Call call =
      begin(c10d::OpType::ALLGATHER, "topoopt:all_gather", inputs, outputs[0], options.timeout);
  startAllGather(call, outputs[0], inputs[0]);
  return call.work;
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  const Call call = begin(c10d::OpType::_ALLGATHER_BASE, "topoopt:_all_gather_base", {input},
                          {output}, options.timeout);
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
                          all, options.timeout, inputs.size());
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
                          inputs, outputs, options.timeout, outputs.size());
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
  group_->exchange(name, from, std::move(send_bytes), to, std::move(receive_bytes), call.limit,
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
                          root ? outputs[0] : Tensors{}, options.timeout);
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
                          outputs, options.timeout);
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

namespace {

// Bytes of each block of `tensor` along its first dimension; no splits means equal blocks.
std::vector<size_t> splitBytes(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                               int size, const char* which) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const size_t row_bytes = rows == 0 ? 0 : tensor.nbytes() / rows;
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % size == 0, "topoopt: all_to_all_single: the ", which, " has ", rows,
                      " rows, which ", size, " ranks cannot share evenly");
    return std::vector<size_t>(size, rows / size * row_bytes);
  }
  TORCH_CHECK_VALUE(static_cast<int>(splits.size()) == size,
                    "topoopt: all_to_all_single: ", splits.size(), " ", which, " splits for ", size,
                    " ranks");
  std::vector<size_t> bytes;
  int64_t total = 0;
  for (const int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, "topoopt: all_to_all_single: negative ", which, " split ", split);
    bytes.push_back(static_cast<size_t>(split) * row_bytes);
    total += split;
  }
  TORCH_CHECK_VALUE(total == rows, "topoopt: all_to_all_single: the ", which, " splits sum to ",
                    total, ", not to its ", rows, " rows");
  return bytes;
}

}  // namespace

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  checkTensor(output, "all_to_all_single");
  checkTensor(input, "all_to_all_single");
  checkSameType(output, input, "all_to_all_single");
  const std::vector<size_t> send_bytes = splitBytes(input, input_splits, getSize(), "input");
  const std::vector<size_t> receive_bytes = splitBytes(output, output_splits, getSize(), "output");
  const Call call =
      begin(c10d::OpType::ALLTOALL_BASE, "topoopt:all_to_all", {input}, {output}, options.timeout);
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
      begin(c10d::OpType::ALLTOALL, "topoopt:all_to_all", inputs, outputs, options.timeout);
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
  group_->send(bytesOf(data), data.nbytes(), target, tag, call.limit, call.done);
  return call.work;
}

// `source` is -1 for any rank.
ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::receive(Tensors& tensors, int source, int tag) {
  const bool any = source < 0;
  const Call call =
      begin(any ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV,
            any ? "topoopt:recvAnySource" : "topoopt:recv", {}, tensors, c10d::kUnsetTimeout);
  const at::Tensor data = destination(tensors[0], *call.finishers);
  call.work->keep(data);
  if (any) {
    group_->receiveAny(
        bytesOf(data), data.nbytes(), tag, call.limit,
        [work = call.work](int from) { work->setSource(from); }, call.done);
  } else {
    call.work->setSource(source);
    group_->receive(bytesOf(data), data.nbytes(), source, tag, call.limit, call.done);
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
  const Call call = begin(c10d::OpType::BARRIER, "topoopt:barrier", {}, {}, options.timeout);
  group_->barrier(call.limit, call.done);
  return call.work;
}

}  // namespace topoopt
