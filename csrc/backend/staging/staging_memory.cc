#include "backend/staging/staging_memory.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <bit>

namespace topoopt {
namespace {

constexpr size_t kSmallestBytes = 4 << 10;
constexpr size_t kGranuleBytes = 1 << 20;

// A few different sizes, for reuse: powers of two, and whole MiB from 1 MiB on.
size_t roundUp(size_t bytes) {
  if (bytes <= kGranuleBytes) return std::bit_ceil(std::max(bytes, kSmallestBytes));
  return (bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
}

at::Tensor allocate(c10::DeviceType device, size_t bytes) {
  const auto size = static_cast<int64_t>(bytes);
  try {
    c10::Allocator* allocator = at::globalContext().getPinnedMemoryAllocator(device);
    return at::detail::empty_generic({size}, allocator, c10::DispatchKeySet(c10::DispatchKey::CPU),
                                     at::kByte, std::nullopt);
  } catch (const c10::Error& error) {
    TORCH_WARN_ONCE("topoopt: no pinned memory for tensors on ", device,
                    ", so they are copied through plain memory, which takes longer: ",
                    error.what_without_backtrace());
    return at::empty({size}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  }
}

}  // namespace

at::Tensor StagingMemory::take(c10::DeviceType device, size_t bytes) {
  const size_t size = roundUp(bytes);
  const auto found = free_.find({device, size});
  if (found != free_.end() && !found->second.empty()) {
    at::Tensor memory = std::move(found->second.back());
    found->second.pop_back();
    free_bytes_ -= size;
    used_bytes_ += size;
    return memory;
  }
  for (auto entry = free_.begin(); entry != free_.end() && full(size); entry = free_.erase(entry)) {
    free_bytes_ -= entry->first.second * entry->second.size();
  }
  at::Tensor memory = allocate(device, size);
  used_bytes_ += size;
  return memory;
}

void StagingMemory::giveBack(c10::DeviceType device, at::Tensor memory) {
  const size_t size = memory.nbytes();
  used_bytes_ -= size;
  if (full(size)) return;
  free_bytes_ += size;
  free_[{device, size}].push_back(std::move(memory));
}

}  // namespace topoopt
