// Which operators in a row may get the placements of which others.

#pragma once

#include <vector>

#include "sim/iteration/job.h"

namespace topoopt {

// Rows are operators of which each reads the one before: for each operator, one more than the last
// of its row. Layers are in rows; each of many tables is a row of its own.
std::vector<int> endsOfRows(const Job& job);

// The operators to, to + 1, ... get what from, from + 1, ... have: `length` of them.
struct Block {
  int from, to, length;
};

// Layers repeat, and the best strategy of many in a row is a pattern of a few placements, with a
// break here and there. A pattern that begins a layer earlier, or whose break is elsewhere, differs
// in so many operators that no change of a few leads there. Each part of a block is in one row;
// both are of the same kinds (`kind_of_operator`), one by one. The longest come first; there are
// not all lengths above 8.
std::vector<Block> blocksOf(const Job& job, const std::vector<int>& kind_of_operator);

}  // namespace topoopt
