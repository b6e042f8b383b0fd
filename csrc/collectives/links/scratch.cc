#include "collectives/links/scratch.h"

#include <utility>

namespace topoopt {

std::byte* Scratch::reserve(size_t bytes) {
  in_use_ = true;
  if (bytes <= bytes_) return memory_.get();
  memory_.reset();  // first, so that the old and new memory never coexist
  memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  bytes_ = bytes;
  if (!timer_) watch();
  return memory_.get();
}

void Scratch::finished() {
  in_use_ = false;
  used_ = true;
}

void Scratch::release() {
  in_use_ = false;
  if (timer_) reactor_.cancel(*std::exchange(timer_, std::nullopt));
  memory_.reset();
  bytes_ = 0;
}

// One timer per period rather than per operation; an operation may span periods.
void Scratch::watch() {
  used_ = false;
  timer_ = reactor_.after(idle_limit_, [this] {
    timer_.reset();
    if (in_use_ || used_) return watch();
    release();
  });
}

}  // namespace topoopt
