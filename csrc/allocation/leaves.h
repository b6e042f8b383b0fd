// Boards of a row or column by leaf of its tree: a fixed number of consecutive places shares a
// switch of the lowest level.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

// Counting bits dominates, and the baseline of the architecture has no instruction for it.
#if defined(__x86_64__) && defined(__linux__)
#define TOPOOPT_COUNTS_BITS __attribute__((target_clones("popcnt", "default")))
#else
#define TOPOOPT_COUNTS_BITS
#endif

namespace topoopt {

// The maximum in one leaf over the members of `set`, which are below `columns`.
int mostInLeaf(const uint64_t* set, int columns, int per_leaf);

// The number of members of `set`, which are below `columns`, in each leaf.
void countInLeaves(const uint64_t* set, int columns, int per_leaf, int* counts);

inline int64_t squared(int count) { return static_cast<int64_t>(count) * count; }

// Ordered pairs of `count` places within a leaf, if leaves are filled one after another.
inline int64_t mostTogether(int count, int per_leaf) {
  return count / per_leaf * squared(per_leaf) + squared(count % per_leaf);
}

// The fraction of ordered pairs of `count` places in different leaves.
inline double crossing(int64_t together, int count) {
  return 1 - static_cast<double>(together) / static_cast<double>(squared(count));
}
double crossing(const std::vector<int>& places, int per_leaf);

}  // namespace topoopt
