// The costs of collectives over a group's graph of links.

#pragma once

#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

#include "plan/cost_model.h"
#include "plan/graph_plans.h"

namespace topoopt {

struct GraphCost {
  double seconds = 0;
  size_t rounds = 1;  // the number with the least cost
  size_t set = 0;     // of GroupLayout::linkSets(): likewise
};

// One thread at a time.
class GraphCosts {
 public:
  // The layout must have links.
  GraphCosts(const GroupLayout& layout, const CostModel& model);

  // For breadth_first, packing, flooding and one_shot, if they support the request, and for direct
  // messages of a gather or scatter.
  GraphCost of(const Request& request, Algorithm algorithm);
  // Messages that wait for each other, in one round.
  size_t stepsOf(const Request& request, Algorithm algorithm);
  // The least time of the slowest cut, without latencies.
  double boundSeconds(const Request& request);
  // Whether a packing may be faster than the breadth-first plan, which is simpler to build.
  bool mayGainFromPacking(const Request& request);

  // Over a set of GroupLayout::linkSets().
  GraphPlans& plans(size_t set = 0) { return plans_[set]; }

 private:
  struct Pass {
    Direction direction;
    int origin;
    bool scatters = false;  // each server gets a block of its own
  };

  std::vector<Pass> passesOf(const Request& request) const;
  double shardBytes(const Request& request) const;
  const LoadedPlan& planOf(const Pass& pass, Algorithm algorithm, size_t set);
  // Of all passes together.
  struct Passes {
    PlanLoad load;
    int steps = 0;
    int hops = 0;
  };
  Passes planned(const Request& request, Algorithm algorithm, size_t set);
  // The set with the least bound, and this bound for one byte on a link of rate 1.
  std::pair<size_t, double> bestSet(const Request& request);
  GraphCost inRounds(const Request& request, Algorithm algorithm, size_t set);
  double flooding(const Request& request, size_t set);
  double oneShot(const Request& request) const;
  double direct(const Request& request) const;
  double reduction(const Request& request) const;

  const GroupLayout& layout_;
  const CostModel& model_;
  std::deque<GraphPlans> plans_;  // by set
  const double servers_;
  double longest_route_ = 0;  // links
  double all_hops_ = 0;       // of the routes between all pairs
  double degree_ = 0;         // rates that leave a server, on average
  double capacity_ = 0;       // rates of all links, also of relays
  double slowest_pair_ = 0;   // 1 / the lowest rate of pairs that share links of relays
};

}  // namespace topoopt
