// Selects the rings or the grid of a group of servers, for the backend and the simulators.

#pragma once

#include <functional>
#include <vector>

#include "plan/network.h"

namespace topoopt {

// The rings of `servers` (ascending): those planned for exactly this set in `groups` (sorted). Else
// those of the smallest planned superset, restricted to these members. Else a short cycle by
// nearest neighbours in `hops` (ties to the lower server), with its reverse if `both_ways`.
std::vector<plan::Ring> ringsOfGroup(const std::vector<plan::AllReduceGroup>& groups,
                                     const std::vector<int>& servers, bool both_ways,
                                     const std::function<int(int, int)>& hops);

// The same rings, each with half of its share in either direction; empty if some already are in
// both.
std::vector<plan::Ring> bothWays(const std::vector<plan::Ring>& rings);

// The planned rows of exactly `servers` (ascending); empty: none.
plan::Grid gridOfGroup(const std::vector<plan::AllReduceGroup>& groups,
                       const std::vector<int>& servers);

}  // namespace topoopt
