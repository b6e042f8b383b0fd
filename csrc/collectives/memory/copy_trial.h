// How members of one server copy fastest between each other, on the machine on which they run. On
// some processors what another core reads next is best written past the caches, on others that
// takes half as long again; and the kernel's copy from another process takes from half to twice as
// long as two copies through shared memory. So the first two members of a group measure it, in less
// than a millisecond, unless a member knows it from an earlier group.
//
// Pages of the memory are zeros at first.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "collectives/memory/peer_memory.h"

namespace topoopt {

struct CopyWays {
  bool measured = false;
  bool streams = true;  // what others read next is written past the caches
  bool pulls = false;   // one copy by the kernel takes less than two through shared memory

  bool operator==(const CopyWays&) const = default;
};

// Of this process: what its last trial, or that of others, has found.
CopyWays knownCopyWays();
void setKnownCopyWays(const CopyWays& ways);

class CopyTrial {
 public:
  static constexpr std::chrono::milliseconds kLimit{20};  // where the two share a processor

  static size_t bytesFor(int size);

  // `memory` outlives this. Publishes what this process knows.
  CopyTrial(std::byte* memory, int member, int size);

  // When all members have been made. Members 0 and 1 call it at about the same time, again with the
  // next number where that found nothing: they may have had to wait for a processor. Both know the
  // result afterwards; others see it when they are synchronised with member 0 after that.
  void run(const PeerMemory& peers, uint32_t attempt) const;
  // What a member knew at first, or the trial has found.
  CopyWays result() const;
  // This process knows it from now on, if there is one.
  void adopt() const;

 private:
  struct Area;

  Area& area() const;
  void write(uint32_t first, std::chrono::steady_clock::time_point end) const;
  void read(const PeerMemory& peers, uint32_t first,
            std::chrono::steady_clock::time_point end) const;

  std::byte* const memory_;
  const int member_;
  const int size_;
};

}  // namespace topoopt
