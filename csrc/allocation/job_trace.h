// Jobs that are given boards one after the other, and the search for a better allocation of all.

#pragma once

#include <cstdint>
#include <vector>

#include "allocation/board_mesh.h"

namespace topoopt {

// Every job: the shapes that it takes, the one to try first at the front.
using JobShapes = std::vector<std::vector<BoardShape>>;

// One sub-mesh for each job, empty where none was found. Takes them from `mesh`. A job gets the
// first of its shapes for which there is one, with kLocal that of the least upperShare, and with
// kTight the one that is left of most.
std::vector<SubMesh> allocateInOrder(BoardMesh& mesh, const JobShapes& jobs,
                                     const std::vector<int>& order, Fit fit, int per_leaf);

// Ruin and recreate: takes some jobs away and places them and those without boards again, `rounds`
// times; keeps what has no fewer boards. `placed` must be taken from `mesh`, and is afterwards.
void improveAllocation(BoardMesh& mesh, const JobShapes& jobs, std::vector<SubMesh>& placed,
                       int rounds, uint64_t seed);

}  // namespace topoopt
