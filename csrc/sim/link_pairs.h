// How much of what one link holds back crosses each other link: a sparse matrix of links.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace topoopt {

// Entry (holder, crossed) is a sum of weights, one for each path that the holder holds back and
// that crosses the other link. Rows and columns can be walked; entries without paths are not
// stored, so memory is in proportion to what is there.
class LinkPairs {
 public:
  struct Cell {
    int link;  // in a row the crossed one, in a column the holder
    int twin;  // position of the same entry in the column of `link`, or in its row
    double weight;
  };

  // Forgets all entries.
  void reset(size_t links);

  const std::vector<Cell>& row(int holder) const { return rows_[holder]; }
  const std::vector<Cell>& column(int crossed) const { return columns_[crossed]; }

  // Adds a path to the entry; whether it is the first.
  bool add(int holder, int crossed, double weight);

  // Takes a path out of the entry, which has it; whether it was the last.
  bool remove(int holder, int crossed, double weight);

  // Changes the weight of one path of the entry.
  void change(int holder, int crossed, double difference);

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
  size_t find(uint64_t key) const;  // its slot, or the empty one where it belongs
  void grow();
  void erase(size_t slot);

  std::vector<std::vector<Cell>> rows_, columns_;
  std::vector<Slot> slots_;  // open addressing, at most half full
  int shift_ = 0;
  size_t used_ = 0;
};

}  // namespace topoopt
