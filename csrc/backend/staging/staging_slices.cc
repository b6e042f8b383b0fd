#include "backend/staging/staging_slices.h"

#include <algorithm>

namespace topoopt {
namespace {

// Limit of enqueued copies to the host: enough to keep a device busy between two polls.
constexpr size_t kAhead = 8;

int64_t elementsOfSlice(const StagingBuffer& buffer) {
  return static_cast<int64_t>(kStagingSliceBytes / c10::elementSize(buffer.type));
}

size_t slicesOf(const StagingBuffer& buffer) {
  const int64_t each = elementsOfSlice(buffer);
  return static_cast<size_t>((buffer.elements + each - 1) / each);
}

}  // namespace

StagingSlices::StagingSlices(std::vector<StagingBuffer> buffers, std::vector<at::Tensor> host,
                             std::function<void()> changed)
    : buffers_(std::move(buffers)), host_(std::move(host)) {
  std::vector<Landing::Region> regions;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    StagingBuffer& buffer = buffers_[i];
    const int64_t each = elementsOfSlice(buffer);
    std::vector<bool> pending(slicesOf(buffer), false);
    copied_back_.push_back(pending);
    if (buffer.inPlace()) buffer.reads.clear();  // copied as a whole
    for (const StagingBuffer::Part& part : buffer.reads) {
      const int64_t end = part.offset + part.tensor.numel();
      for (int64_t s = part.offset / each; s * each < end; ++s) {
        pending[static_cast<size_t>(s)] = true;
      }
    }
    for (size_t s = 0; s < pending.size(); ++s) {
      if (pending[s]) to_land_.push_back({i, s});
    }
    regions.push_back({static_cast<const std::byte*>(host_[i].const_data_ptr()),
                       static_cast<size_t>(host_[i].nbytes()), std::move(pending)});
  }
  begun_ = to_land_.empty();
  landing_ = std::make_shared<Landing>(std::move(regions), kStagingSliceBytes, std::move(changed));
}

void StagingSlices::copyIn(const c10::Stream& stream) {
  while (!under_way_.empty() && under_way_.front().second.query()) {
    landing_->landed(under_way_.front().first);
    under_way_.pop_front();
    begun_ = true;
  }
  if (to_land_.empty()) return;
  order();
  while (!to_land_.empty() && under_way_.size() < kAhead) {
    const Slice slice = to_land_.front();
    copy(slice, false);
    c10::Event event(stream.device_type());
    event.record(stream);
    under_way_.emplace_back(slice, std::move(event));
    to_land_.pop_front();
  }
}

// Slices unused by the collective come last.
void StagingSlices::order() {
  const std::vector<Slice> wanted = landing_->takeOrder();
  if (wanted.empty()) return;
  std::vector<std::vector<bool>> left;
  for (const StagingBuffer& buffer : buffers_) left.emplace_back(slicesOf(buffer), false);
  for (const Slice& slice : to_land_) left[slice.region][slice.index] = true;
  std::deque<Slice> ordered;
  const auto take = [&](const Slice& slice) {
    if (left[slice.region][slice.index]) ordered.push_back(slice);
    left[slice.region][slice.index] = false;
  };
  std::for_each(wanted.begin(), wanted.end(), take);
  std::for_each(to_land_.begin(), to_land_.end(), take);
  to_land_ = std::move(ordered);
}

void StagingSlices::copyBack(const std::vector<Slice>& slices) {
  for (const Slice& slice : slices) {
    copied_back_[slice.region][slice.index] = true;
    copy(slice, true);
  }
}

void StagingSlices::copyRest() {
  for (size_t region = 0; region < copied_back_.size(); ++region) {
    for (size_t index = 0; index < copied_back_[region].size(); ++index) {
      if (copied_back_[region][index]) continue;
      copied_back_[region][index] = true;
      copy({region, index}, true);
    }
  }
}

void StagingSlices::copy(Slice slice, bool back) {
  const StagingBuffer& buffer = buffers_[slice.region];
  const int64_t each = elementsOfSlice(buffer);
  const int64_t first = static_cast<int64_t>(slice.index) * each;
  const int64_t end = std::min(first + each, buffer.elements);
  for (const StagingBuffer::Part& part : back ? buffer.writes : buffer.reads) {
    const int64_t from = std::max(first, part.offset);
    const int64_t count = std::min(end, part.offset + part.tensor.numel()) - from;
    if (count <= 0) continue;
    const at::Tensor on_device = part.tensor.narrow(0, from - part.offset, count);
    const at::Tensor on_host = host_[slice.region].narrow(0, from, count);
    (back ? on_device : on_host).copy_(back ? on_host : on_device, /*non_blocking=*/true);
  }
}

}  // namespace topoopt
