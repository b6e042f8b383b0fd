// Fit::kLocal: the sub-mesh whose all-to-all crosses the upper levels least, among those that begin
// at each of the first rows.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocation/board_mesh.h"
#include "allocation/leaves.h"

namespace topoopt {

// What cannot be better than the best one so far is left as soon as that is known, and what the
// last search for the same shape has found is taken from there where it still holds.
class BoardMesh::LocalSearch {
 public:
  LocalSearch(const BoardMesh& mesh, int per_leaf);

  // Changes `best` to what is better than `best_share`, or no worse than `enough`.
  void improve(BoardShape shape, double enough, SubMesh& best, double& best_share);

 private:
  // A row at which sub-meshes may begin. `known`: what was found there the last time still holds.
  // Else only the rows that were chosen before `resume_at` are left (-1: behind the last of them).
  struct Start {
    Searched search;
    bool known;
    int resume_at;
  };

  bool open(int row) const { return mesh_.free_in_row_[row] >= shape_.columns; }
  int leafOf(int row) const { return mesh_.leaf_of_[row]; }
  bool enoughRows() const;
  int openRows(int first, int end) const;
  bool nextStart();
  double leastKnown(size_t from, double enough);
  void keepUnchanged(Start& start) const;
  void search(Start& start, double best_share, double limit);
  SubMesh subMesh(const Searched& found);
  int64_t together(int count) const;
  int64_t mostWithLeaf(int open, int least, int most) const;
  void boundColumns(int most_in_leaf, double best_share);
  bool fitsWith(int row) const;
  void narrow(int row);
  bool collect(const Start& from, double best_share);

  const BoardMesh& mesh_;
  const int per_leaf_;
  BoardShape shape_{1, 1};
  // Of the present shape: the rows at which it may begin, as far as they are known, and what was
  // found the last time.
  std::vector<Start> starts_;
  LocalStarts before_;
  size_t next_before_ = 0;
  int next_row_ = 0;
  int first_open_ = 0;  // no row before it is open
  // Of one start.
  int most_in_leaf_ = 0;       // columns that all rows so far may have
  double least_columns_ = 0;   // that cross, where each leaf has so many
  int64_t needed_ = 0;         // pairs of rows that are together where a sub-mesh is better
  bool has_all_seen_ = false;  // it was not left early
  std::vector<int> rows_;
  std::vector<int> columns_;
  ColumnSet common_;
  struct Word {
    uint64_t bits;
    int place;
  };
  std::vector<Word> used_;  // of common_, those that are not 0
  std::vector<int> in_leaf_;
};

}  // namespace topoopt
