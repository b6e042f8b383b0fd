#include "backend/staging/staging_work.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace topoopt {

StagingWork::StagingWork(c10::Device device, std::shared_ptr<CompletionPool> pool, int rank,
                         c10d::OpType type, const char* title,
                         const std::vector<at::Tensor>& inputs,
                         const std::vector<at::Tensor>& outputs, uint64_t number)
    : TopooptWork(std::move(pool), rank, type, title, inputs, outputs, number), device_(device) {}

void StagingWork::copyingBack(const c10::Stream& stream) {
  c10::Event event(device_.type());
  event.record(stream);
  stream_ = stream;
  copied_back_.emplace(std::move(event));
}

bool StagingWork::wait(std::chrono::milliseconds timeout) {
  TopooptWork::wait(timeout);
  const c10::impl::VirtualGuardImpl device(device_.type());
  copied_back_->block(device.getStream(device_));
  return true;
}

bool StagingWork::isCompleted() {
  return TopooptWork::isCompleted() && (!copied_back_ || copied_back_->query());
}

c10::intrusive_ptr<c10::ivalue::Future> StagingWork::makeFuture() const {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                  std::vector<c10::Device>{device_});
}

// The future records the current streams, and its callbacks and waiting threads synchronise their
// own streams with them.
void StagingWork::completeFuture(const c10::intrusive_ptr<c10::ivalue::Future>& future) const {
  if (!stream_) return TopooptWork::completeFuture(future);
  const c10::StreamGuard guard(*stream_);
  TopooptWork::completeFuture(future);
}

}  // namespace topoopt
