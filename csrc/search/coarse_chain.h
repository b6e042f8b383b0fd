// A Markov chain over strategies, priced by the coarse simulator: thousands of proposals a second.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "search/coarse_simulator.h"
#include "search/metropolis.h"
#include "search/moves.h"

namespace topoopt {

// At one fixed network. Metropolis' rule as in metropolis.h, and a strategy that does not
// fit into memory is never accepted. The chance of a proposal is drawn before it is priced, which
// says how slow it may be; so the simulation of a slower one can end early, and nothing changes.
class CoarseChain {
 public:
  // Starts at the cheapest of `starts` that fits (each a placement per operator).
  // `memory_limit_bytes` is that of one accelerator; `max_transfers` as in Limits. Throws
  // std::invalid_argument if a start or the space does not match the job, or if no start fits.
  CoarseChain(std::shared_ptr<const Job> job, const RoutedNetwork& network,
              const SearchSpace& space, const std::vector<std::vector<Placement>>& starts,
              int64_t memory_limit_bytes, int64_t max_transfers, uint64_t seed, double beta);

  // Over the next `evaluations`, beta grows to `times` what it is: the chain cools down.
  void cool(int64_t evaluations, double times) { cooling_.begin(evaluations, times); }

  // Proposes and judges `evaluations` strategies.
  void step(int evaluations);

  // As CoarseSimulator::simulateFully; the chain goes the same way.
  void simulateFully() { simulator_.simulateFully(); }

  int64_t evaluations() const { return evaluations_; }
  int64_t accepted() const { return accepted_; }
  // Others were unchanged, too large or too busy.
  int64_t simulations() const { return simulator_.simulations(); }
  double currentSeconds() const { return current_s_; }
  double bestSeconds() const { return best_s_; }
  const CoarseSimulator& simulator() const { return simulator_; }

  // The best strategies seen and their seconds, the best first: at most `count`, each at least 0.1
  // % better than the next. What another simulator ranks otherwise is likely to be among them.
  std::vector<std::pair<double, std::vector<Placement>>> best(int count) const;

 private:
  void judge();
  void remember();

  std::shared_ptr<const Job> job_;
  CoarseSimulator simulator_;
  Moves moves_;
  Limits limits_;
  Cooling cooling_;
  Random random_;
  Strategy current_, proposal_;
  std::vector<int> changed_;
  double current_s_ = 0;
  double best_s_ = 0;
  std::vector<std::pair<double, Strategy>> milestones_;  // bests, each well below the one before
  int64_t evaluations_ = 0;
  int64_t accepted_ = 0;
  int64_t best_at_ = 0;  // evaluation at which the best was found or returned to
};

}  // namespace topoopt
