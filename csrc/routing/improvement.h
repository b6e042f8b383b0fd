// Better choices of paths, one change at a time.

#pragma once

#include <cstdint>
#include <vector>

#include "routing/switched_paths.h"

namespace topoopt {

// A bound below the largest congestion of any choice: every link of a cut that a set of flows has
// to cross, all ends with the same first or last switch. Demands that are all the same number can
// not be shared out evenly, which counts.
double leastCongestion(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows);

// Changes `choice` until its largest congestion is `bound`, or nothing that is tried makes it less:
// a flow of a most congested link takes another path, or does so while a flow that is in its way
// there takes another, too. After that, flows of these links are moved at random and what follows
// is kept where it is better, as long as `moves` last.
void improvePaths(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows, double bound,
                  int64_t moves, uint64_t seed, PathChoice& choice);

}  // namespace topoopt
