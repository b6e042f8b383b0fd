// Traffic statistics of a group's rings and trees.

#pragma once

#include <string>
#include <vector>

#include "collectives/group/call.h"
#include "plan/group_layout.h"

namespace topoopt {

// Statistics of one ring or tree.
struct RingCounters : PartCounters {
  std::string kind;        // "ring", "tree", "direct", "graph" or "torus"
  int index = 0;           // among its kind
  std::vector<int> ranks;  // of a ring: ranks of the endpoint in ring order
};

// Adds the counters of a layout's parts to `list`; `ranks` are the members' ranks of the endpoint.
// Equal rings share one entry.
void addCounters(std::vector<RingCounters>& list, const GroupLayout& layout,
                 const std::vector<PartCounters>& parts, const std::vector<int>& ranks);

}  // namespace topoopt
