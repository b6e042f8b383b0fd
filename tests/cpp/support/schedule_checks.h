// What tests of schedules have in common: inputs for all members, and what must come out.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "support/schedule_executor.h"

namespace topoopt {

template <typename Make>
std::vector<Schedule> forAll(int size, Make make) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < size; ++rank) schedules.push_back(make(rank));
  return schedules;
}

inline Values randomValues(size_t count, TestRandom& random) {
  Values values(count);
  for (uint64_t& value : values) value = random.word();
  return values;
}

// TestRandom input for all members; returns the sum of all.
inline Values fillInputs(ScheduleExecutor& executor, int size, size_t count, TestRandom& random) {
  Values sum(count, 0);
  for (int rank = 0; rank < size; ++rank) {
    executor.member(rank).input = randomValues(count, random);
    for (size_t i = 0; i < count; ++i) sum[i] += executor.member(rank).input[i];
  }
  return sum;
}

inline std::vector<size_t> randomCounts(int size, size_t about, TestRandom& random) {
  std::vector<size_t> counts;
  for (int i = 0; i < size; ++i) {
    counts.push_back(random.chance(0.2) ? 0 : random.between(0, about));
  }
  return counts;
}

inline size_t total(const std::vector<size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), size_t{0});
}

inline size_t startOf(const std::vector<size_t>& counts, int index) {
  return std::accumulate(counts.begin(), counts.begin() + index, size_t{0});
}

inline void expectWrites(const std::vector<int>& writes, size_t first, size_t count, int expected) {
  for (size_t i = first; i < first + count; ++i) {
    ASSERT_EQ(i < writes.size() ? writes[i] : 0, expected) << "element " << i;
  }
}

}  // namespace topoopt
