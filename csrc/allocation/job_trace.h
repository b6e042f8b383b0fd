// Allocation of boards to a sequence of jobs, and its improvement.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocation/board_mesh.h"

namespace topoopt {

// The requests of all jobs, grouped by equal kinds.
struct JobKinds {
  // Shapes of each kind, in order of preference.
  std::vector<std::vector<BoardShape>> shapes;
  std::vector<int> kind_of;  // by job

  size_t jobs() const { return kind_of.size(); }
  const std::vector<BoardShape>& shapesOf(int job) const { return shapes[kind_of[job]]; }
};

// Returns one sub-mesh per job, empty if none was found, and takes them from `mesh`. A job gets its
// first possible shape; with kLocal that of the least upperShare, with kTight the one with most
// remaining.
std::vector<SubMesh> allocateInOrder(BoardMesh& mesh, const JobKinds& jobs,
                                     const std::vector<int>& order, Fit fit, int per_leaf);

// Ruin and recreate: removes some jobs and places them and the unplaced ones again, `rounds` times;
// keeps results with no fewer boards. `placed` must be taken from `mesh`, before and after.
void improveAllocation(BoardMesh& mesh, const JobKinds& jobs, std::vector<SubMesh>& placed,
                       int rounds, uint64_t seed);

}  // namespace topoopt
