// Collectives over trees, including chains. Every tree carries its share of the elements in
// pipelined chunks. Every schedule is for the member `rank`.

#pragma once

#include <cstddef>
#include <vector>

#include "plan/schedule.h"
#include "plan/tree.h"

namespace topoopt {

struct TreeShare {
  Tree tree;
  double share = 1.0;
  int part = 0;  // traffic counter
};

// Reduces `count` elements of kInput in place on all members: up to the root and down again.
Schedule treeAllReduceSchedule(const std::vector<TreeShare>& trees, int rank, size_t count,
                               size_t element_bytes);

// Copies `count` elements of kInput from the trees' root to all members.
Schedule treeBroadcastSchedule(const std::vector<TreeShare>& trees, int rank, size_t count,
                               size_t element_bytes);

// Reduces `count` elements of kInput to kOutput at the trees' root. kInput is not changed; only the
// root uses kOutput.
Schedule treeReduceSchedule(const std::vector<TreeShare>& trees, int rank, size_t count,
                            size_t element_bytes);

}  // namespace topoopt
