// Host memory for device tensors: pinned, so that copies are asynchronous, and reused, because
// pinning is slow.

#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

namespace topoopt {

// One thread only.
class StagingMemory {
 public:
  // Keeps returned memory as long as the total, with memory in use, is within `limit_bytes`.
  explicit StagingMemory(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Returns a 1-d host tensor of at least `bytes`. It is pinned for `device`, or plain (logged
  // once) if that has no pinned memory.
  at::Tensor take(c10::DeviceType device, size_t bytes);

  // Requires that no copy from or to the memory is running.
  void giveBack(c10::DeviceType device, at::Tensor memory);

 private:
  bool full(size_t more_bytes) const {
    return used_bytes_ + free_bytes_ + more_bytes > limit_bytes_;
  }

  const size_t limit_bytes_;
  size_t used_bytes_ = 0;
  size_t free_bytes_ = 0;
  std::map<std::pair<c10::DeviceType, size_t>, std::vector<at::Tensor>> free_;
};

}  // namespace topoopt
