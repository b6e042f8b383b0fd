#include "allocation/leaves.h"

#include <bit>

namespace topoopt {
namespace {

// Counts members in [first, end). Inlined into its callers, which are compiled for faster bit
// counts.
[[gnu::always_inline]] inline int countBetween(const uint64_t* set, int first, int end) {
  int count = 0;
  for (int w = first / 64; w * 64 < end; ++w) {
    uint64_t word = set[w];
    if (w == first / 64) word &= ~uint64_t{0} << (first % 64);
    if (end - w * 64 < 64) word &= (uint64_t{1} << (end - w * 64)) - 1;
    count += std::popcount(word);
  }
  return count;
}

// Calls visit(members) for each leaf; simpler if words hold whole leaves.
template <typename Visit>
[[gnu::always_inline]] inline void eachLeaf(const uint64_t* set, int columns, int per_leaf,
                                            Visit visit) {
  if (per_leaf >= 64 || 64 % per_leaf != 0) {
    for (int first = 0; first < columns; first += per_leaf) {
      visit(countBetween(set, first, std::min(columns, first + per_leaf)));
    }
    return;
  }
  const uint64_t mask = (uint64_t{1} << per_leaf) - 1;
  for (int first = 0; first < columns; first += per_leaf) {
    visit(std::popcount(set[first / 64] >> (first % 64) & mask));
  }
}

}  // namespace

TOPOOPT_COUNTS_BITS int mostInLeaf(const uint64_t* set, int columns, int per_leaf) {
  int most = 0;
  eachLeaf(set, columns, per_leaf, [&](int count) { most = std::max(most, count); });
  return most;
}

TOPOOPT_COUNTS_BITS void countInLeaves(const uint64_t* set, int columns, int per_leaf,
                                       int* counts) {
  eachLeaf(set, columns, per_leaf, [&](int count) { *counts++ = count; });
}

double crossing(const std::vector<int>& places, int per_leaf) {
  int64_t together = 0;
  for (size_t i = 0; i < places.size();) {
    const size_t begin = i;
    const int leaf = places[i] / per_leaf;
    while (i < places.size() && places[i] / per_leaf == leaf) ++i;
    together += squared(static_cast<int>(i - begin));
  }
  return crossing(together, static_cast<int>(places.size()));
}

}  // namespace topoopt
