// In which order the coarse simulator works.

#pragma once

#include <memory>
#include <vector>

#include "sim/iteration/job.h"

namespace topoopt {

// Work on operator `op` for one micro-batch.
struct OperatorStep {
  int op, batch;
  bool forward;
  auto operator<=>(const OperatorStep&) const = default;
};

// The steps of an iteration, and where each of them is.
struct StepOrder {
  std::vector<int> in_flight;  // per operator: what it was made for
  std::vector<OperatorStep> steps;
  std::vector<int> at;  // micro-batch, operator, forward then backward
};

// Per operator, the longest way to it from one that reads nothing.
std::vector<int> depths(const Job& job);

// The operators by their depth, those of equal depth ascending. What may happen at the same time is
// issued together: behind all transfers of one tower of layers, those of the next would find every
// link taken.
std::vector<int> byDepth(const std::vector<int>& depth);

// The order for a pipeline in which each operator holds `in_flight` of the micro-batches at once
// (PlacementCosts::inFlight).
std::shared_ptr<const StepOrder> stepOrder(std::vector<int> in_flight,
                                           const std::vector<int>& by_depth, int micro_batches);

}  // namespace topoopt
