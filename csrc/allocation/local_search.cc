#include "allocation/local_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace topoopt {
namespace {

constexpr double kRounding = 1e-7;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Number of chosen rows per leaf as the search proceeds through the leaves.
struct RowsByLeaf {
  const int first;
  int present;
  int in_first = 0;
  int in_other = 0;     // in the current leaf, before it was entered again
  int64_t settled = 0;  // pairs in completed leaves

  void enter(int leaf) {
    if (leaf != first) settled += squared(std::exchange(in_other, 0));
    present = leaf;
  }
  void add() { ++(present == first ? in_first : in_other); }
};

}  // namespace

BoardMesh::LocalSearch::LocalSearch(const BoardMesh& mesh, int per_leaf)
    : mesh_(mesh),
      per_leaf_(per_leaf),
      leaf_of_(static_cast<size_t>(mesh.rows_)),
      most_in_leaf_(static_cast<size_t>(mesh.rows_), -1),
      changed_at_(static_cast<size_t>(mesh.rows_)),
      in_leaf_(static_cast<size_t>((mesh.columns_ + per_leaf - 1) / per_leaf)) {
  for (int row = 0; row < mesh.rows_; ++row) leaf_of_[row] = row / per_leaf;
}

SubMesh BoardMesh::LocalSearch::find(const std::vector<BoardShape>& shapes, double enough) {
  SubMesh best;
  if (!shapes.empty() && findAgain(shapes.front(), enough)) {
    best = {first_.own.rows, columns_};
    first_.own.columns = columns_;
    first_.is_taken = false;
    return best;
  }
  forgetFirst();
  double best_share = kInfinity;
  for (const BoardShape shape : shapes) {
    if (shape.rows > mesh_.rows_ || shape.columns > mesh_.columns_ ||
        shape.boards() > mesh_.free_boards_) {
      continue;
    }
    improve(shape, enough, best, best_share);
    if (best_share <= enough) break;
  }
  return best;
}

bool BoardMesh::LocalSearch::findAgain(BoardShape shape, double enough) {
  if (!first_.is_taken || first_.shape != shape) return false;
  common_ = first_.common;
  int count = 0;
  for (const uint64_t word : common_) count += std::popcount(word);
  if (count < shape.columns) return false;
  chooseColumns(shape.columns);
  return crossing(first_.own.rows, per_leaf_) + crossing(columns_, per_leaf_) <= enough;
}

void BoardMesh::LocalSearch::forgetFirst() {
  first_.own = {};
  first_.is_taken = false;
}

void BoardMesh::LocalSearch::changed(const SubMesh& own, const ColumnSet& mask, bool to_free) {
  ++changes_;
  if (to_free) last_.clear();
  for (const int row : own.rows) {
    changed_at_[row] = changes_;
    most_in_leaf_[row] = -1;
  }
  if (own.empty()) return;
  if (to_free || first_.is_taken || own != first_.own) {
    forgetFirst();
    return;
  }
  first_.is_taken = true;
  for (int w = 0; w < mesh_.words_; ++w) first_.common[w] &= ~mask[w];
}

