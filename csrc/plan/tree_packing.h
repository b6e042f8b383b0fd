// The best throughput of an AllGather over any directed graph of links. The slowest cut limits it;
// a packing of out-trees rooted at the servers reaches it (Edmonds 1973, Tarjan 1974; in batches as
// in "ForestColl", arXiv 2402.06787).
//
// Every server has `shards` shards of equal size: one each for an AllGather, one at the root and
// none elsewhere for a broadcast. On the reversed graph the same is a ReduceScatter or a reduce.

#pragma once

#include <vector>

#include "plan/cut_bound.h"
#include "plan/gather_plan.h"

namespace topoopt {

// A plan whose busiest link takes as long as cutBound() says, for the same rates. A piece is an
// interval of the shards of its origin; its step is the depth of its link in the tree. Above
// 128 servers the plan is within 3 % of the bound. Throws as cutBound() does.
GatherPlan packTrees(int servers, const std::vector<RatedLink>& links,
                     const std::vector<int>& shards);

// The seconds that the busiest link of a plan takes.
double busiestLink(const GatherPlan& plan, const std::vector<RatedLink>& links,
                   const std::vector<int>& shards);

}  // namespace topoopt
