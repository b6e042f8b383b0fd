// Selects pairs of operator ranges, one of which may copy the placements of the other.

#pragma once

#include <vector>

#include "sim/iteration/job.h"

namespace topoopt {

// A row is a chain of operators that each read the previous one. Returns for each operator the end
// of its row. Layers form rows; each table is its own row.
std::vector<int> endsOfRows(const Job& job);

// Operators to, to + 1, ... copy the placements of from, from + 1, ...: `length` in total.
struct Block {
  int from, to, length;
};

// Layers repeat, and the best strategy for a row is often a pattern of a few placements with
// occasional breaks. A shifted pattern or break differs in too many operators for small moves. Each
// side of a block is in one row, with equal kinds (`kind_of_operator`) pairwise. The longest come
// first; lengths above 8 are sampled.
std::vector<Block> blocksOf(const Job& job, const std::vector<int>& kind_of_operator);

}  // namespace topoopt
