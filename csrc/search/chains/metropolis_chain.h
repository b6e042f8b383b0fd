// A Markov chain over strategies on a fixed network, with Metropolis' rule (metropolis.h). A
// strategy that exceeds the memory is never accepted.
//
// Both pricings share the loop: the coarse simulator makes thousands of proposals a second; the
// flow level, about ten for a large model, refines its results.

#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "search/chains/flow_pricing.h"
#include "search/coarse/coarse_simulator.h"
#include "search/strategies/metropolis.h"
#include "search/strategies/moves.h"

namespace topoopt {

// Requirements of `Pricing`, besides costs() and `kChain`:
//   run(strategy): returns its seconds and makes it the base of proposals;
//   propose(strategy, changed, limit_s): returns its seconds, or any number above `limit_s` if it
//     exceeds that; it differs from the base in the operators `changed`;
//   accept(): makes the last proposal the base.
template <typename Pricing>
class MetropolisChain {
 public:
  // Starts at the cheapest of `starts` (a placement per operator each) that fits the memory.
  // `memory_limit_bytes` is per accelerator; `max_transfers` as in Limits. Throws
  // std::invalid_argument if a start or the space does not match the job, or if no start fits.
  MetropolisChain(std::unique_ptr<Pricing> pricing, const SearchSpace& space,
                  const std::vector<std::vector<Placement>>& starts, int64_t memory_limit_bytes,
                  int64_t max_transfers, uint64_t seed, double beta);

  // Multiplies beta by `times` over the next `evaluations`: the chain cools down.
  void cool(int64_t evaluations, double times) { cooling_.begin(evaluations, times); }

  // Proposes and judges `evaluations` strategies.
  void step(int evaluations);

  int64_t evaluations() const { return evaluations_; }
  int64_t accepted() const { return accepted_; }
  double currentSeconds() const { return current_s_; }
  double bestSeconds() const { return best_s_; }
  Pricing& pricing() { return *pricing_; }
  const Pricing& pricing() const { return *pricing_; }

  // The best strategies and their seconds, best first: at most `count`, each at least 0.1 % better
  // than the next. They likely include the best one of another simulator.
  std::vector<std::pair<double, std::vector<Placement>>> best(int count) const;

 private:
  bool accepts();
  void judge();
  void remember();
  void returnToBest();

  std::unique_ptr<Pricing> pricing_;
  Moves moves_;
  Limits limits_;
  Cooling cooling_;
  Random random_;
  Strategy current_, proposal_;
  std::vector<int> changed_;
  double current_s_ = 0;
  double proposed_s_ = 0;
  double best_s_ = 0;
  std::vector<std::pair<double, Strategy>> milestones_;  // decreasing sequence of best strategies
  int64_t evaluations_ = 0;
  int64_t accepted_ = 0;
  int64_t best_at_ = 0;  // evaluation of the last best or return to it
};

using CoarseChain = MetropolisChain<CoarseSimulator>;
using FlowChain = MetropolisChain<FlowPricing>;

}  // namespace topoopt
