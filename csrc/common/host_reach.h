// Determines whether the host may access a device's memory in place.
//
// Two sources must agree. The driver reports the kind of memory: an address in this process is not
// enough, because windows into device memory are slow to read, and some memory is not coherent. The
// kernel reports whether this process has the pages: a driver may know memory of another process,
// or stale registrations.
//
// CUDA's driver is used if the process has loaded it, without its headers.

#pragma once

#include <cstddef>
#include <optional>

namespace topoopt {

struct HostReach {
  void* memory = nullptr;  // host address; nullptr: not accessible
  const char* what = "";   // kind of memory, or reason for a copy; static storage
};

// Functions of CUDA's driver that describe memory. Each returns 0 on success.
struct CudaDriver {
  int (*pointer_attributes)(unsigned count, int* wanted, void** values,
                            unsigned long long address) = nullptr;
  int (*host_flags)(unsigned* flags, void* memory) = nullptr;
  int (*device)(int* device, int ordinal) = nullptr;
  int (*device_attribute)(int* value, int attribute, int device) = nullptr;

  // From the library loaded in this process; nullopt if there is none.
  static std::optional<CudaDriver> loaded();
};

// `registers`: RDMA interfaces of this process will register the memory.
HostReach reachByCuda(const CudaDriver& driver, void* memory, int ordinal, bool registers);

// Returns `reach`, unless the kernel reports that the first or last of its `bytes` (at least one)
// is not memory of this process. Does not raise signals.
HostReach confirmedByKernel(HostReach reach, size_t bytes);

}  // namespace topoopt
