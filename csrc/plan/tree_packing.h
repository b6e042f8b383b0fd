// The best throughput of an AllGather over any directed graph of links. The slowest cut limits it;
// a packing of out-trees rooted at the servers reaches it (Edmonds 1973, Tarjan 1974; in batches as
// in "ForestColl", arXiv 2402.06787).
//
// Every server has `shards` shards of equal size: one each for an AllGather, one at the root and
// none elsewhere for a broadcast. On the reversed graph the same is a ReduceScatter or a reduce.

#pragma once

#include <vector>

#include "plan/gather_plan.h"

namespace topoopt {

// The servers of `servers` send their shards over links that take at least `seconds`, if one shard
// takes 1 / rate seconds on a link.
struct CutBound {
  double seconds = 0;
  std::vector<int> servers{};  // in ascending order; empty if no shard has to cross a link
};

// The largest bound of all cuts. Exact if the rates are integers, or integers times a common unit,
// of at most 2^20; other rates are rounded to 1/1024 of the largest. Parallel links are added up.
// Throws std::invalid_argument for a server without a path from a server with shards, if there are
// no shards, for a rate that is not positive and finite, and for numbers out of range.
CutBound cutBound(int servers, const std::vector<RatedLink>& links, const std::vector<int>& shards);

// A plan whose busiest link takes as long as cutBound() says, for the same rates. A piece is an
// interval of the shards of its origin; its step is the depth of its link in the tree. Above
// 128 servers the plan is within 3 % of the bound. Throws as cutBound() does.
GatherPlan packTrees(int servers, const std::vector<RatedLink>& links,
                     const std::vector<int>& shards);

// The seconds that the busiest link of a plan takes.
double busiestLink(const GatherPlan& plan, const std::vector<RatedLink>& links,
                   const std::vector<int>& shards);

}  // namespace topoopt
