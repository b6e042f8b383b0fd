// The minimum of many keyed items with bulk updates between reads.

#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace topoopt {

// Setting a key is a store and marks its blocks; reading the minimum updates marked blocks. So an
// event that changes a thousand keys, such as new rates, costs a few nanoseconds for each instead
// of a heap operation. Items without a key are absent.
class MinTree {
 public:
  static constexpr double kAbsent = std::numeric_limits<double>::infinity();

  // Makes all items 0..count-1 absent.
  void reset(int count) {
    levels_.clear();
    size_t size = std::max(count, 1);
    do {
      size = (size + kArity - 1) / kArity;
      levels_.push_back({std::vector<double>(size * kArity, kAbsent), std::vector<char>(size, 0)});
    } while (size > 1);
    least_ = kAbsent;
  }

  void set(int item, double key) {
    levels_[0].keys[item] = key;
    size_t block = item / kArity;
    for (size_t level = 0; level < levels_.size() && !levels_[level].stale[block]; ++level) {
      levels_[level].stale[block] = 1;
      block /= kArity;
    }
  }

  void remove(int item) {
    if (levels_[0].keys[item] != kAbsent) set(item, kAbsent);
  }

  // kAbsent if there are no items.
  double least() {
    Level& root = levels_.back();
    if (root.stale[0]) least_ = refresh(levels_.size() - 1, 0);
    return least_;
  }

  // Moves the items with keys up to `limit` to `taken` in ascending order.
  void take(double limit, std::vector<int>& taken) {
    const size_t first = taken.size();
    if (least() <= limit) gather(levels_.size() - 1, 0, limit, taken);
    for (size_t i = first; i < taken.size(); ++i) set(taken[i], kAbsent);
  }

 private:
  static constexpr size_t kArity = 16;

  struct Level {
    std::vector<double> keys;  // of items, then the minimum of each block
    std::vector<char> stale;   // per block of kArity keys: its minimum is outdated
  };

  double refresh(size_t level, size_t block) {
    Level& here = levels_[level];
    double* keys = &here.keys[block * kArity];
    if (level > 0) {
      Level& below = levels_[level - 1];
      const size_t end = std::min(below.stale.size(), (block + 1) * kArity);
      for (size_t child = block * kArity; child < end; ++child) {
        if (below.stale[child]) keys[child - block * kArity] = refresh(level - 1, child);
      }
    }
    here.stale[block] = 0;
    // Four chains for instruction-level parallelism.
    double least[4] = {keys[0], keys[1], keys[2], keys[3]};
    for (size_t i = 4; i < kArity; i += 4) {
      for (size_t j = 0; j < 4; ++j) least[j] = std::min(least[j], keys[i + j]);
    }
    return std::min(std::min(least[0], least[1]), std::min(least[2], least[3]));
  }

  void gather(size_t level, size_t block, double limit, std::vector<int>& taken) const {
    const double* keys = &levels_[level].keys[block * kArity];
    for (size_t i = 0; i < kArity; ++i) {
      if (!(keys[i] <= limit)) continue;
      if (level == 0) {
        taken.push_back(static_cast<int>(block * kArity + i));
      } else {
        gather(level - 1, block * kArity + i, limit, taken);
      }
    }
  }

  std::vector<Level> levels_;
  double least_ = kAbsent;
};

}  // namespace topoopt
