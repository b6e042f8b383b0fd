// Tensors of a device in page-locked memory of the host, which the device reads and writes over its
// bus, or where it shares the host's memory, at its full rate. Operations use them in place
// (in_place.h).

#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace topoopt {

// A 1-d tensor on `options.device()`, an accelerator. The memory is that of PyTorch's allocator for
// page-locked memory. When the tensor goes, it is kept until the streams have come as far as they
// had been given then: the one that was current when it was made, and the one that is. Throws
// c10::Error if the device has no such memory.
at::Tensor allocateHostTensor(int64_t elements, const at::TensorOptions& options);

}  // namespace topoopt
