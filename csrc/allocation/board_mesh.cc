#include "allocation/board_mesh.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "allocation/leaves.h"
#include "allocation/local_search.h"

namespace topoopt {
namespace {

// Inlined into its callers, which are compiled for faster bit counts.
[[gnu::always_inline]] inline int meeting(const uint64_t* a, const uint64_t* b, int words) {
  int count = 0;
  for (int w = 0; w < words; ++w) count += std::popcount(a[w] & b[w]);
  return count;
}

template <typename Visit>
void eachColumn(const ColumnSet& set, Visit visit) {
  for (size_t w = 0; w < set.size(); ++w) {
    for (uint64_t rest = set[w]; rest != 0; rest &= rest - 1) {
      visit(static_cast<int>(w * 64) + std::countr_zero(rest));
    }
  }
}

// Hash key of a column: equal column sets of rows have equal exclusive ors. Collisions have a
// probability of 2^-64; take() would reject them.
uint64_t keyOf(int column) {
  uint64_t key = (static_cast<uint64_t>(column) + 1) * 0x9e3779b97f4a7c15;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
  key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
  return key ^ (key >> 31);
}

}  // namespace

BoardMesh::BoardMesh(int rows, int columns, const std::vector<std::pair<int, int>>& failed)
    : rows_(rows), columns_(columns), words_((columns + 63) / 64) {
  if (rows < 1 || columns < 1) throw std::invalid_argument("boards: fewer than one row or column");
  bits_.assign(static_cast<size_t>(rows) * words_, 0);
  free_in_row_.assign(rows, 0);
  row_keys_.assign(rows, 0);
  free_in_column_.assign(columns, 0);
  SubMesh all{std::vector<int>(rows), std::vector<int>(columns)};
  std::iota(all.rows.begin(), all.rows.end(), 0);
  std::iota(all.columns.begin(), all.columns.end(), 0);
  flip(all, true);
  for (const auto& [row, column] : failed) {
    if (row < 0 || row >= rows || column < 0 || column >= columns) {
      throw std::invalid_argument("failed: [" + std::to_string(row) + ", " +
                                  std::to_string(column) + "] is not a row and a column of " +
                                  std::to_string(rows) + " rows and " + std::to_string(columns) +
                                  " columns");
    }
    if (isFree(row, column)) flip({{row}, {column}}, false);
  }
}

BoardMesh::~BoardMesh() = default;

SubMesh BoardMesh::find(BoardShape shape, Fit fit, int per_leaf) const {
  if (shape.rows < 1 || shape.columns < 1) throw std::invalid_argument("shape: an empty one");
  if (per_leaf < 1) throw std::invalid_argument("boards per leaf: fewer than one");
  if (shape.rows > rows_ || shape.columns > columns_ || shape.boards() > free_boards_) return {};
  if (fit == Fit::kLocal) return findLocal({shape}, per_leaf, 0);
  if (fit == Fit::kTight) return findTight(shape);
  std::vector<int> rows;
  ColumnSet common;
  for (int start = first_open_row_; start < rows_; ++start) {
    if (free_in_row_[start] < shape.columns) continue;
    if (collectRows(shape, start, false, rows, common)) {
      return {rows, firstColumns(common, shape.columns)};
    }
    // Too few rows remain for any later start.
    if (fit == Fit::kFirst || rows_ - start <= shape.rows) break;
  }
  return {};
}

void BoardMesh::take(const SubMesh& found) {
  if (!isFree(found)) throw std::invalid_argument("boards: some are not free");
  flip(found, false);
  while (first_open_row_ < rows_ && free_in_row_[first_open_row_] == 0) ++first_open_row_;
}

void BoardMesh::release(const SubMesh& found) {
  for (int row : found.rows) {
    for (int column : found.columns) {
      if (isFree(row, column)) throw std::invalid_argument("boards: some were not taken");
    }
    first_open_row_ = std::min(first_open_row_, row);
  }
  flip(found, true);
}

bool BoardMesh::isFree(const SubMesh& wanted) const {
  for (int row : wanted.rows) {
    for (int column : wanted.columns) {
      if (!isFree(row, column)) return false;
    }
  }
  return true;
}

double BoardMesh::upperShare(const SubMesh& found, int per_leaf) {
  return crossing(found.rows, per_leaf) + crossing(found.columns, per_leaf);
}

// Steps 2 to 4: collects every row from `start` on that leaves enough columns.
TOPOOPT_COUNTS_BITS bool BoardMesh::collectRows(BoardShape shape, int start, bool wrap,
                                                std::vector<int>& rows, ColumnSet& common) const {
  rows.assign(1, start);
  common.assign(rowBits(start), rowBits(start) + words_);
  const int end = wrap ? start + rows_ : rows_;
  for (int i = start + 1; i < end && static_cast<int>(rows.size()) < shape.rows; ++i) {
    const int row = i < rows_ ? i : i - rows_;
    if (free_in_row_[row] < shape.columns) continue;
    if (meeting(common.data(), rowBits(row), words_) < shape.columns) continue;
    for (int w = 0; w < words_; ++w) common[w] &= rowBits(row)[w];
    rows.push_back(row);
  }
  std::sort(rows.begin(), rows.end());
  return static_cast<int>(rows.size()) == shape.rows;
}

// Like collectRows, but always picks the row with the most common columns, ties by the fewest
// others.
TOPOOPT_COUNTS_BITS bool BoardMesh::collectTightRows(BoardShape shape, int start,
                                                     std::vector<int>& rows,
                                                     ColumnSet& common) const {
  rows.assign(1, start);
  common.assign(rowBits(start), rowBits(start) + words_);
  std::vector<std::pair<int, int>> open;  // (common columns, row); the counts only decrease
  for (int row = 0; row < rows_; ++row) {
    if (row != start && free_in_row_[row] >= shape.columns) open.emplace_back(INT_MAX, row);
  }
  while (static_cast<int>(rows.size()) < shape.rows) {
    size_t best = open.size();
    int best_shared = shape.columns - 1;
    for (size_t i = 0; i < open.size(); ++i) {
      if (open[i].first < std::max(best_shared, shape.columns)) continue;
      const int row = open[i].second;
      const int shared = open[i].first = meeting(common.data(), rowBits(row), words_);
      if (shared < shape.columns) continue;
      if (shared > best_shared || (shared == best_shared && best < open.size() &&
                                   free_in_row_[row] < free_in_row_[open[best].second])) {
        best_shared = shared;
        best = i;
      }
    }
    if (best == open.size()) return false;
    const int row = open[best].second;
    for (int w = 0; w < words_; ++w) common[w] &= rowBits(row)[w];
    rows.push_back(row);
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(best));
  }
  std::sort(rows.begin(), rows.end());
  return true;
}

