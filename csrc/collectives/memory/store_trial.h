// Which stores are faster for what another member reads next, on the machine on which they run. On
// some processors it is best written past the caches, on others that takes half as long again. So
// the first two members of a group measure it, in less than a millisecond, unless a member knows it
// from an earlier group.
//
// Pages of the memory are zeros at first.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "collectives/memory/shared_words.h"

namespace topoopt {

class StoreTrial {
 public:
  static constexpr std::chrono::milliseconds kLimit{20};  // where the two share a processor

  static constexpr int kMaxMembers = 256;
  static size_t bytes();

  // `memory` outlives this. Publishes what this process knows.
  StoreTrial(std::byte* memory, int member, int size);

  // When all members have been made. Members 0 and 1 call it at about the same time, again with the
  // next number where that found nothing: they may have had to wait for a processor. Both know the
  // result afterwards; others see it when they are synchronised with member 0 after that.
  void run(uint32_t attempt) const;
  // What a member knew at first, or a trial has found.
  Stores result() const;
  // This process knows it from now on, if there is one.
  void adopt() const;

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Area;

  Area& area() const;
  void write(uint32_t first, TimePoint end) const;
  void read(uint32_t first, TimePoint end) const;

  std::byte* const memory_;
  const int member_;
  const int size_;
};

}  // namespace topoopt
