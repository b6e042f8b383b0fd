// The boards of a HammingMesh as one bit set per row, and searches for a virtual sub-mesh (Hoefler
// et al., "HammingMesh", SC 2022, sections III-E and IV-A).

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace topoopt {

// The boards that a job requests.
struct BoardShape {
  int rows;
  int columns;

  int boards() const { return rows * columns; }
  bool operator==(const BoardShape&) const = default;
};

// The boards at the crossings of `rows` and `columns`, both ascending.
struct SubMesh {
  std::vector<int> rows;
  std::vector<int> columns;

  bool empty() const { return rows.empty(); }
  int boards() const { return static_cast<int>(rows.size() * columns.size()); }
  bool operator==(const SubMesh&) const = default;
};

// A set of columns.
using ColumnSet = std::vector<uint64_t>;

// Selection among the free sub-meshes.
enum class Fit {
  kFirst,      // steps 1 to 4 of section IV-A, from the first row with enough columns
  kAllStarts,  // the same, from every later row after a failure
  kLocal,      // all rows; least all-to-all traffic on upper tree levels
  kTight,      // all rows; fewest free boards left in its rows
};

class BoardMesh {
 public:
  // `failed` lists (row, column). Throws std::invalid_argument for numbers out of range.
  BoardMesh(int rows, int columns, const std::vector<std::pair<int, int>>& failed);
  BoardMesh(const BoardMesh&) = delete;
  BoardMesh& operator=(const BoardMesh&) = delete;
  ~BoardMesh();

  int rows() const { return rows_; }
  int columns() const { return columns_; }
  int freeBoards() const { return free_boards_; }

  // Returns an empty mesh if none is found. `per_leaf` boards of a row, and of a column, share a
  // switch of the lowest tree level.
  SubMesh find(BoardShape shape, Fit fit, int per_leaf) const;
  // As Fit::kLocal: the first of the best over all shapes, or the first with an upperShare of at
  // most `enough`.
  SubMesh findLocal(const std::vector<BoardShape>& shapes, int per_leaf, double enough) const;

  // The boards must be free.
  void take(const SubMesh& found);
  // The boards must have been taken.
  void release(const SubMesh& found);
  bool isFree(const SubMesh& wanted) const;
  bool isFree(int row, int column) const {
    return bits_[static_cast<size_t>(row) * words_ + column / 64] >> (column % 64) & 1;
  }

  // The fraction of an all-to-all's tree traffic in `found` that crosses an upper level, scaled to
  // be comparable between shapes of equal size. In [0, 2).
  static double upperShare(const SubMesh& found, int per_leaf);

 private:
  class LocalSearch;

  // Limit of starting rows for comparing fits.
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
  std::vector<uint64_t> row_keys_;  // equal for rows with equal free columns
  int free_boards_ = 0;
  int first_open_row_ = 0;                      // no earlier row has a free board
  mutable std::unique_ptr<LocalSearch> local_;  // for the last `per_leaf`
  ColumnSet mask_;                              // scratch of flip()
};

}  // namespace topoopt
