// Statistics of a group: what its rings and trees have carried.

#pragma once

#include <string>
#include <vector>

#include "collectives/group/call.h"
#include "plan/group_layout.h"

namespace topoopt {

// What a ring or a tree of a group has done.
struct RingCounters : PartCounters {
  std::string kind;        // "ring", "tree", "direct" or "torus"
  int index = 0;           // among those of its kind
  std::vector<int> ranks;  // of a ring: those of the endpoint that it visits, in its order
};

// Adds to `list` what the parts of a layout have carried; `ranks` are the members, as ranks of the
// endpoint. A ring that is listed already stays one entry.
void addCounters(std::vector<RingCounters>& list, const GroupLayout& layout,
                 const std::vector<PartCounters>& parts, const std::vector<int>& ranks);

}  // namespace topoopt
