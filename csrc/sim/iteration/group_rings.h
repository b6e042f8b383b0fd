// Which rings, or which grid, a group of servers uses: one rule for what runs and what is
// simulated.

#pragma once

#include <functional>
#include <vector>

#include "plan/network.h"

namespace topoopt {

// The rings of `servers` (ascending): those planned for exactly this set in `groups` (of
// ascending servers); else the
// rings of the smallest planned group that contains it, restricted to its members in the same
// cyclic order; else a short cycle that goes from each server to the nearest one left, counted by
// `hops` (ties to the lower server), and its reverse too with `both_ways`.
std::vector<plan::Ring> ringsOfGroup(const std::vector<plan::AllReduceGroup>& groups,
                                     const std::vector<int>& servers, bool both_ways,
                                     const std::function<int(int, int)>& hops);

// The rows that were planned for exactly `servers` (ascending); empty: none.
plan::Grid gridOfGroup(const std::vector<plan::AllReduceGroup>& groups,
                       const std::vector<int>& servers);

}  // namespace topoopt
