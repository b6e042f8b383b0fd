// Markov chain Monte Carlo over strategies: how each operator is split, and onto which servers.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "common/random.h"
#include "sim/iteration.h"

namespace topoopt {

// The placements that an operator may have, in groups, such as those of the same degrees. A
// proposal draws a group first and then a placement, so that the many placements on few servers do
// not crowd out the few on many.
using PlacementGroups = std::vector<std::vector<Placement>>;

struct SearchSpace {
  std::vector<PlacementGroups> spaces;
  std::vector<int> space_of_operator;  // index into `spaces`
};

// A chain in the manner of FlexFlow's search (Jia et al. 2019), at one fixed network. Differences
// to it: a worsening is accepted by its relative size, so that `beta` means the same for every
// model, and a strategy that does not fit into memory is never accepted.
class StrategySearch {
 public:
  // Starts at the cheapest of `starts` that fits (each a placement per operator).
  // `memory_limit_bytes` is that of one accelerator. Throws std::invalid_argument if a start or
  // the space does not match the job, or if no start fits.
  StrategySearch(std::shared_ptr<const Job> job, std::shared_ptr<RoutedNetwork> network,
                 const SearchSpace& space, const std::vector<std::vector<Placement>>& starts,
                 int64_t memory_limit_bytes, uint64_t seed, double beta);

  // Proposes and judges `evaluations` strategies.
  void step(int evaluations);

  int64_t evaluations() const { return evaluations_; }
  int64_t accepted() const { return accepted_; }
  int64_t simulations() const { return simulations_; }  // evaluations not answered from memory
  double currentSeconds() const { return current_s_; }
  double bestSeconds() const { return best_s_; }
  std::vector<Placement> best() const;

 private:
  using State = std::vector<int>;  // per operator: number of a placement

  void addSpaces(const SearchSpace& space);
  void addStart(const std::vector<Placement>& start);
  double price(const State& state);
  bool fits(const State& state);
  bool allowed(int op, int set) const;
  void propose(State& state);
  void proposeSet(State& state);
  void proposeCopies(State& state);
  void proposeSwap(State& state);
  void judge(const State& proposal);

  std::shared_ptr<const Job> job_;
  IterationModel model_;
  std::vector<std::vector<std::vector<int>>> spaces_;  // space -> group -> numbers
  std::vector<std::vector<char>> is_allowed_;          // space -> number
  std::vector<int> space_of_operator_;
  std::vector<std::vector<int>> neighbours_;  // per operator: producers and consumers
  int64_t memory_limit_bytes_;
  double beta_;
  Random random_;
  State current_, best_;
  double current_s_ = 0;
  double best_s_ = 0;
  int64_t evaluations_ = 0;
  int64_t accepted_ = 0;
  int64_t simulations_ = 0;
  int64_t best_at_ = 0;  // evaluation at which the best was found or returned to
  std::map<State, double> known_;
};

// Metropolis: the probability of moving from a strategy of `current_s` to one of `proposed_s`,
// min(1, exp(-beta (proposed - current) / current)).
double acceptanceProbability(double current_s, double proposed_s, double beta);

}  // namespace topoopt
