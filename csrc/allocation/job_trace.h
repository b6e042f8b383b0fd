// Jobs that are given boards one after the other, and the search for a better allocation of all.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocation/board_mesh.h"

namespace topoopt {

// What jobs ask for. Few of many are of a kind of their own.
struct JobKinds {
  // The shapes that a job of the kind takes, the one to try first at the front.
  std::vector<std::vector<BoardShape>> shapes;
  std::vector<int> kind_of;  // each job

  size_t jobs() const { return kind_of.size(); }
  const std::vector<BoardShape>& shapesOf(int job) const { return shapes[kind_of[job]]; }
};

// One sub-mesh for each job, empty where none was found. Takes them from `mesh`. A job gets the
// first of its shapes for which there is one, with kLocal that of the least upperShare, and with
// kTight the one that is left of most.
std::vector<SubMesh> allocateInOrder(BoardMesh& mesh, const JobKinds& jobs,
                                     const std::vector<int>& order, Fit fit, int per_leaf);

// Ruin and recreate: takes some jobs away and places them and those without boards again, `rounds`
// times; keeps what has no fewer boards. `placed` must be taken from `mesh`, and is afterwards.
void improveAllocation(BoardMesh& mesh, const JobKinds& jobs, std::vector<SubMesh>& placed,
                       int rounds, uint64_t seed);

}  // namespace topoopt
