// The plan of a scatter: the block of every server goes from the root to it. The same plan on the
// reversed links, run backwards, is a gather.

#pragma once

#include "plan/gather_plan.h"

namespace topoopt {

// Blocks go over shortest paths, and may be split. Of all such plans, the busiest link of this one
// has the least load relative to its rate. Far blocks leave the root first.
//
// In the result, `origin` is the server that a block is for. A server receives its own block, and
// the parts of others' that it sends on.
//
// Throws std::invalid_argument as cutBound(), and for a server that the root does not reach.
GatherPlan scatterPlan(int servers, const LinkSet& links, int root);

// The least time of the busiest link that any plan can have, in seconds if a link of rate 1 takes a
// second for a block.
double scatterBound(int servers, const LinkSet& links, int root);

}  // namespace topoopt
