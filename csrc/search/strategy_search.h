// Markov chain Monte Carlo over strategies, every one priced at flow level: some ten proposals a
// second for a large model, so it refines what a CoarseChain has found.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "search/metropolis.h"
#include "search/moves.h"
#include "sim/iteration/iteration.h"

namespace topoopt {

// Accepts as a CoarseChain does, at a beta that stays.
class StrategySearch {
 public:
  // Starts at the cheapest of `starts` that fits (each a placement per operator).
  // `memory_limit_bytes` is that of one accelerator; `max_transfers` as in Limits. Throws
  // std::invalid_argument if a start or the space does not match the job, or if no start fits.
  StrategySearch(std::shared_ptr<const Job> job, std::shared_ptr<RoutedNetwork> network,
                 const SearchSpace& space, const std::vector<std::vector<Placement>>& starts,
                 int64_t memory_limit_bytes, int64_t max_transfers, uint64_t seed, double beta);

  // Proposes and judges `evaluations` strategies.
  void step(int evaluations);

  int64_t evaluations() const { return evaluations_; }
  int64_t accepted() const { return accepted_; }
  int64_t simulations() const { return simulations_; }  // evaluations not answered from memory
  int64_t tasks() const { return tasks_; }              // of all simulations
  double currentSeconds() const { return current_s_; }
  double bestSeconds() const { return best_s_; }
  std::vector<Placement> best() const;

 private:
  double price(const Strategy& strategy);
  void judge(const Strategy& proposal);

  std::shared_ptr<const Job> job_;
  IterationModel model_;
  Moves moves_;
  Limits limits_;
  Cooling cooling_;
  Random random_;
  Strategy current_, best_;
  std::vector<int> changed_;
  double current_s_ = 0;
  double best_s_ = 0;
  int64_t evaluations_ = 0;
  int64_t accepted_ = 0;
  int64_t simulations_ = 0;
  int64_t tasks_ = 0;
  int64_t best_at_ = 0;  // evaluation at which the best was found or returned to
  std::map<Strategy, double> known_;
};

}  // namespace topoopt
