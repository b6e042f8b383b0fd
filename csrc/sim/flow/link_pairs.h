// A sparse matrix: the paths with a bottleneck link (holder) that cross another link.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace topoopt {

// Entry (holder, crossed) is the sum of the weights of paths with that bottleneck that cross the
// other link. Rows and columns can be iterated; empty entries are not stored.
class LinkPairs {
 public:
  struct Cell {
    int link;  // row: the crossed one; column: the holder
    int twin;  // position of the entry in the other list
    double weight;
  };

  // Forgets all entries.
  void reset(size_t links);

  const std::vector<Cell>& row(int holder) const { return rows_[holder]; }
  const std::vector<Cell>& column(int crossed) const { return columns_[crossed]; }

  // Adds a path to the entry; returns whether it is the first.
  bool add(int holder, int crossed, double weight) {
    const uint64_t key = keyOf(holder, crossed);
    const size_t at = find(key);
    if (slots_[at].key != key) {
      insert(at, holder, crossed, weight);
      return true;
    }
    ++slots_[at].paths;
    adjust(slots_[at].at, holder, crossed, weight);
    return false;
  }

  // Removes a path from the entry; returns whether it was the last.
  bool remove(int holder, int crossed, double weight) {
    const size_t at = find(keyOf(holder, crossed));
    if (--slots_[at].paths == 0) {
      drop(at, holder, crossed);
      return true;
    }
    adjust(slots_[at].at, holder, crossed, -weight);
    return false;
  }

  // Changes the weight of one path of the entry.
  void change(int holder, int crossed, double difference) {
    adjust(slots_[find(keyOf(holder, crossed))].at, holder, crossed, difference);
  }

 private:
  struct Slot {
    uint64_t key = kEmpty;
    int at = 0;  // in the row
    int paths = 0;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  static uint64_t keyOf(int holder, int crossed) {
    return static_cast<uint64_t>(holder) << 32 | static_cast<uint32_t>(crossed);
  }
  size_t home(uint64_t key) const { return (key * 0x9e3779b97f4a7c15) >> shift_; }
  // Returns its slot, or the empty one to insert at.
  size_t find(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = home(key);
    while (slots_[slot].key != key && slots_[slot].key != kEmpty) slot = (slot + 1) & mask;
    return slot;
  }
  void adjust(int in_row, int holder, int crossed, double difference) {
    Cell& cell = rows_[holder][in_row];
    cell.weight += difference;
    columns_[crossed][cell.twin].weight = cell.weight;
  }
  void insert(size_t at, int holder, int crossed, double weight);
  void drop(size_t slot, int holder, int crossed);
  void grow();
  void erase(size_t slot);

  std::vector<std::vector<Cell>> rows_, columns_;
  std::vector<Slot> slots_;  // open addressing, at most half full
  int shift_ = 0;
  size_t used_ = 0;
};

}  // namespace topoopt