void BoardMesh::LocalSearch::improve(BoardShape shape, double enough, SubMesh& best,
                                     double& best_share) {
  const bool is_first = std::isinf(best_share);  // no earlier shape has a result
  shape_ = shape;
  boundColumns(per_leaf_, best_share);
  const double least = crossing(mostTogether(shape.rows, per_leaf_), shape.rows) + least_columns_;
  if (least >= best_share) return;
  LocalStarts& kept = last_[static_cast<uint64_t>(shape.rows) << 32 | shape.columns];
  first_open_ = std::max(mesh_.first_open_row_, kept.first_open);
  while (first_open_ < mesh_.rows_ && !open(first_open_)) ++first_open_;
  kept.first_open = first_open_;
  if (!enoughRows()) return;
  before_ = std::move(kept);
  next_before_ = 0;
  next_row_ = first_open_;
  starts_.clear();
  enough = std::max(least, enough);
  double limit = -1;  // upper bound of the result; negative: unknown
  size_t found = kMostStarts;
  for (size_t i = 0; (i < starts_.size() || nextStart()) && best_share > enough; ++i) {
    if (starts_[i].known && starts_[i].search.share >= best_share) continue;
    if (!starts_[i].known || !starts_[i].search.is_exact) {
      if (limit < 0) limit = leastKnown(i + 1, enough);
      search(starts_[i], best_share, limit);
      if (!starts_[i].search.is_exact || starts_[i].search.share >= best_share) continue;
    }
    best_share = starts_[i].search.share;
    found = i;
  }
  if (found < starts_.size()) {
    best = subMesh(starts_[found].search);
    if (found == 0 && is_first) {
      first_ = {shape, best, common_, false};
    } else {
      forgetFirst();
    }
  }
  // The rest may be valid next time.
  kept.first_open = first_open_;
  kept.searches.clear();
  for (Start& start : starts_) {
    if (start.search.at > 0) kept.searches.push_back(std::move(start.search));
  }
  const int last = starts_.empty() ? -1 : starts_.back().search.start;
  for (; next_before_ < before_.searches.size(); ++next_before_) {
    Searched& behind = before_.searches[next_before_];
    if (behind.start > last) kept.searches.push_back(std::move(behind));
  }
}

bool BoardMesh::LocalSearch::enoughRows() const {
  int count = 0;
  for (int row = first_open_; row < mesh_.rows_ && count < shape_.rows; ++row) count += open(row);
  return count >= shape_.rows;
}

int BoardMesh::LocalSearch::openRows(int first, int end) const {
  int count = 0;
  for (int row = first; row < end; ++row) count += open(row);
  return count;
}

// Adds the next starting row; only the first of equal consecutive rows in a leaf.
bool BoardMesh::LocalSearch::nextStart() {
  if (starts_.size() == kMostStarts) return false;
  const int last = starts_.empty() ? -1 : starts_.back().search.start;
  for (; next_row_ < mesh_.rows_; ++next_row_) {
    const int row = next_row_;
    if (!open(row)) continue;
    if (last >= 0 && leafOf(last) == leafOf(row) && mesh_.row_keys_[last] == mesh_.row_keys_[row]) {
      continue;
    }
    std::vector<Searched>& before = before_.searches;
    while (next_before_ < before.size() && before[next_before_].start < row) ++next_before_;
    if (next_before_ < before.size() && before[next_before_].start == row) {
      starts_.push_back({std::move(before[next_before_++]), true, -1});
      keepUnchanged(starts_.back());
    } else {
      starts_.push_back({{row, 0, 0, false, {}}, false, -1});
    }
    ++next_row_;
    return true;
  }
  return false;
}

// Keeps the chosen rows before the first change.
void BoardMesh::LocalSearch::keepUnchanged(Start& start) const {
  std::vector<int>& rows = start.search.rows;
  const auto changed =
      std::ranges::find_if(rows, [&](int row) { return changed_at_[row] > start.search.at; });
  if (changed == rows.end()) return;
  start.known = start.search.is_exact = false;
  start.search.share = 0;
  if (changed != rows.begin()) start.resume_at = *changed;
  rows.erase(changed, rows.end());
}

// Returns the least known share of starts from number `from` on, or the first of at most `enough`.
double BoardMesh::LocalSearch::leastKnown(size_t from, double enough) {
  double least = kInfinity;
  for (size_t i = from; least > enough && (i < starts_.size() || nextStart()); ++i) {
    if (starts_[i].known && starts_[i].search.is_exact) {
      least = std::min(least, starts_[i].search.share);
    }
  }
  return std::max(least, enough);
}

