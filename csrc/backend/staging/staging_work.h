// The work of an operation on device tensors.
//
// It completes for the host when the copies back to the device have been enqueued. wait() blocks
// the host until then and from there on only the caller's current stream.

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

  // Before complete(): the results are there when what `stream` has been given so far is done.
  void copyingBack(const c10::Stream& stream);

  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  // Also on the device.
  bool isCompleted() override;
  // The copies back cannot be waited for before they are enqueued, so this is wait().
  void blockCurrentStream() override { wait(kNoTimeout); }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> makeFuture() const override;
  void completeFuture(const c10::intrusive_ptr<c10::ivalue::Future>& future) const override;

  const c10::Device device_;
  // Set before the work completes, constant afterwards.
  std::optional<c10::Stream> stream_;
  std::optional<c10::Event> copied_back_;
};

}  // namespace topoopt
