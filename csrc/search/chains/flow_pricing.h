// Prices strategies at flow level, for a chain; it keeps the prices of some.
//
// A strategy costs milliseconds here, where the coarse simulator takes microseconds and ranks well.
// So proposals may be screened by it first (delayed acceptance, Christen and Fox 2005): what it
// finds much slower than the base is not priced at all.

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

  // Proposals that are slower than the base by more than the fraction `slack`, by the coarse
  // simulator, are not priced: they take forever. Infinite: all are priced. What is in `prices`, of
  // this job and network, is not simulated, and what is simulated is added.
  FlowPricing(std::shared_ptr<const Job> job, std::shared_ptr<RoutedNetwork> network,
              std::shared_ptr<IterationPrices> prices,
              double slack = std::numeric_limits<double>::infinity());

  PlacementCosts& costs() { return model_.costs(); }

  // Of proposals from now on; throws std::invalid_argument below 0.
  void setSlack(double slack);

  double run(const Strategy& strategy);
  double propose(const Strategy& strategy, const std::vector<int>& changed, double);
  void accept();

  int64_t simulations() const { return simulations_; }  // the others were known
  // Of all that was priced, also where `prices` knew it: budgets are in tasks, and what is found
  // must not depend on what others have priced.
  int64_t tasks() const { return tasks_; }

 private:
  double price(const Strategy& strategy);
  const Strategy& coarse(const Strategy& strategy);

  IterationModel model_;
  std::shared_ptr<IterationPrices> prices_;
  std::vector<int> number_in_prices_;        // per placement of the model
  std::unique_ptr<CoarseSimulator> screen_;  // null: nothing is screened
  double slack_;
  double base_s_ = 0, proposed_s_ = 0;  // by the screen
  std::vector<int> coarse_id_;          // per placement of the model: its number in the screen
  Strategy coarse_;
  int64_t simulations_ = 0;
  int64_t tasks_ = 0;
  std::map<Strategy, double> known_;  // by the model's numbers
};

}  // namespace topoopt