// Searches from `start`, unless its share is at least `best_share`, or above `limit`.
void BoardMesh::LocalSearch::search(Start& start, double best_share, double limit) {
  // Shares are multiples of 1 / boards^2; the bound below rounds by this.
  const double above = limit + 4 * kRounding / static_cast<double>(squared(shape_.rows));
  const double cut = std::min(best_share, above);
  const bool is_found = collect(start, cut);
  Searched& result = start.search;
  start.known = true;
  result.at = changes_;
  result.share = has_all_seen_ && !is_found ? kInfinity : std::min(best_share, limit);
  result.is_exact = false;
  result.rows = rows_;
  if (!is_found) return;
  std::sort(rows_.begin(), rows_.end());
  const double rows_share = crossing(rows_, per_leaf_);
  if (rows_share + least_columns_ >= cut) return;
  chooseColumns(shape_.columns);
  result.share = rows_share + crossing(columns_, per_leaf_);
  result.is_exact = true;
}

SubMesh BoardMesh::LocalSearch::subMesh(const Searched& found) {
  common_.assign(static_cast<size_t>(mesh_.words_), ~uint64_t{0});
  for (const int row : found.rows) {
    for (int w = 0; w < mesh_.words_; ++w) common_[w] &= mesh_.rowBits(row)[w];
  }
  chooseColumns(shape_.columns);
  std::vector<int> rows = found.rows;
  std::sort(rows.begin(), rows.end());
  return {std::move(rows), columns_};
}

// Chooses columns of common_: from the leaf with the fewest that suffices; else from the fullest
// leaf and then from the others.
void BoardMesh::LocalSearch::chooseColumns(int wanted) {
  countInLeaves(common_.data(), mesh_.columns_, per_leaf_, in_leaf_.data());
  columns_.clear();
  while (static_cast<int>(columns_.size()) < wanted) {
    const int missing = wanted - static_cast<int>(columns_.size());
    int best = 0;
    for (int leaf = 1; leaf < static_cast<int>(in_leaf_.size()); ++leaf) {
      const bool enough = in_leaf_[leaf] >= missing;
      const bool best_enough = in_leaf_[best] >= missing;
      const bool fewer = in_leaf_[leaf] < in_leaf_[best];
      if (enough ? !best_enough || fewer : !best_enough && in_leaf_[leaf] > in_leaf_[best]) {
        best = leaf;
      }
    }
    int left = std::min(missing, in_leaf_[best]);
    for (int column = best * per_leaf_; left > 0; ++column) {
      if (common_[column / 64] >> (column % 64) & 1) {
        columns_.push_back(column);
        --left;
      }
    }
    in_leaf_[best] = 0;
  }
  std::sort(columns_.begin(), columns_.end());
}

int BoardMesh::LocalSearch::mostInLeafOf(int row) {
  int& most = most_in_leaf_[row];
  if (most < 0) most = mostInLeaf(mesh_.rowBits(row), mesh_.columns_, per_leaf_);
  return most;
}

// Upper bound of ordered pairs of `count` rows within a leaf.
int64_t BoardMesh::LocalSearch::together(int count) const {
  return static_cast<int64_t>(count) * std::min(count, per_leaf_);
}

// Upper bound of such pairs if `open` rows remain, with `least` to `most` of them in this leaf and
// the rest in whole other leaves.
int64_t BoardMesh::LocalSearch::mostWithLeaf(int open, int least, int most) const {
  most = std::min(most, open);
  const int kink = std::clamp(open - per_leaf_, least, most);
  int64_t best = 0;
  for (const int there : {least, kink, most}) {
    best = std::max(best, squared(there) + together(open - there));
  }
  return best;
}

// Bounds the columns if rows have at most this many per leaf.
void BoardMesh::LocalSearch::boundColumns(int most_in_leaf, double best_share) {
  columns_in_leaf_ = most_in_leaf;
  least_columns_ = crossing(mostTogether(shape_.columns, most_in_leaf), shape_.columns);
  // Shares are multiples of 1 / boards^2; a smaller excess is a rounding error.
  const double pairs = static_cast<double>(squared(shape_.rows));
  const double equal = (1 - best_share + least_columns_) * pairs;
  needed_ = std::isinf(equal) ? 0 : static_cast<int64_t>(std::floor(equal + kRounding)) + 1;
}

