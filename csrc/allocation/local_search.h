// Fit::kLocal: the sub-mesh whose all-to-all crosses the upper levels least, among those that begin
// at each of the first rows.

#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "allocation/board_mesh.h"
#include "allocation/leaves.h"

namespace topoopt {

// What cannot be better than the best one so far is left as soon as that is known, and what the
// last search for the same shape has found is taken from there where it still holds.
class BoardMesh::LocalSearch {
 public:
  LocalSearch(const BoardMesh& mesh, int per_leaf);

  int perLeaf() const { return per_leaf_; }

  // BoardMesh::findLocal.
  SubMesh find(const std::vector<BoardShape>& shapes, double enough);

  // The boards of `own`, whose columns are `mask`, have been taken, or are free again.
  void changed(const SubMesh& own, const ColumnSet& mask, bool to_free);

 private:
  // What a search from row `start` on came to at time `at`. While boards only become fewer it comes
  // to the same for as long as none of the rows it chose has changed: what it passed over then, it
  // passes over now. `share` is at least so much, unless `is_exact`; infinite where there are too
  // few rows.
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
  // A row at which sub-meshes may begin. `known`: what was found there the last time still holds.
  // Else only the rows that were chosen before `resume_at` are left (-1: behind the last of them).
  struct Start {
    Searched search;
    bool known;
    int resume_at;
  };
  // What find() came to, where that begins at the first row that is open for the first of the
  // shapes. Once its boards are taken, the same rows come out for as long as they have enough
  // columns in common: all that was passed over still has too few. Jobs of one kind that follow
  // each other get most of their boards so.
  struct First {
    BoardShape shape{0, 0};
    SubMesh own;
    ColumnSet common;  // columns that its rows have in common
    bool is_taken = false;
  };

  // Changes `best` to what is better than `best_share`, or no worse than `enough`.
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
  std::vector<int> leaf_of_;       // each row, among those of a column
  std::vector<int> most_in_leaf_;  // free boards of each row in a leaf of its own; -1: not known
  uint64_t changes_ = 1;
  std::vector<uint64_t> changed_at_;  // per row
  // Since boards were released last, by shape.
  std::unordered_map<uint64_t, LocalStarts> last_;
  First first_;
  BoardShape shape_{1, 1};
  // Of the present shape: the rows at which it may begin, as far as they are known, and what was
  // found the last time.
  std::vector<Start> starts_;
  LocalStarts before_;
  size_t next_before_ = 0;
  int next_row_ = 0;
  int first_open_ = 0;  // no row before it is open
  // Of one start.
  int columns_in_leaf_ = 0;    // that all rows so far may have
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
