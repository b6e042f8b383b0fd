#include "collectives/group/landing.h"

#include <cstdint>

namespace topoopt {

Landing::Landing(std::vector<Region> regions, size_t slice_bytes, std::function<void()> changed)
    : slice_bytes_(slice_bytes), changed_(std::move(changed)) {
  for (const Region& region : regions) {
    Extent& extent = regions_.emplace_back(Extent{region.begin, region.bytes, {}});
    extent.slices.resize((region.bytes + slice_bytes - 1) / slice_bytes);
    for (size_t i = 0; i < extent.slices.size(); ++i) {
      extent.slices[i].landed = !region.pending.at(i);
    }
  }
}

template <typename Visit>
void Landing::visit(const void* data, size_t bytes, const Visit& visit) const {
  const auto at = reinterpret_cast<uintptr_t>(data);
  for (size_t r = 0; bytes > 0 && r < regions_.size(); ++r) {
    const auto begin = reinterpret_cast<uintptr_t>(regions_[r].begin);
    if (at < begin || at >= begin + regions_[r].bytes) continue;
    const size_t last = (at - begin + bytes - 1) / slice_bytes_;
    for (size_t i = (at - begin) / slice_bytes_; i <= last; ++i) visit(Slice{r, i});
    return;
  }
}

// ---- copying thread ----------------------------------------------------------------------------

void Landing::landed(Slice slice) {
  std::function<void()> wake;
  {
    std::lock_guard lock(mutex_);
    regions_[slice.region].slices[slice.index].landed = true;
    finish(slice);  // so that this thread finds final slices itself
    wake = wake_;
  }
  if (wake) wake();
}

std::vector<Landing::Slice> Landing::takeFinal() {
  std::lock_guard lock(mutex_);
  return std::exchange(final_, {});
}

std::vector<Landing::Slice> Landing::takeOrder() {
  std::lock_guard lock(mutex_);
  return begun_ ? std::exchange(order_, {}) : std::vector<Slice>();
}

void Landing::holdResults() {
  std::lock_guard lock(mutex_);
  held_ = true;
}

// ---- thread of the collective ------------------------------------------------------------------

void Landing::willUse(const void* data, size_t bytes) {
  std::lock_guard lock(mutex_);
  visit(data, bytes, [this](Slice slice) {
    State& state = regions_[slice.region].slices[slice.index];
    if (!std::exchange(state.used, true)) order_.push_back(slice);
  });
}

void Landing::willWrite(const void* data, size_t bytes) {
  std::lock_guard lock(mutex_);
  visit(data, bytes,
        [this](Slice slice) { ++regions_[slice.region].slices[slice.index].writes_left; });
}

void Landing::begin(std::function<void()> wake) {
  {
    std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
    begun_ = true;
    for (size_t r = 0; r < regions_.size(); ++r) {
      for (size_t i = 0; i < regions_[r].slices.size(); ++i) finish({r, i});
    }
  }
  changed_();
}

bool Landing::has(const void* data, size_t bytes) const {
  std::lock_guard lock(mutex_);
  bool all = true;
  visit(data, bytes,
        [&](Slice slice) { all = all && regions_[slice.region].slices[slice.index].landed; });
  return all;
}

void Landing::wrote(const void* data, size_t bytes) {
  bool any = false;
  {
    std::lock_guard lock(mutex_);
    visit(data, bytes, [&](Slice slice) {
      --regions_[slice.region].slices[slice.index].writes_left;
      any = finish(slice) || any;
    });
  }
  if (any) changed_();
}

void Landing::end() {
  std::lock_guard lock(mutex_);
  wake_ = nullptr;
}

bool Landing::finish(Slice slice) {
  State& state = regions_[slice.region].slices[slice.index];
  if (!begun_ || held_ || !state.landed || state.writes_left > 0 || state.final) return false;
  state.final = true;
  final_.push_back(slice);
  return true;
}

}  // namespace topoopt
