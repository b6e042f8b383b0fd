// Device tensors in page-locked host memory, which the device accesses over its bus at full rate,
// or directly if it shares the host's memory. Operations use them in place (in_place.h).

#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace topoopt {

// Returns a 1-d tensor on the accelerator `options.device()`, from PyTorch's allocator for
// page-locked memory. Freed memory is kept until two streams have run their enqueued work: the
// current ones at allocation and at release. Throws c10::Error if the device has no such memory.
at::Tensor allocateHostTensor(int64_t elements, const at::TensorOptions& options);

}  // namespace topoopt
