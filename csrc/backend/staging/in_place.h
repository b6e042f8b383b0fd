// Uses device tensors in place, like CPU tensors, if the host can access their memory
// (common/host_reach.h).
//
// A buffer of a piece is used in place if it is one tensor, or a range of one. Several tensors, or
// split blocks, are not contiguous. Memory shared with a copied buffer is copied, too, because the
// copies and the operation are unordered.

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

  // Unless `allowed`, everything is copied. `registers`: see reachByCuda.
  InPlace(bool allowed, bool registers) : allowed_(allowed), registers_(registers) {}

  // Sets `place` and `host` of buffers that are used in place. Their remaining parts must be copied
  // to `place` before the operation. One thread at a time.
  void find(std::vector<StagingBuffer>& buffers);

  // Bytes by memory kind, or by the reason for a copy. Any thread.
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
