// Local improvement of path choices.

#pragma once

#include <cstdint>
#include <vector>

#include "route_control/switched_paths.h"

namespace topoopt {

// Changes `choice` until its maximum congestion is `bound` or no tried change reduces it. A flow of
// a most congested link takes another path, possibly after a conflicting flow has moved. Then up to
// `moves` random moves of such flows are tried, and improvements are kept.
void improvePaths(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows, double bound,
                  int64_t moves, uint64_t seed, PathChoice& choice);

}  // namespace topoopt
