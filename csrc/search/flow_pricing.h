// Prices strategies at flow level, for a chain; it keeps the prices of some.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "search/limits.h"
#include "search/metropolis.h"
#include "sim/iteration/iteration.h"

namespace topoopt {

class FlowPricing {
 public:
  static constexpr ChainRules kChain{
      .draws_limit = false, .return_after = 500, .returns_from_equal = true};

  FlowPricing(std::shared_ptr<const Job> job, std::shared_ptr<RoutedNetwork> network)
      : model_(std::move(job), std::move(network)) {}

  PlacementCosts& costs() { return model_.costs(); }

  double run(const Strategy& strategy);
  double propose(const Strategy& strategy, const std::vector<int>&, double) {
    return run(strategy);
  }
  void accept() {}

  int64_t simulations() const { return simulations_; }  // the others were known
  int64_t tasks() const { return tasks_; }              // of all simulations

 private:
  IterationModel model_;
  int64_t simulations_ = 0;
  int64_t tasks_ = 0;
  std::map<Strategy, double> known_;
};

}  // namespace topoopt
