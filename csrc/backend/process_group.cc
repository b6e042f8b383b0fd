#include "backend/process_group.h"

#include <mutex>
#include <utility>

#include "backend/tensors.h"
#include "backend/without_gil.h"
#include "common/errors.h"

namespace topoopt {
namespace {

// Calls `done` when `count` operations are over, with the first error if there was one.
Done joint(size_t count, Done done) {
  if (count == 1) return done;
  struct State {
    std::mutex mutex;
    size_t left;
    std::exception_ptr error;
    Done done;
  };
  auto state = std::make_shared<State>();
  state->left = count;
  state->done = std::move(done);
  return [state](std::exception_ptr error) {
    {
      std::lock_guard lock(state->mutex);
      if (error && !state->error) state->error = error;
      if (--state->left > 0) return;
    }
    state->done(state->error);
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
                                         c10::intrusive_ptr<Options> options,
                                         c10::intrusive_ptr<c10d::Store> store, Splitter splitter)
    : Backend(config.rank, static_cast<int>(config.ranks.size())),
      session_(std::move(session)),
      group_(Group::open(session_->endpoint(), std::move(config))),
      timeout_ms_(options->timeout.count()),
      options_(std::move(options)),
      splitter_(std::move(splitter)),
      store_(std::move(store)) {
  init();
  session_->groupOpened();
}

ProcessGroupTopoopt::~ProcessGroupTopoopt() { shutdown(); }

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

void ProcessGroupTopoopt::endWith(c10::intrusive_ptr<ProcessGroupTopoopt> companion) {
  companion_ = std::move(companion);
}

void ProcessGroupTopoopt::abort() {
  checkNotInherited();
  const WithoutGil without_gil;
  if (companion_) companion_->abort();
  const std::string why = "the process group was aborted by rank " + std::to_string(getRank());
  group_->abort(why);
  if (!left_session_.exchange(true)) session_->groupAborted(why);
}

void ProcessGroupTopoopt::shutdown() {
  if (session_->inherited() || shut_down_.exchange(true)) return;
  const WithoutGil without_gil;
  if (companion_) companion_->shutdown();
  {
    std::lock_guard lock(store_mutex_);
    store_.reset();
  }
  group_->shutdown();
  if (!left_session_.exchange(true)) {
    session_->groupClosed(std::chrono::milliseconds(timeout_ms_.load()));
  }
}

ProcessGroupTopoopt::Call ProcessGroupTopoopt::begin(c10d::OpType type, const char* title,
                                                     Tensors inputs, Tensors outputs,
                                                     CallTerms asked, size_t operations) {
  checkNotInherited();
  Call call;
  call.work =
      c10::make_intrusive<TopooptWork>(session_->pool(), getRank(), type, title, std::move(inputs),
                                       std::move(outputs), group_->sequenceNumber());
  call.finishers = std::make_shared<Finishers>();
  call.terms = asked;
  if (asked.limit == c10d::kUnsetTimeout) {
    call.terms.limit = std::chrono::milliseconds(timeout_ms_.load());
  }
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

void ProcessGroupTopoopt::checkNotInherited() const {
  TORCH_CHECK(!session_->inherited(),
              "topoopt: this process was forked from a rank and cannot use its process groups; "
              "communicate in the rank itself, or start the process with the method 'spawn'");
}

// ---- reductions --------------------------------------------------------------------------------

void ProcessGroupTopoopt::startAllReduce(const Call& call, const at::Tensor& tensor,
                                         const c10d::ReduceOp& op) {
  // Memory is written whether or not the tensor is a leaf that requires a gradient.
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
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
  group_->allReduce(bytesOf(data), count, reduction.type, reduction.op, call.terms,
                    averaging(reduction, bytesOf(data), count, getSize(), call.done));
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::allreduce(Tensors& tensors,
                                                            const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].layout() == at::kSparse) {
    return sparseAllReduce(tensors, options);
  }
  checkSingle(tensors, "all_reduce");
  const Call call =
      begin(c10d::OpType::ALLREDUCE, "topoopt:all_reduce", tensors, tensors, asked(options));
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
                          tensors, tensors, asked(options), tensors.size());
  for (const at::Tensor& tensor : tensors) startAllReduce(call, tensor, options.reduceOp);
  return call.work;
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::reduce(Tensors& tensors,
                                                         const c10d::ReduceOptions& options) {
  checkSingle(tensors, "reduce");
  checkRank(options.rootRank, "reduce");
  const at::Tensor real = asReal(tensors[0], options.reduceOp);
  const Reduction reduction = reductionOf(real, options.reduceOp);
  const Call call = begin(c10d::OpType::REDUCE, "topoopt:reduce", tensors, tensors, asked(options));
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
                 static_cast<int>(options.rootRank), call.terms, std::move(done));
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
                        reduction.op, call.terms,
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
                          outputs, asked(options));
  startReduceScatter(call, outputs[0], flatten(inputs[0]), sizesInElements(inputs[0]),
                     options.reduceOp);
  return call.work;
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  const Call call = begin(c10d::OpType::_REDUCE_SCATTER_BASE, "topoopt:_reduce_scatter_base",
                          {input}, {output}, asked(options));
  startReduceScatter(call, output, input, options.reduceOp);
  return call.work;
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(!outputs.empty() && outputs.size() == inputs.size(),
                    "topoopt: reduce_scatter_tensor_coalesced: ", outputs.size(), " outputs and ",
                    inputs.size(), " inputs");
  const Call call = begin(c10d::OpType::COALESCED, "topoopt:reduce_scatter_tensor_coalesced",
                          inputs, outputs, asked(options), outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    startReduceScatter(call, outputs[i], inputs[i], options.reduceOp);
  }
  return call.work;
}

}  // namespace topoopt
