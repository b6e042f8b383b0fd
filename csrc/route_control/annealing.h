// Simulated annealing over paths, as Hedera (Al-Fares et al., NSDI 2010, section 4.3).

#pragma once

#include <cstdint>
#include <vector>

#include "route_control/switched_paths.h"

namespace topoopt {

// Starts at `choice`; a step gives a flow another path. The energy is the sum of squared
// congestions of all links. Sets `choice` to the best seen.
void annealPaths(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows, int64_t steps,
                 uint64_t seed, PathChoice& choice);

}  // namespace topoopt
