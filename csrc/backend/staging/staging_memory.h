// Host memory for tensors that live on a device: pinned, so that copies run beside the host, and
// reused, for pinning is slow.

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
  // Keeps what is given back as long as that and what is in use are no more than `limit_bytes`.
  explicit StagingMemory(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // A 1-d tensor of at least `bytes` bytes, on the host. Pinned for `device`, or plain where that
  // has no pinned memory, which is said once.
  at::Tensor take(c10::DeviceType device, size_t bytes);

  // No copy from or to the memory may be under way any more.
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
