// The work of an operation on device tensors.
//
// It completes on the host when the copies back to the device are enqueued. wait() blocks the host
// until then, and afterwards only the caller's current stream.

#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <vector>

#include "backend/work/work.h"

namespace topoopt {

class StagingWork final : public TopooptWork {
 public:
  StagingWork(c10::Device device, std::shared_ptr<CompletionPool> pool, int rank, c10d::OpType type,
              const char* title, const std::vector<at::Tensor>& inputs,
              const std::vector<at::Tensor>& outputs, uint64_t number);

  // Before complete(): results are ready after the work enqueued on `stream`.
  void copyingBack(const c10::Stream& stream);

  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  // Also checks the device.
  bool isCompleted() override;
  // Streams cannot wait for copies that are not enqueued yet, so this blocks like wait().
  void blockCurrentStream() override { wait(kNoTimeout); }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> makeFuture() const override;
  void completeFuture(const c10::intrusive_ptr<c10::ivalue::Future>& future) const override;

  const c10::Device device_;
  // Set before completion, constant afterwards.
  std::optional<c10::Stream> stream_;
  std::optional<c10::Event> copied_back_;
};

}  // namespace topoopt
