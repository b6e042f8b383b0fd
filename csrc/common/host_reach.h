// Whether the host may read and write the memory of a device where it is.
//
// Two must agree. The driver that gave the memory out says what it is: that it lies in this
// process's address space is not enough, for so do windows into the memory of a device, which are
// slow to read, and memory that is not coherent. And the kernel says that this process has the
// pages: a driver may know memory of another process, or a registration whose memory is gone.
//
// CUDA's driver is asked if the process has loaded it. Nothing here needs its headers.

#pragma once

#include <cstddef>
#include <optional>

namespace topoopt {

struct HostReach {
  void* memory = nullptr;  // the host's address; nullptr: the host does not reach it
  const char* what = "";   // the kind of memory, or why it has to be copied; never freed
};

// The functions of CUDA's driver that say what memory is. Each returns 0 if all is well.
struct CudaDriver {
  int (*pointer_attributes)(unsigned count, int* wanted, void** values,
                            unsigned long long address) = nullptr;
  int (*host_flags)(unsigned* flags, void* memory) = nullptr;
  int (*device)(int* device, int ordinal) = nullptr;
  int (*device_attribute)(int* value, int attribute, int device) = nullptr;

  // Of the library that this process has loaded already; nothing if it has none.
  static std::optional<CudaDriver> loaded();
};

// `registers`: RDMA interfaces of this process will register the memory.
HostReach reachByCuda(const CudaDriver& driver, void* memory, int ordinal, bool registers);

// `reach`, unless the kernel does not know the first or the last of its `bytes` (more than none) as
// memory of this process. Reads without a signal where there is none.
HostReach confirmedByKernel(HostReach reach, size_t bytes);

}  // namespace topoopt
