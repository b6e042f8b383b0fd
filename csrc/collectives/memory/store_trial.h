// Measures which stores are faster for data that another member reads next. Streaming stores are
// best on some processors, and take half as long again on others. The first two members of a group
// measure it in less than a millisecond, unless a member knows it from an earlier group.
//
// The memory must be zeroed at first.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "collectives/memory/shared_words.h"

namespace topoopt {

class StoreTrial {
 public:
  static constexpr std::chrono::milliseconds kLimit{20};  // the two may share a processor

  static constexpr int kMaxMembers = 256;
  static size_t bytes();

  // `memory` must outlive this object. Publishes this process's knowledge.
  StoreTrial(std::byte* memory, int member, int size);

  // Call it when all members exist. Members 0 and 1 call it at about the same time, and again with
  // the next number if it found nothing: they may have waited for a processor. Both know the result
  // afterwards; others see it after synchronising with member 0.
  void run(uint32_t attempt) const;
  // The initial knowledge of a member, or a trial's result.
  Stores result() const;
  // Stores the result, if any, for this process.
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
