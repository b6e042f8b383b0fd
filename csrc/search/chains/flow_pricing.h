// Prices strategies at flow level for a chain, with a cache.
//
// Pricing takes milliseconds here but microseconds in the coarse simulator, which ranks well. So it
// may screen proposals first (delayed acceptance, Christen and Fox 2005): much slower ones are not
// priced.

#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "search/chains/iteration_prices.h"
#include "search/coarse/coarse_simulator.h"
#include "search/strategies/limits.h"
#include "search/strategies/metropolis.h"
#include "sim/iteration/iteration.h"

namespace topoopt {

class FlowPricing {
 public:
  static constexpr ChainRules kChain{
      .draws_limit = false, .return_after = 500, .returns_from_equal = true};

  // Proposals that the coarse simulator predicts to be slower than the base by more than the
  // fraction `slack` are rejected; infinite: none. `prices` belongs to this job and network: known
  // strategies are not simulated, new ones are added.
  FlowPricing(std::shared_ptr<const Job> job, std::shared_ptr<RoutedNetwork> network,
              std::shared_ptr<IterationPrices> prices,
              double slack = std::numeric_limits<double>::infinity());

  PlacementCosts& costs() { return model_.costs(); }

  // For later proposals; throws std::invalid_argument below 0.
  void setSlack(double slack);

  double run(const Strategy& strategy);
  double propose(const Strategy& strategy, const std::vector<int>& changed, double);
  void accept();

  int64_t simulations() const { return simulations_; }  // cache misses
  // Over all priced strategies, even those found in `prices`: budgets are in tasks, and results
  // must not depend on other searches.
  int64_t tasks() const { return tasks_; }

 private:
  double price(const Strategy& strategy);
  const Strategy& coarse(const Strategy& strategy);

  IterationModel model_;
  std::shared_ptr<IterationPrices> prices_;
  std::vector<int> number_in_prices_;        // per placement of the model
  std::unique_ptr<CoarseSimulator> screen_;  // null: no screening
  double slack_;
  double base_s_ = 0, proposed_s_ = 0;  // by the screen
  std::vector<int> coarse_id_;          // per placement of the model: id in the screen
  Strategy coarse_;
  int64_t simulations_ = 0;
  int64_t tasks_ = 0;
  std::map<Strategy, double> known_;  // keyed by the model's placement ids
};

}  // namespace topoopt
