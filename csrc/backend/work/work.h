// A pending operation as a c10d work.

#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "backend/supervision/supervisor.h"
#include "backend/work/completion_pool.h"
#include "collectives/group/group.h"

namespace topoopt {

class TopooptWork : public c10d::Work {
 public:
  // The work keeps `inputs` and `outputs` alive; `title` names the profiler record.
  TopooptWork(std::shared_ptr<CompletionPool> pool, int rank, c10d::OpType type, const char* title,
              const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
              uint64_t number);

  // Like complete(), and releases the reference. If it is the last one, a pool thread frees the
  // work, because that may wait for the GIL.
  static void completeAndRelease(c10::intrusive_ptr<TopooptWork> work, std::exception_ptr error);

  // Completes the work. On success its finishers run first: here on the thread that made the work
  // (no other thread waits for it), else on a pool thread.
  void complete(std::exception_ptr error);

  // Before the start: sets the entry `id` in the supervisor's recorder.
  void recorded(std::shared_ptr<Supervisor> supervisor, uint64_t id);

  // Before the start: adds a step after success, such as copying results. The last one runs first.
  void finishWith(std::function<void()> finisher) { finishers_.push_back(std::move(finisher)); }

  // Before the start: lets a thread that waits for it make progress.
  void awaitWith(const std::shared_ptr<Group>& group) { group_ = group; }

  // Keeps memory alive until the operation ends.
  void keep(at::Tensor tensor) { kept_.push_back(std::move(tensor)); }
  void setSource(int rank);

  // Returns whether it has ended without an error.
  bool succeeded() const;

  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override {}
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return number_; }

 protected:
  virtual c10::intrusive_ptr<c10::ivalue::Future> makeFuture() const;
  // Completes the future and runs its callbacks.
  virtual void completeFuture(const c10::intrusive_ptr<c10::ivalue::Future>& future) const;

 private:
  bool isOver() const;
  void runFinishers();
  void finishWork(std::exception_ptr error);

  const char* const title_;
  const std::shared_ptr<CompletionPool> pool_;
  const std::vector<at::Tensor> inputs_;  // empty if they are the outputs
  const std::vector<at::Tensor> outputs_;
  std::vector<at::Tensor> kept_;
  std::vector<std::function<void()>> finishers_;
  const uint64_t number_;
  const std::thread::id caller_ = std::this_thread::get_id();
  std::shared_ptr<Supervisor> supervisor_;  // nullptr: not recorded
  uint64_t record_ = 0;
  int source_ = -1;
  std::weak_ptr<Group> group_;                      // of awaitWith()
  bool awaited_ = false;                            // by a thread; guarded by mutex_
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_; made on request
};

}  // namespace topoopt
