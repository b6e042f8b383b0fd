// The sliced copies of one piece: to host memory in the order in which its collective needs them,
// and back as results become final.

#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/group/landing.h"

namespace topoopt {

// A multiple of all element sizes, and large enough to amortise starting a copy.
constexpr size_t kStagingSliceBytes = 1 << 20;

// A contiguous 1-d host tensor, and the device tensor parts that it holds.
//
// In place (in_place.h), it is the device tensor's own memory: nothing is written back, and the
// remaining reads are copied to it on the device.
struct StagingBuffer {
  struct Part {
    at::Tensor tensor;  // on the device, contiguous, 1-d
    int64_t offset;     // elements into the buffer
  };

  at::ScalarType type = at::kByte;
  int64_t elements = 0;
  std::vector<Part> reads = {};   // copied to the buffer before the operation
  std::vector<Part> writes = {};  // copied from the buffer after it
  // In place: the device tensor, contiguous and 1-d, and its memory as a host tensor.
  at::Tensor place = {};
  at::Tensor host = {};

  bool inPlace() const { return host.defined(); }
};

// One thread only, with the streams current during copies.
class StagingSlices {
 public:
  // `host`: memory of each buffer. `changed`: see Landing.
  StagingSlices(std::vector<StagingBuffer> buffers, std::vector<at::Tensor> host,
                std::function<void()> changed);

  const std::shared_ptr<Landing>& landing() const { return landing_; }

  // Records completed copies to the host and enqueues only a few more, because the collective may
  // still announce the order that it needs.
  void copyIn(const c10::Stream& stream);
  // Returns whether copies to the host are incomplete.
  bool copyingIn() const { return !to_land_.empty() || !under_way_.empty(); }
  // Returns whether the caller's stream has reached this operation: a slice has landed, or none
  // will.
  bool begun() const { return begun_; }

  // Returns slices that have become final, to be copied back.
  std::vector<Landing::Slice> takeFinal() { return landing_->takeFinal(); }
  void copyBack(const std::vector<Landing::Slice>& slices);
  // Copies back the rest when the collective has ended.
  void copyRest();

 private:
  using Slice = Landing::Slice;

  void order();
  void copy(Slice slice, bool back);

  std::vector<StagingBuffer> buffers_;
  const std::vector<at::Tensor> host_;
  std::shared_ptr<Landing> landing_;
  std::deque<Slice> to_land_;
  std::deque<std::pair<Slice, c10::Event>> under_way_;  // in stream order
  std::vector<std::vector<bool>> copied_back_;          // by buffer and slice
  bool begun_ = false;
};

}  // namespace topoopt
