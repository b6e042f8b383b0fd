// A lower bound of the iteration time without a simulation: the busy time of each server and link.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "search/coarse/lane_loops.h"
#include "search/coarse/link_loads.h"
#include "sim/iteration/job.h"

namespace topoopt {

// Sums over all computations and transfers of a strategy. A proposal subtracts its old terms and
// adds the new ones. It is rejected as soon as one sum exceeds its limit. Many updates accumulate
// rounding errors, so the bound has a much larger margin.
class BusyTimes {
 public:
  BusyTimes(PlacementCosts& costs, LinkLoadTable& loads);

  void clear();

  // Later calls modify the accepted sums.
  void propose();
  void accept() { std::swap(base_, sums_); }

  // Adds operator `op` on placement `id`, `times` times: computation, or its gradients' reduction.
  void compute(int op, int id, double times);
  void reduce(int op, int id, double times);

  // Adds a tensor of these bytes per micro-batch, forward and backward. Null has no load.
  void send(const EdgeLoads* loads, double size_bytes, double gradient_bytes, double times);

  // A lower bound of the iteration: the largest sum that grew since `propose`. Subtractions must
  // come first.
  double bound() const;

 private:
  struct Sums {
    std::vector<double> server_s, link_s;
  };

  void add(const LinkLoads& loads, double bytes);

  PlacementCosts& costs_;
  LinkLoadTable& loads_;
  const LaneLoops& loops_;
  double batches_;
  double stretch_;  // of computations
  Sums base_, sums_;
  double most_s_ = 0;
};

}  // namespace topoopt
