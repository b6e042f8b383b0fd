// The copies of one piece of an operation on device tensors, slice by slice: to host memory while
// its collective runs, in the order in which that needs them, and back as results become final.

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

// A multiple of every element's size: large enough that starting a copy costs little.
constexpr size_t kStagingSliceBytes = 1 << 20;

// A contiguous 1-d host tensor, and the parts of device tensors that it stands for.
//
// Where the host reaches the memory of the one device tensor that it stands for (in_place.h), that
// is the host tensor: nothing is written back, and what is still read is copied to it on the
// device.
struct StagingBuffer {
  struct Part {
    at::Tensor tensor;  // on the device, contiguous, 1-d
    int64_t offset;     // in the buffer, in elements
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

// One thread only, and the streams must be current when it copies.
class StagingSlices {
 public:
  // `host`: the memory of each buffer. `changed`: see Landing.
  StagingSlices(std::vector<StagingBuffer> buffers, std::vector<at::Tensor> host,
                std::function<void()> changed);

  const std::shared_ptr<Landing>& landing() const { return landing_; }

  // Notes which copies to the host are complete, and enqueues few more: the collective may still
  // say which it needs first.
  void copyIn(const c10::Stream& stream);
  // Whether copies to the host are left, complete or not.
  bool copyingIn() const { return !to_land_.empty() || !under_way_.empty(); }
  // Whether the caller's stream has come to this operation: something has landed, or nothing will.
  bool begun() const { return begun_; }

  // What has become final; it is to be copied back.
  std::vector<Landing::Slice> takeFinal() { return landing_->takeFinal(); }
  void copyBack(const std::vector<Landing::Slice>& slices);
  // All that has not been copied back, when the collective is over.
  void copyRest();

 private:
  using Slice = Landing::Slice;

  void order();
  void copy(Slice slice, bool back);

  std::vector<StagingBuffer> buffers_;
  const std::vector<at::Tensor> host_;
  std::shared_ptr<Landing> landing_;
  std::deque<Slice> to_land_;
  std::deque<std::pair<Slice, c10::Event>> under_way_;  // in the stream's order
  std::vector<std::vector<bool>> copied_back_;          // per buffer and slice
  bool begun_ = false;
};

}  // namespace topoopt