SubMesh BoardMesh::findLocal(const std::vector<BoardShape>& shapes, int per_leaf,
                             double enough) const {
  if (local_ == nullptr || local_->perLeaf() != per_leaf) {
    local_ = std::make_unique<LocalSearch>(*this, per_leaf);
  }
  return local_->find(shapes, enough);
}

SubMesh BoardMesh::findTight(BoardShape shape) const {
  SubMesh best;
  int best_left = INT_MAX;
  std::vector<int> rows;
  ColumnSet common;
  for (int start : startRows(shape.columns)) {
    if (!collectTightRows(shape, start, rows, common)) continue;
    int left = -shape.boards();
    for (int row : rows) left += free_in_row_[row];
    if (left >= best_left) continue;
    best = {rows, tightColumns(common, shape.columns)};
    best_left = left;
    if (left == 0) break;
  }
  return best;
}

// Rows with at least `wanted` free columns, one per run of equal rows; if there are many, those
// with the fewest columns.
std::vector<int> BoardMesh::startRows(int wanted) const {
  std::vector<int> starts;
  for (int row = first_open_row_; row < rows_; ++row) {
    if (free_in_row_[row] < wanted) continue;
    if (starts.empty() || !sameColumns(starts.back(), row)) starts.push_back(row);
  }
  if (starts.size() > kMostStarts) {
    std::stable_sort(starts.begin(), starts.end(),
                     [&](int a, int b) { return free_in_row_[a] < free_in_row_[b]; });
    starts.resize(kMostStarts);
  }
  return starts;
}

bool BoardMesh::sameColumns(int a, int b) const {
  return row_keys_[a] == row_keys_[b] && std::equal(rowBits(a), rowBits(a) + words_, rowBits(b));
}

std::vector<int> BoardMesh::firstColumns(const ColumnSet& common, int wanted) const {
  std::vector<int> columns;
  columns.reserve(wanted);
  for (size_t w = 0; w < common.size(); ++w) {
    for (uint64_t rest = common[w]; rest != 0; rest &= rest - 1) {
      columns.push_back(static_cast<int>(w * 64) + std::countr_zero(rest));
      if (static_cast<int>(columns.size()) == wanted) return columns;
    }
  }
  return columns;
}

// The columns with the fewest free boards.
std::vector<int> BoardMesh::tightColumns(const ColumnSet& common, int wanted) const {
  std::vector<int> columns;
  eachColumn(common, [&](int column) { columns.push_back(column); });
  std::stable_sort(columns.begin(), columns.end(),
                   [&](int a, int b) { return free_in_column_[a] < free_in_column_[b]; });
  columns.resize(wanted);
  std::sort(columns.begin(), columns.end());
  return columns;
}

void BoardMesh::flip(const SubMesh& found, bool to_free) {
  const int change = to_free ? 1 : -1;
  mask_.assign(static_cast<size_t>(words_), 0);
  uint64_t key = 0;
  for (int column : found.columns) {
    mask_[column / 64] |= uint64_t{1} << (column % 64);
    key ^= keyOf(column);
  }
  for (int row : found.rows) {
    uint64_t* bits = &bits_[static_cast<size_t>(row) * words_];
    for (int w = 0; w < words_; ++w) bits[w] ^= mask_[w];
    row_keys_[row] ^= key;
    free_in_row_[row] += change * static_cast<int>(found.columns.size());
  }
  for (int column : found.columns) {
    free_in_column_[column] += change * static_cast<int>(found.rows.size());
  }
  free_boards_ += change * found.boards();
  if (local_ != nullptr) local_->changed(found, mask_, to_free);
}

}  // namespace topoopt