[[gnu::always_inline]] inline bool BoardMesh::LocalSearch::fitsWith(int row) const {
  const uint64_t* bits = mesh_.rowBits(row);
  int count = 0;
  for (const auto& [word, place] : used_) count += std::popcount(word & bits[place]);
  return count >= shape_.columns;
}

// Intersects common_ with `row`.
void BoardMesh::LocalSearch::narrow(int row) {
  const uint64_t* bits = mesh_.rowBits(row);
  used_.clear();
  for (int w = 0; w < mesh_.words_; ++w) {
    common_[w] &= bits[w];
    if (common_[w] != 0) used_.push_back({common_[w], w});
  }
}

// Steps 2 to 4 from `start`, wrapping around: collects rows_ and common_. Unchanged choices of the
// last search are reused.
TOPOOPT_COUNTS_BITS bool BoardMesh::LocalSearch::collect(const Start& from, double best_share) {
  const int start = from.search.start;
  has_all_seen_ = false;
  rows_ = from.search.rows;
  if (rows_.empty()) rows_.push_back(start);
  boundColumns(mostInLeafOf(start), best_share);
  const int leaf = leafOf(start);
  const int begin = leaf * per_leaf_;
  const int back = openRows(begin, start);
  int ahead = openRows(start, std::min(mesh_.rows_, begin + per_leaf_));
  if (mostWithLeaf(shape_.rows, 1, ahead + back) < needed_) return false;
  common_.assign(static_cast<size_t>(mesh_.words_), ~uint64_t{0});
  RowsByLeaf by_leaf{leaf, leaf};
  uint64_t key = 0;
  size_t chosen = 0;
  const auto choose = [&](int row, bool known) {
    ++chosen;
    by_leaf.add();
    if (known) return;
    narrow(row);
    if (chosen == 1 || !std::has_single_bit(chosen)) return;
    const int most = mostInLeaf(common_.data(), mesh_.columns_, per_leaf_);
    if (most < columns_in_leaf_) boundColumns(most, best_share);
  };
  for (const int row : rows_) {
    if (leafOf(row) != by_leaf.present) by_leaf.enter(leafOf(row));
    choose(row, mesh_.row_keys_[row] == key);
    key = mesh_.row_keys_[row];
  }
  const int next = from.resume_at >= 0 ? from.resume_at : rows_.back() + 1;
  bool fits = true;
  for (int i = next <= start ? next + mesh_.rows_ : next; i < start + mesh_.rows_; ++i) {
    const int left = shape_.rows - static_cast<int>(rows_.size());
    if (left == 0) break;
    if (i == mesh_.rows_ && (i += first_open_) >= start + mesh_.rows_) break;
    const int row = i < mesh_.rows_ ? i : i - mesh_.rows_;
    if (!open(row)) continue;
    if (leafOf(row) != by_leaf.present) {
      by_leaf.enter(leafOf(row));
      const int unsettled = by_leaf.in_first + by_leaf.in_other + left;
      const int most_in_first = by_leaf.in_first + back;
      if (by_leaf.settled + mostWithLeaf(unsettled, by_leaf.in_first, most_in_first) < needed_) {
        return false;
      }
    }
    const bool known = mesh_.row_keys_[row] == key;  // equal to the last row
    key = mesh_.row_keys_[row];
    if (!known) fits = fitsWith(row);
    if (fits) {
      rows_.push_back(row);
      choose(row, known);
    } else if (by_leaf.present == leaf && i < mesh_.rows_) {
      --ahead;
      if (mostWithLeaf(shape_.rows, by_leaf.in_first, ahead + back) < needed_) return false;
    }
  }
  has_all_seen_ = true;
  return static_cast<int>(rows_.size()) == shape_.rows;
}

}  // namespace topoopt
