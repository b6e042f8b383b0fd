// A bound on the time of an iteration that takes no simulation: how long it keeps each server and
// each link busy, whenever it does.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "search/coarse/lane_loops.h"
#include "search/coarse/link_loads.h"
#include "sim/iteration/job.h"

namespace topoopt {

// Sums over all that a strategy computes and sends. A proposal takes away what it changes and adds
// what comes instead; as soon as one sum is above what the proposal may take, the rest need not be
// known. Sums that went through many changes are a little off, so a bound is only taken to hold
// with a margin that is far above that.
class BusyTimes {
 public:
  BusyTimes(PlacementCosts& costs, LinkLoadTable& loads);

  // Nothing is busy.
  void clear();

  // The next calls change what was last accepted.
  void propose();
  void accept() { std::swap(base_, sums_); }

  // Operator `op` computes as on placement `id`, `times` times; reduces its gradients.
  void compute(int op, int id, double times);
  void reduce(int op, int id, double times);

  // A tensor of these bytes in each micro-batch, forward and backward. Null loads nothing.
  void send(const EdgeLoads* loads, double size_bytes, double gradient_bytes, double times);

  // No iteration is shorter than this: the largest of all sums that `compute`, `reduce` and `send`
  // have changed since `propose`, where they added. What they take away has to come first.
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
  double stretch_;  // of what servers compute
  Sums base_, sums_;
  double most_s_ = 0;
};

}  // namespace topoopt
