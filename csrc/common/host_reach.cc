#include "common/host_reach.h"

#include <dlfcn.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "common/cuda_driver.h"

namespace topoopt {
namespace {

// <cuda.h>: CUpointer_attribute, CUmemorytype, CU_MEMHOSTALLOC_*, CUdevice_attribute.
constexpr int kMemoryType = 2;
constexpr int kHostPointer = 4;
constexpr int kIsManaged = 8;
constexpr uint32_t kHost = 1;
constexpr uint32_t kUnknown = 0;
constexpr unsigned kWriteCombined = 0x4;
constexpr int kIntegrated = 18;
constexpr int kConcurrentManagedAccess = 89;
constexpr int kUsesHostPageTables = 100;
constexpr int kDirectManagedAccess = 101;

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool has(const CudaDriver& driver, int ordinal, int attribute) {
  int device = 0;
  int value = 0;
  return driver.device(&device, ordinal) == 0 &&
         driver.device_attribute(&value, attribute, device) == 0 && value != 0;
}

// Managed memory may migrate between host and device, which changes the access time.
HostReach reachOfManaged(const CudaDriver& driver, void* host, int ordinal, bool registers) {
  if (!has(driver, ordinal, kConcurrentManagedAccess)) {
    return {nullptr, "managed memory that the host must not touch while the device works"};
  }
  if (!has(driver, ordinal, kIntegrated) && !has(driver, ordinal, kDirectManagedAccess)) {
    return {nullptr, "managed memory, whose pages would move to the host"};
  }
  if (registers) {
    return {nullptr, "managed memory, which RDMA interfaces are not known to register"};
  }
  return {host, "managed memory"};
}

HostReach reachOfHostMemory(const CudaDriver& driver, void* host) {
  unsigned flags = 0;
  // Fails for memory that the program has registered, which stays cached.
  if (driver.host_flags(&flags, host) == 0 && (flags & kWriteCombined) != 0) {
    return {nullptr, "write-combined host memory, which processors read slowly"};
  }
  return {host, "page-locked host memory"};
}

}  // namespace

std::optional<CudaDriver> CudaDriver::loaded() {
  void* const library = cudaDriverLibrary();
  if (library == nullptr) return std::nullopt;
  CudaDriver driver;
  const bool complete = find(library, "cuPointerGetAttributes", driver.pointer_attributes) &&
                        find(library, "cuMemHostGetFlags", driver.host_flags) &&
                        find(library, "cuDeviceGet", driver.device) &&
                        find(library, "cuDeviceGetAttribute", driver.device_attribute);
  if (!complete) return std::nullopt;
  return driver;
}

HostReach reachByCuda(const CudaDriver& driver, void* memory, int ordinal, bool registers) {
  // The driver writes 4 or 8 bytes to each, and leaves unknown ones at zero.
  std::array<uint64_t, 3> values{};
  std::array<int, 3> wanted{kMemoryType, kHostPointer, kIsManaged};
  std::array<void*, 3> places{&values[0], &values[1], &values[2]};
  if (driver.pointer_attributes(wanted.size(), wanted.data(), places.data(),
                                reinterpret_cast<uintptr_t>(memory)) != 0) {
    return {nullptr, "memory of which the driver says nothing"};
  }
  uint32_t type = 0;
  std::memcpy(&type, &values[0], sizeof type);
  auto* const host = reinterpret_cast<void*>(static_cast<uintptr_t>(values[1]));
  if (values[2] != 0) {
    return reachOfManaged(driver, host != nullptr ? host : memory, ordinal, registers);
  }
  if (type == kUnknown) {
    // Not allocated by the driver. Such a device can access all addresses of the process.
    if (has(driver, ordinal, kUsesHostPageTables)) return {memory, "memory of the process"};
    return {nullptr, "memory that the driver does not know"};
  }
  if (type != kHost || host == nullptr) return {nullptr, "memory of the device alone"};
  return reachOfHostMemory(driver, host);
}

HostReach confirmedByKernel(HostReach reach, size_t bytes) {
  if (reach.memory == nullptr) return reach;
  std::array<std::byte, 2> got{};
  iovec into{got.data(), got.size()};
  std::array<iovec, 2> ends{iovec{reach.memory, 1},
                            iovec{static_cast<std::byte*>(reach.memory) + (bytes - 1), 1}};
  // Fails for unmapped or unreadable memory, and for device mappings (VM_IO, VM_PFNMAP).
  const ssize_t count = process_vm_readv(getpid(), &into, 1, ends.data(), ends.size(), 0);
  if (count == 2) return reach;
  if (count >= 0 || errno == EFAULT) return {nullptr, "no memory of this process"};
  return {nullptr, "memory of which the kernel says nothing"};  // a container forbids the call
}

}  // namespace topoopt
