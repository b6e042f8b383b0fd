// The boards of a HammingMesh as bit sets, one a row, and ways to find a virtual sub-mesh in them
// (Hoefler et al., "HammingMesh", SC 2022, sections III-E and IV-A).

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace topoopt {

// What a job asks for: `rows` x `columns` boards.
struct BoardShape {
  int rows;
  int columns;

  int boards() const { return rows * columns; }
  bool operator==(const BoardShape&) const = default;
};

// Boards that all of `rows` have in all of `columns`, both ascending.
struct SubMesh {
  std::vector<int> rows;
  std::vector<int> columns;

  bool empty() const { return rows.empty(); }
  int boards() const { return static_cast<int>(rows.size() * columns.size()); }
};

// A set of columns.
using ColumnSet = std::vector<uint64_t>;

// How a sub-mesh is chosen among those that are free.
enum class Fit {
  kFirst,      // steps 1 to 4 of section IV-A: from the first row that has enough columns
  kAllStarts,  // the same, from every further row if that fails
  kLocal,      // from all rows; the one whose all-to-all crosses least of the upper tree levels
  kTight,      // from all rows; the one that leaves the fewest free boards in its rows
};

class BoardMesh {
 public:
  // `failed` has (row, column). Throws std::invalid_argument for numbers out of range.
  BoardMesh(int rows, int columns, const std::vector<std::pair<int, int>>& failed);

  int rows() const { return rows_; }
  int columns() const { return columns_; }
  int freeBoards() const { return free_boards_; }

  // Empty where none was found. `per_leaf` boards in a row, and in a column, share a switch of the
  // lowest tree level.
  SubMesh find(BoardShape shape, Fit fit, int per_leaf) const;
  // As Fit::kLocal, of all shapes the best one, of equal ones the first; or the first whose
  // upperShare is at most `enough`.
  SubMesh findLocal(const std::vector<BoardShape>& shapes, int per_leaf, double enough) const;

  // The boards must be free.
  void take(const SubMesh& found);
  // The boards must have been taken.
  void release(const SubMesh& found);
  bool isFree(const SubMesh& wanted) const;
  bool isFree(int row, int column) const {
    return bits_[static_cast<size_t>(row) * words_ + column / 64] >> (column % 64) & 1;
  }

  // Of the bytes of an all-to-all in `found`: those through an upper level over those that enter a
  // tree, times the constant that makes it comparable between shapes of equal size. In [0, 2).
  static double upperShare(const SubMesh& found, int per_leaf);

 private:
  class LocalSearch;

  // Rows to begin at that are tried by the fits that compare.
  static constexpr size_t kMostStarts = 64;

  // What a search of Fit::kLocal from row `start` on came to at time `at`. While boards only become
  // fewer it comes to the same for as long as none of the rows it chose has changed: what it passed
  // over then, it passes over now. `share` is at least so much, unless `is_exact`; infinite where
  // there are too few rows.
  struct Searched {
    int start;
    uint64_t at;  // 0: there was none
    double share;
    bool is_exact;
    std::vector<int> rows;
  };
  // Of the last search for a shape, by start; no row before `first_open` has enough columns.
  struct LocalStarts {
    int first_open = 0;
    std::vector<Searched> searches;
  };

  bool collectRows(BoardShape shape, int start, bool wrap, std::vector<int>& rows,
                   ColumnSet& common) const;
  bool collectTightRows(BoardShape shape, int start, std::vector<int>& rows,
                        ColumnSet& common) const;
  SubMesh findTight(BoardShape shape) const;
  std::vector<int> startRows(int wanted) const;
  bool sameColumns(int a, int b) const;
  std::vector<int> firstColumns(const ColumnSet& common, int wanted) const;
  void localColumns(const ColumnSet& common, int wanted, int per_leaf, std::vector<int>& in_leaf,
                    std::vector<int>& columns) const;
  std::vector<int> tightColumns(const ColumnSet& common, int wanted) const;
  void flip(const SubMesh& found, bool to_free);
  void countLeaves(int per_leaf) const;
  void countLeavesOf(int row) const;
  const uint64_t* rowBits(int row) const { return &bits_[static_cast<size_t>(row) * words_]; }

  int rows_;
  int columns_;
  int words_;  // of 64 columns
  std::vector<uint64_t> bits_;
  std::vector<int> free_in_row_;
  std::vector<int> free_in_column_;
  std::vector<uint64_t> row_keys_;  // equal where rows have the same free columns
  int free_boards_ = 0;
  int first_open_row_ = 0;  // those above have no free board
  // For Fit::kLocal, of the last `per_leaf`: the leaf of each row among those of a column, and the
  // most free boards that the row has in one leaf of its own.
  mutable int per_leaf_ = 0;
  mutable std::vector<int> leaf_of_;
  mutable std::vector<int> most_in_leaf_;
  uint64_t changes_ = 0;
  std::vector<uint64_t> changed_at_;  // per row
  // Since boards were released last.
  mutable std::map<std::pair<int, int>, LocalStarts> local_starts_;
};

}  // namespace topoopt
