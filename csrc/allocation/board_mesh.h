// The boards of a HammingMesh as bit sets, one a row, and ways to find a virtual sub-mesh in them
// (Hoefler et al., "HammingMesh", SC 2022, sections III-E and IV-A).

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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
  bool operator==(const SubMesh&) const = default;
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
  BoardMesh(const BoardMesh&) = delete;
  BoardMesh& operator=(const BoardMesh&) = delete;
  ~BoardMesh();

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

  bool collectRows(BoardShape shape, int start, bool wrap, std::vector<int>& rows,
                   ColumnSet& common) const;
  bool collectTightRows(BoardShape shape, int start, std::vector<int>& rows,
                        ColumnSet& common) const;
  SubMesh findTight(BoardShape shape) const;
  std::vector<int> startRows(int wanted) const;
  bool sameColumns(int a, int b) const;
  std::vector<int> firstColumns(const ColumnSet& common, int wanted) const;
  std::vector<int> tightColumns(const ColumnSet& common, int wanted) const;
  void flip(const SubMesh& found, bool to_free);
  const uint64_t* rowBits(int row) const { return &bits_[static_cast<size_t>(row) * words_]; }

  int rows_;
  int columns_;
  int words_;  // of 64 columns
  std::vector<uint64_t> bits_;
  std::vector<int> free_in_row_;
  std::vector<int> free_in_column_;
  std::vector<uint64_t> row_keys_;  // equal where rows have the same free columns
  int free_boards_ = 0;
  int first_open_row_ = 0;                      // those above have no free board
  mutable std::unique_ptr<LocalSearch> local_;  // of the last number of boards in a leaf
  ColumnSet mask_;                              // of flip()
};

}  // namespace topoopt
