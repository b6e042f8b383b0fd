// The work of an operation on device tensors.
//
// It completes for the host when the copies back to the device have been enqueued. wait() blocks
// the host until then and from there on only the caller's current stream; or, with gates, the
// stream alone from the start. Then an operation that fails lets the streams go on, whatever is in
// its tensors, and the next call to the group raises the error.

#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "backend/stream_gates.h"
#include "backend/work.h"

namespace topoopt {

class StagingWork final : public TopooptWork {
 public:
  StagingWork(c10::Device device, std::shared_ptr<CompletionPool> pool, int rank, c10d::OpType type,
              const char* title, const std::vector<at::Tensor>& inputs,
              const std::vector<at::Tensor>& outputs, uint64_t number,
              std::shared_ptr<StreamGates> gates);

  // Before complete(): the results are there when what `stream` has been given so far is done.
  void copyingBack(const c10::Stream& stream);
  // Before complete(), too: there will be no results.
  void failing();

  // With a limit it blocks the host; so do a barrier and a receive, whose sender the host asks for.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  // Also on the device.
  bool isCompleted() override;
  void blockCurrentStream() override { wait(kNoTimeout); }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> makeFuture() const override;
  void completeFuture(const c10::intrusive_ptr<c10::ivalue::Future>& future) const override;

  bool blockStream();  // false: it is too late for that, for the operation is over

  const c10::Device device_;
  const std::shared_ptr<StreamGates> gates_;  // or nullptr
  std::mutex gate_mutex_;
  bool settled_ = false;                   // guarded by gate_mutex_
  std::optional<StreamGates::Gate> gate_;  // of the streams that wait; guarded by gate_mutex_
  // Set before the work completes, constant afterwards.
  std::optional<c10::Stream> stream_;
  std::optional<c10::Event> copied_back_;
};

}  // namespace topoopt
