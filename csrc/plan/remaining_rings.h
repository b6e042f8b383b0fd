// The rings that a group goes on with when links are lost or slow.
//
// A ring sends its share of the bytes over every link that it passes, so rings and shares are
// sought whose busiest link is, for its rate, the least busy: a fractional packing of cycles.
// Candidates are planned rings of which no link is lost, cycles over the links that are left, and,
// if nothing else is, planned rings with detours around the gaps.

#pragma once

#include <functional>
#include <vector>

#include "plan/network.h"

namespace topoopt {

// The cables from one server to another that are left, together.
struct LinkLeft {
  int source = -1;
  int target = -1;
  double rate = 1.0;          // in any unit, the same for all
  double planned_rate = 1.0;  // when nothing was lost or slow
};

// `planned` are over servers, `planned_hops` has the links from one server to another before
// anything was lost. All servers of the group must reach each other over `links`. The result serves
// the same servers, and is `planned` where nothing that these pass is lost or slow. The same
// arguments give the same result.
std::vector<plan::Ring> remainingRings(const std::vector<plan::Ring>& planned,
                                       const std::function<int(int, int)>& planned_hops,
                                       const std::vector<LinkLeft>& links);

// What the busiest link carries for each byte of the collective, divided by its rate. Neighbours
// without a link send over a shortest path.
double busiestLink(const std::vector<plan::Ring>& rings, const std::vector<LinkLeft>& links);

}  // namespace topoopt
