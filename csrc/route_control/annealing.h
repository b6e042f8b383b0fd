// Simulated annealing over paths, as Hedera (Al-Fares et al., NSDI 2010, section 4.3).

#pragma once

#include <cstdint>
#include <vector>

#include "route_control/switched_paths.h"

namespace topoopt {

// Begins at `choice`; a step gives a flow another path. The energy is the sum of the squares of the
// congestions of all links, which the most congested dominate. The best seen is in `choice` at the
// end.
void annealPaths(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows, int64_t steps,
                 uint64_t seed, PathChoice& choice);

}  // namespace topoopt
