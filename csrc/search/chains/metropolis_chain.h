// A Markov chain over strategies at one fixed network: Metropolis' rule as in metropolis.h. A
// strategy that does not fit into memory is never accepted.
//
// One loop for both ways to price a strategy: the coarse simulator, thousands of proposals a
// second, and the flow level, some ten a second for a large model, which refines what the coarse
// chain has found.

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

// `Pricing` has, beside costs() and `kChain`:
//   run(strategy): its seconds; the base of proposals from now on.
//   propose(strategy, changed, limit_s): its seconds, or any number above `limit_s` if it takes
//     longer; it differs from the base in the operators `changed`.
//   accept(): the strategy last proposed is the base from now on.
template <typename Pricing>
class MetropolisChain {
 public:
  // Starts at the cheapest of `starts` that fits (each a placement per operator).
  // `memory_limit_bytes` is that of one accelerator; `max_transfers` as in Limits. Throws
  // std::invalid_argument if a start or the space does not match the job, or if no start fits.
  MetropolisChain(std::unique_ptr<Pricing> pricing, const SearchSpace& space,
                  const std::vector<std::vector<Placement>>& starts, int64_t memory_limit_bytes,
                  int64_t max_transfers, uint64_t seed, double beta);

  // Over the next `evaluations`, beta grows to `times` what it is: the chain cools down.
  void cool(int64_t evaluations, double times) { cooling_.begin(evaluations, times); }

  // Proposes and judges `evaluations` strategies.
  void step(int evaluations);

  int64_t evaluations() const { return evaluations_; }
  int64_t accepted() const { return accepted_; }
  double currentSeconds() const { return current_s_; }
  double bestSeconds() const { return best_s_; }
  Pricing& pricing() { return *pricing_; }
  const Pricing& pricing() const { return *pricing_; }

  // The best strategies seen and their seconds, the best first: at most `count`, each at least 0.1
  // % better than the next. What another simulator ranks otherwise is likely to be among them.
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
  std::vector<std::pair<double, Strategy>> milestones_;  // bests, each well below the one before
  int64_t evaluations_ = 0;
  int64_t accepted_ = 0;
  int64_t best_at_ = 0;  // evaluation at which the best was found or returned to
};

using CoarseChain = MetropolisChain<CoarseSimulator>;
using FlowChain = MetropolisChain<FlowPricing>;

}  // namespace topoopt
