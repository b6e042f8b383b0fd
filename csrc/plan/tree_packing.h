// A plan with the best throughput of any graph: a packing of out-trees, rooted at the servers, that
// reaches the bound of the slowest cut (Edmonds, 1973; built by adding links that leave max flows
// large enough, as in "ForestColl", arXiv 2402.06787).

#pragma once

#include <vector>

#include "plan/cut_bound.h"
#include "plan/gather_plan.h"

namespace topoopt {

// A plan whose busiest link takes as long as cutBound() says, for the same arguments. A part of
// the shards of a server is one tree; the step of a piece is the depth of its link there. Servers
// without shards only receive.
//
// Above 512 servers, loads are up to 1/64 more. Rates whose ratios need more than 2^20 units a
// shard are rounded, so that a link carries at most one unit more.
//
// Throws std::invalid_argument as cutBound() does, for numbers of shards whose common multiple is
// above 1024, and for more servers and links than memory allows (servers^2 + servers * links may
// be 2^26).
GatherPlan packTrees(int servers, const std::vector<RatedLink>& links,
                     const std::vector<int>& shards);

}  // namespace topoopt
