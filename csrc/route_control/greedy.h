// The greedy assignment of "Routing for Large ML Models" (section 3.4.1), parallel over independent
// flows (section 3.4.3).

#pragma once

#include <vector>

#include "route_control/switched_paths.h"

namespace topoopt {

// Each flow of `order` takes its currently least congested path, ties to the first; other flows get
// path -1. Adds to `loads`.
void assignGreedily(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows,
                    const std::vector<int>& order, SwitchedPathLoads& loads, PathChoice& choice);

// Components of flows that share no link on any path, as numbers from `order`.
std::vector<std::vector<int>> flowComponents(const SwitchedPaths& table,
                                             const std::vector<RoutedFlow>& flows,
                                             const std::vector<int>& order);

// Assigns all flows in `order`, a permutation, with components in parallel on `threads` threads;
// the result does not depend on their number. Throws std::invalid_argument for an invalid order, or
// threads below 1.
PathChoice greedyPaths(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows,
                       const std::vector<int>& order, int threads);

}  // namespace topoopt
