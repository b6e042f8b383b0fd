// The greedy assignment of "Routing for Large ML Models" (section 3.4.1), in parallel where flows
// cannot meet (section 3.4.3).

#pragma once

#include <vector>

#include "route_control/switched_paths.h"

namespace topoopt {

// Each flow of `order` takes the path that is least congested so far, the first of several; the
// rest of the flows are left out (path -1). Loads are added to `loads`.
void assignGreedily(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows,
                    const std::vector<int>& order, SwitchedPathLoads& loads, PathChoice& choice);

// Components of flows that share no link, whatever paths they take: their numbers, as in `order`.
std::vector<std::vector<int>> flowComponents(const SwitchedPaths& table,
                                             const std::vector<RoutedFlow>& flows,
                                             const std::vector<int>& order);

// All flows in `order`, which has each number once; components side by side in `threads` threads,
// whose number changes nothing. Throws std::invalid_argument for an order that is none, or threads
// below 1.
PathChoice greedyPaths(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows,
                       const std::vector<int>& order, int threads);

}  // namespace topoopt
