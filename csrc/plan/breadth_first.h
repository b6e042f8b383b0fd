// Breadth-first AllGather (BFB, NSDI'25, section 5): every shard reaches each server by shortest
// paths, in as many steps as the graph is wide.

#pragma once

#include <vector>

#include "plan/gather_plan.h"

namespace topoopt {

// In step t, a server receives the shards of all servers at distance t + 1 over its links from
// servers at distance t. A shard may be split over links; the split minimises the load of the
// server's busiest link, relative to its rate, in that step. Equal rates give exact fractions,
// others are rounded to 1 / units.
//
// `origins` have a shard each; empty: all servers. Throws std::invalid_argument for a link that
// cannot be and a server that an origin does not reach.
GatherPlan breadthFirst(int servers, const std::vector<RatedLink>& links,
                        const std::vector<int>& origins = {});

// Every server sends its shard to all others itself: one step, over the routes between servers.
GatherPlan oneShot(int servers);

// The loads of a plan: seconds if a link of rate 1 takes a second for a shard.
struct PlanLoad {
  double steps_s = 0;    // sum over steps of the busiest link's load in that step
  double busiest_s = 0;  // load of the busiest link in all steps together
};
PlanLoad loadOf(const GatherPlan& plan, const std::vector<RatedLink>& links);

// The links turned round: a ReduceScatter is an AllGather on them, run backwards.
std::vector<RatedLink> reversed(std::vector<RatedLink> links);

}  // namespace topoopt
