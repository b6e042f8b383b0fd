// Reading the memory of another member's process where it is, so that what members of one server
// move is copied once (Linux's cross-memory attach, process_vm_readv).
//
// Nobody writes to the memory of others: a member that gives up can take its memory back at once,
// and whoever reads it meanwhile reads garbage. So who has read asks afterwards whether the other
// member still was in the operation.
//
// The kernel lets a process read those that it may trace. Whether it does is tried, not derived:
// every member publishes a number and where it lies, and the others read it there. Where Yama
// restricts tracing to descendants, a member that publishes itself allows its parent's.
//
// Pages of the table are zeros at first.

#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace topoopt {

class PeerMemory {
 public:
  static size_t bytesFor(int size);

  // `table` outlives this. Unless `allowed`, this member reads nothing, and no other one from it.
  PeerMemory(std::byte* table, int member, int size, bool allowed);

  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // All functions: any thread.

  // Whether this member can read the memory of `other`; nothing as long as that one has not
  // published itself.
  std::optional<bool> reaches(int other) const;
  // Copies `bytes` from `address` in the process of `other`; whether all of them could be read.
  bool read(int other, uint64_t address, void* to, size_t bytes) const;

  // What this member has found about all others that are in the segment by now, for them to see ...
  void publishVerdict() const;
  // ... and whether every member has found that it can read all others.
  bool allReachAll() const;

 private:
  struct Entry;

  Entry& entry(int member) const;

  std::byte* const table_;
  const int member_;
  const int size_;
  const bool allowed_;
  const uint64_t proof_;  // others read it here
  mutable std::vector<std::atomic<int8_t>> reach_;
};

// Where others read `bytes` (more than none) of this process, or 0 if they cannot: memory of a
// device may be none of the kernel's pages.
uint64_t addressForOthers(const void* data, size_t bytes);

}  // namespace topoopt
