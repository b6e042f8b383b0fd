// Boards of a row, or of a column, in the leaves of its tree: so many places in a row share a
// switch of the lowest level.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

// Counting bits is most of the work, and an instruction of its own that not all processors of the
// architecture have.
#if defined(__x86_64__) && defined(__linux__)
#define TOPOOPT_COUNTS_BITS __attribute__((target_clones("popcnt", "default")))
#else
#define TOPOOPT_COUNTS_BITS
#endif

namespace topoopt {

// The most members that `set`, which are below `columns`, has in one leaf.
int mostInLeaf(const uint64_t* set, int columns, int per_leaf);

// Members of `set`, which are below `columns`, in each leaf.
void countInLeaves(const uint64_t* set, int columns, int per_leaf, int* counts);

inline int64_t squared(int count) { return static_cast<int64_t>(count) * count; }

// Ordered pairs of `count` places that lie in one leaf, where as many leaves as possible are full.
inline int64_t mostTogether(int count, int per_leaf) {
  return count / per_leaf * squared(per_leaf) + squared(count % per_leaf);
}

// Of ordered pairs of `count` places: the part that lies in different leaves.
inline double crossing(int64_t together, int count) {
  return 1 - static_cast<double>(together) / static_cast<double>(squared(count));
}
double crossing(const std::vector<int>& places, int per_leaf);

}  // namespace topoopt
