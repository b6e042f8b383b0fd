// The issue order of the coarse simulator.

#pragma once

#include <memory>
#include <vector>

#include "sim/iteration/job.h"

namespace topoopt {

// One pass of operator `op` for one micro-batch.
struct OperatorStep {
  int op, batch;
  bool forward;
  auto operator<=>(const OperatorStep&) const = default;
};

// The steps of an iteration and their positions.
struct StepOrder {
  std::vector<int> in_flight;  // per operator
  std::vector<OperatorStep> steps;
  std::vector<int> at;  // index: micro-batch, operator, forward then backward
};

// Per operator, the longest path from an operator without inputs.
std::vector<int> depths(const Job& job);

// Operators by depth, ties ascending, so that concurrent work is issued together. Otherwise the
// transfers of one tower of layers would occupy the links before those of the next.
std::vector<int> byDepth(const std::vector<int>& depth);

// The order of a pipeline in which each operator holds `in_flight` micro-batches at once
// (PlacementCosts::inFlight).
std::shared_ptr<const StepOrder> stepOrder(std::vector<int> in_flight,
                                           const std::vector<int>& by_depth, int micro_batches);

}  // namespace topoopt
