#include "backend/process_group.h"

#include <Python.h>

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
  const Call call = begin(c10d::OpType::COALESCED, "topoopt:reduce_scatter_tensor_coalesced",
                          inputs, outputs, options.timeout, outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    startReduceScatter(call, outputs[i], inputs[i], options.reduceOp);
  }
  return call.work;
}

}  // namespace topoopt
