// Device tensors whose memory the host reaches (common/host_reach.h): operations use them where
// they are, as tensors on the CPU.
//
// A buffer of a piece is used in place if it stands for one tensor, or a range of one: several, and
// blocks of one that are cut, lie apart. What shares memory with a buffer that is copied is copied,
// too: one of them is written, and copies and the operation keep no order between them.

#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/staging/staging_slices.h"
#include "common/host_reach.h"

namespace topoopt {

class InPlace {
 public:
  struct Use {
    bool in_place = false;
    uint64_t bytes = 0;
  };

  // Unless it is `allowed`, all is copied. `registers`: see reachByCuda.
  InPlace(bool allowed, bool registers) : allowed_(allowed), registers_(registers) {}

  // Sets `place` and `host` of the buffers that are used in place, and leaves in their parts what
  // still has to be copied, to `place`, before the operation. One thread at a time.
  void find(std::vector<StagingBuffer>& buffers);

  // Bytes by kind of memory, or by why they were copied. Any thread.
  std::map<std::string, Use> uses() const;

 private:
  HostReach reachOf(const at::Tensor& tensor) const;
  HostReach reachOf(const StagingBuffer& buffer) const;
  void count(c10::Device device, const HostReach& reach, size_t bytes);

  const bool allowed_;
  const bool registers_;
  mutable std::mutex mutex_;
  std::map<std::string, Use> uses_;  // guarded by mutex_
};

}  // namespace topoopt
