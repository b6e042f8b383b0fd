// Fit::kLocal: the sub-mesh with the least all-to-all traffic on upper levels, among those from
// each of the first rows.

#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "allocation/board_mesh.h"
#include "allocation/leaves.h"

namespace topoopt {

// Branch and bound, with reuse of the last search's results for the same shape while they are
// valid.
class BoardMesh::LocalSearch {
 public:
  LocalSearch(const BoardMesh& mesh, int per_leaf);

  int perLeaf() const { return per_leaf_; }

  SubMesh find(const std::vector<BoardShape>& shapes, double enough);

  // The boards of `own`, with columns `mask`, were taken or released.
  void changed(const SubMesh& own, const ColumnSet& mask, bool to_free);

 private:
  // The result of a search from row `start` at time `at`. While boards only decrease, it stays
  // valid until one of its rows changes, because skipped rows stay unsuitable. `share` is a lower
  // bound unless `is_exact`; infinite if there are too few rows.
  struct Searched {
    int start;
    uint64_t at;  // 0: none
    double share;
    bool is_exact;
    std::vector<int> rows;
  };
  // Results of a shape's last search by start; no row before `first_open` has enough columns.
  struct LocalStarts {
    int first_open = 0;
    std::vector<Searched> searches;
  };
  // A starting row. `known`: its last result is still valid. Else rows chosen before `resume_at`
  // are valid (-1: all of them).
  struct Start {
    Searched search;
    bool known;
    int resume_at;
  };
  // The last result of find() if it began at the first open row for the first shape. After its
  // boards are taken, the same rows result while they have enough common columns, because skipped
  // rows stay unsuitable. Consecutive jobs of one kind are mostly served from it.
  struct First {
    BoardShape shape{0, 0};
    SubMesh own;
    ColumnSet common;  // common columns of its rows
    bool is_taken = false;
  };

  // Replaces `best` by a result below `best_share`, or of at most `enough`.
  void improve(BoardShape shape, double enough, SubMesh& best, double& best_share);
  void forgetFirst();
  bool findAgain(BoardShape shape, double enough);
  bool open(int row) const { return mesh_.free_in_row_[row] >= shape_.columns; }
  int leafOf(int row) const { return leaf_of_[row]; }
  int mostInLeafOf(int row);
  bool enoughRows() const;
  int openRows(int first, int end) const;
  bool nextStart();
  double leastKnown(size_t from, double enough);
  void keepUnchanged(Start& start) const;
  void search(Start& start, double best_share, double limit);
  SubMesh subMesh(const Searched& found);
  void chooseColumns(int wanted);
  int64_t together(int count) const;
  int64_t mostWithLeaf(int open, int least, int most) const;
  void boundColumns(int most_in_leaf, double best_share);
  bool fitsWith(int row) const;
  void narrow(int row);
  bool collect(const Start& from, double best_share);

  const BoardMesh& mesh_;
  const int per_leaf_;
  std::vector<int> leaf_of_;       // per row, in a column's tree
  std::vector<int> most_in_leaf_;  // per row: maximum free boards in a leaf; -1: unknown
  uint64_t changes_ = 1;
  std::vector<uint64_t> changed_at_;  // per row
  // By shape, since the last release of boards.
  std::unordered_map<uint64_t, LocalStarts> last_;
  First first_;
  BoardShape shape_{1, 1};
  // The current shape's known starting rows and their last results.
  std::vector<Start> starts_;
  LocalStarts before_;
  size_t next_before_ = 0;
  int next_row_ = 0;
  int first_open_ = 0;  // no row before it is open
  // State of one start.
  int columns_in_leaf_ = 0;    // limit for all rows so far
  double least_columns_ = 0;   // lower bound of crossing columns per leaf limit
  int64_t needed_ = 0;         // row pairs within a leaf that an improvement requires
  bool has_all_seen_ = false;  // completed without an early exit
  std::vector<int> rows_;
  std::vector<int> columns_;
  ColumnSet common_;
  struct Word {
    uint64_t bits;
    int place;
  };
  std::vector<Word> used_;  // nonzero words of common_
  std::vector<int> in_leaf_;
};

}  // namespace topoopt
