// Better choices of paths, one change at a time.

#pragma once

#include <cstdint>
#include <vector>

#include "route_control/switched_paths.h"

namespace topoopt {

// Changes `choice` until its largest congestion is `bound`, or nothing that is tried makes it less:
// a flow of a most congested link takes another path, or does so while a flow that is in its way
// there takes another, too. After that, flows of these links are moved at random and what follows
// is kept where it is better, as long as `moves` last.
void improvePaths(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows, double bound,
                  int64_t moves, uint64_t seed, PathChoice& choice);

}  // namespace topoopt
