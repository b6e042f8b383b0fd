#include "backend/work/work.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace topoopt {
namespace {

// The title of Work's profiler record; nullptr without observers, because creating one costs time.
const char* shownAs(const char* title) { return at::hasCallbacks() ? title : nullptr; }

std::string whereDumpsAre(const Supervisor* supervisor) {
  const std::string folder = supervisor == nullptr ? "" : supervisor->whereDumpsAre();
  return folder.empty() ? ""
                        : " (the last operations of each rank: topoopt inspect " + folder + ")";
}

// Python gets torch.distributed.DistBackendError, a RuntimeError. It names the operation, unless
// the error already does.
std::exception_ptr asTorchError(const std::exception_ptr& error, const std::string& operation,
                                const Supervisor* supervisor) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error&) {
    return error;
  } catch (const std::exception& exception) {
    const std::string why = exception.what();
    const std::string where = why.starts_with(operation) ? "" : operation + ": ";
    return std::make_exception_ptr(c10::DistBackendError(
        c10::SourceLocation{__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
        "topoopt: " + where + why + whereDumpsAre(supervisor)));
  }
}

// Profiler titles are "topoopt:all_reduce", "topoopt:_all_gather_base".
std::string operationOf(std::string_view title) {
  title.remove_prefix(title.find(':') + 1);
  title.remove_prefix(std::min(title.find_first_not_of('_'), title.size()));
  return std::string(title);
}

}  // namespace

TopooptWork::TopooptWork(std::shared_ptr<CompletionPool> pool, int rank, c10d::OpType type,
                         const char* title, const std::vector<at::Tensor>& inputs,
                         const std::vector<at::Tensor>& outputs, uint64_t number)
    : Work(rank, type, shownAs(title), at::hasCallbacks() ? std::optional(inputs) : std::nullopt),
      title_(title),
      pool_(std::move(pool)),
      inputs_(&inputs == &outputs ? std::vector<at::Tensor>() : inputs),
      outputs_(outputs),
      number_(number) {}

void TopooptWork::complete(std::exception_ptr error) {
  if (error) return finishWork(asTorchError(error, operationOf(title_), supervisor_.get()));
  if (finishers_.empty()) return finishWork(nullptr);
  if (std::this_thread::get_id() == caller_) return runFinishers();
  pool_->run(
      [self = c10::intrusive_ptr<TopooptWork>::reclaim_copy(this)] { self->runFinishers(); });
}

void TopooptWork::runFinishers() {
  std::exception_ptr error;
  try {
    // Like a write by the network: no autograd, and in any mode of the tensor's creation.
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    for (; !finishers_.empty(); finishers_.pop_back()) finishers_.back()();
  } catch (const std::exception&) {
    error = asTorchError(std::current_exception(), operationOf(title_), supervisor_.get());
  }
  finishWork(std::move(error));
}

void TopooptWork::recorded(std::shared_ptr<Supervisor> supervisor, uint64_t id) {
  supervisor_ = std::move(supervisor);
  record_ = id;
}

void TopooptWork::setSource(int rank) {
  source_ = rank;
  if (supervisor_) supervisor_->recorder()->setSender(record_, rank);
}

void TopooptWork::completeAndRelease(c10::intrusive_ptr<TopooptWork> work,
                                     std::exception_ptr error) {
  work->complete(std::move(error));
  // Another reference may be released during this function; that is rare, and only delays this
  // thread.
  if (std::this_thread::get_id() == work->caller_ || work.use_count() > 1) return;
  const std::shared_ptr<CompletionPool> pool = work->pool_;
  pool->run([work = std::move(work)] {});
}

void TopooptWork::finishWork(std::exception_ptr error) {
  if (supervisor_) supervisor_->recorder()->end(record_, error != nullptr);
  // Read the future before completion is visible, so that exactly one of this function and
  // getFuture() completes it.
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool awaited = false;
  {
    std::lock_guard lock(mutex_);
    awaited = awaited_;
    exception_ = error;
    completed_ = true;
    future = future_;
    if (recordFunctionEndCallback_) {
      recordFunctionEndCallback_();
      recordFunctionEndCallback_ = nullptr;
    }
  }
  cv_.notify_all();
  if (awaited) {
    if (const auto group = group_.lock()) group->wakeWaiting();
  }
  if (!future) return;
  pool_->run([self = c10::intrusive_ptr<TopooptWork>::reclaim_copy(this), future] {
    self->completeFuture(future);
  });
}

c10::intrusive_ptr<c10::ivalue::Future> TopooptWork::makeFuture() const {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

void TopooptWork::completeFuture(const c10::intrusive_ptr<c10::ivalue::Future>& future) const {
  if (exception_) {
    future->setError(exception_);
  } else {
    future->markCompleted(c10::IValue(outputs_));
  }
}

bool TopooptWork::isOver() const {
  std::lock_guard lock(mutex_);
  return completed_;
}

bool TopooptWork::succeeded() const {
  std::lock_guard lock(mutex_);
  return completed_ && !exception_;
}

bool TopooptWork::wait(std::chrono::milliseconds timeout) {
  using Clock = Reactor::Clock;
  const std::optional<Clock::time_point> until =
      timeout == kNoTimeout ? std::nullopt : std::optional(Clock::now() + timeout);
  std::unique_lock lock(mutex_);
  const auto completed = [this] { return completed_; };
  if (const auto group = completed_ ? nullptr : group_.lock()) {
    awaited_ = true;
    lock.unlock();
    group->await([this] { return isOver(); }, until);
    lock.lock();
  }
  if (!until) {
    cv_.wait(lock, completed);
  } else if (!cv_.wait_until(lock, *until, completed)) {
    C10_THROW_ERROR(DistBackendError, "topoopt: wait: Timed out after " +
                                          std::to_string(timeout.count()) +
                                          " ms; the operation goes on");
  }
  if (exception_) {
    lock.unlock();
    if (supervisor_) supervisor_->awaitDump();  // first, because this error may end the process
    std::rethrow_exception(exception_);
  }
  return true;
}

int TopooptWork::sourceRank() const {
  std::lock_guard lock(mutex_);
  TORCH_CHECK(source_ >= 0, "sourceRank: only a receive knows where its message came from");
  return source_;
}

std::vector<at::Tensor> TopooptWork::result() {
  std::lock_guard lock(mutex_);
  TORCH_CHECK(completed_, "topoopt: result: the operation is not over; call wait() first");
  if (exception_) std::rethrow_exception(exception_);
  return outputs_;
}

c10::intrusive_ptr<c10::ivalue::Future> TopooptWork::getFuture() {
  std::unique_lock lock(mutex_);
  if (!future_) {
    future_ = makeFuture();
    if (completed_) {
      const auto future = future_;
      lock.unlock();
      completeFuture(future);
      return future;
    }
  }
  return future_;
}

}  // namespace topoopt
