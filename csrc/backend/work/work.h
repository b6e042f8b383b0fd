// One operation in flight, as PyTorch sees it.

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
  // `inputs` and `outputs` stay alive as long as the work; `title` names the profiler record.
  TopooptWork(std::shared_ptr<CompletionPool> pool, int rank, c10d::OpType type, const char* title,
              const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
              uint64_t number);

  // As below, on the reactor thread for instance, and gives the reference away: what the caller has
  // let go is freed on a thread of the pool, for that may have to wait for the GIL.
  static void completeAndRelease(c10::intrusive_ptr<TopooptWork> work, std::exception_ptr error);

  // Completes the work. If all went well, its finishers run first: here if this is the thread that
  // made the work, for then no other thread waits for it; else on a thread of the pool.
  void complete(std::exception_ptr error);

  // Before the operation is started: it is entry `id` of the supervisor's recorder.
  void recorded(std::shared_ptr<Supervisor> supervisor, uint64_t id);

  // Before the operation is started: copies results to where the caller wants them, say. What was
  // added last runs first.
  void finishWith(std::function<void()> finisher) { finishers_.push_back(std::move(finisher)); }

  // Before the operation is started: a thread that waits for it may do its work.
  void awaitWith(const std::shared_ptr<Group>& group) { group_ = group; }

  // Memory that must live until the operation is over.
  void keep(at::Tensor tensor) { kept_.push_back(std::move(tensor)); }
  void setSource(int rank);

  // It is over, and nothing has failed.
  bool succeeded() const;

  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override {}
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return number_; }

 protected:
  virtual c10::intrusive_ptr<c10::ivalue::Future> makeFuture() const;
  // The work is complete. Runs the callbacks.
  virtual void completeFuture(const c10::intrusive_ptr<c10::ivalue::Future>& future) const;

 private:
  bool isOver() const;
  void runFinishers();
  void finishWork(std::exception_ptr error);

  const char* const title_;
  const std::shared_ptr<CompletionPool> pool_;
  const std::vector<at::Tensor> inputs_;  // none if they are the outputs
  const std::vector<at::Tensor> outputs_;
  std::vector<at::Tensor> kept_;
  std::vector<std::function<void()>> finishers_;
  const uint64_t number_;
  const std::thread::id caller_ = std::this_thread::get_id();
  std::shared_ptr<Supervisor> supervisor_;  // nullptr: it is not recorded
  uint64_t record_ = 0;
  int source_ = -1;
  std::weak_ptr<Group> group_;                      // of awaitWith()
  bool awaited_ = false;                            // in it, by some thread; guarded by mutex_
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_; made when asked for
};

}  // namespace topoopt
