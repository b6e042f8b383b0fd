// The rings of a group after links were lost or degraded.
//
// A ring sends its share over all of its links. The best rings and shares minimise the load of the
// busiest link relative to its rate: a fractional packing of cycles. Candidates are planned rings
// without lost links, cycles over the remaining links, and, as a last resort, planned rings with
// detours.

#pragma once

#include <functional>
#include <vector>

#include "plan/network.h"

namespace topoopt {

// The remaining cables from one server to another.
struct LinkLeft {
  int source = -1;
  int target = -1;
  double rate = 1.0;          // in any unit, the same for all
  double planned_rate = 1.0;  // without any loss
};

// `planned` are over servers, with original hop counts `planned_hops`. All servers of the group
// must be connected by `links`. The result serves the same servers, and is `planned` if its links
// are intact. Equal arguments give equal results.
std::vector<plan::Ring> remainingRings(const std::vector<plan::Ring>& planned,
                                       const std::function<int(int, int)>& planned_hops,
                                       const std::vector<LinkLeft>& links);

// The load of the busiest link per byte of the collective, relative to its rate. Neighbours without
// a link use a shortest path.
double busiestLink(const std::vector<plan::Ring>& rings, const std::vector<LinkLeft>& links);

}  // namespace topoopt
