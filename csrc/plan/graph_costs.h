// The costs of collectives over a group's graph of links.

#pragma once

#include <cstddef>

#include "plan/cost_model.h"
#include "plan/graph_plans.h"

namespace topoopt {

struct GraphCost {
  double seconds = 0;
  size_t rounds = 1;  // the number with the least cost
};

// One thread at a time.
class GraphCosts {
 public:
  // The layout must have links.
  GraphCosts(const GroupLayout& layout, const CostModel& model);

  // For breadth_first, packing, flooding and one_shot, if they support the request.
  GraphCost of(const Request& request, Algorithm algorithm);
  // Messages that wait for each other, in one round.
  size_t stepsOf(const Request& request, Algorithm algorithm);
  // The least time of the slowest cut, without latencies.
  double boundSeconds(const Request& request);
  // Whether a packing may be faster than the breadth-first plan, which is simpler to build.
  bool mayGainFromPacking(const Request& request);

  GraphPlans& plans() { return plans_; }

 private:
  struct Pass {
    Direction direction;
    int origin;
  };

  std::vector<Pass> passesOf(const Request& request) const;
  double shardBytes(const Request& request) const;
  const LoadedPlan& planOf(const Pass& pass, Algorithm algorithm);
  // Of all passes together.
  PlanLoad loadOf(const Request& request, Algorithm algorithm);
  GraphCost inRounds(const Request& request, Algorithm algorithm);
  double flooding(const Request& request);
  double oneShot(const Request& request) const;
  double reduction(const Request& request) const;

  const GroupLayout& layout_;
  const CostModel& model_;
  GraphPlans plans_;
  const double servers_;
  double longest_route_ = 0;  // links
  double all_hops_ = 0;       // of the routes between all pairs
  double degree_ = 1;         // links that leave a server, on average
};

}  // namespace topoopt
