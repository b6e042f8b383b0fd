// Metropolis' rule for strategies: start, acceptance and cooling.

#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "search/strategies/limits.h"
#include "sim/iteration/job.h"

namespace topoopt {

// The acceptance probability min(1, exp(-beta (proposed - current) / current)). FlexFlow's chain
// (Jia et al. 2019) compares milliseconds; the relative form gives beta the same meaning for every
// model.
double acceptanceProbability(double current_s, double proposed_s, double beta);

// The slowest strategy accepted for a random `chance` in (0, 1].
double slowestAccepted(double current_s, double chance, double beta);

// Requirements of a pricing on its chain.
struct ChainRules {
  // Draw the chance before pricing, which then has a time limit. The simulation of a slower
  // strategy can end early without changing the result.
  bool draws_limit;
  int64_t return_after;     // evaluations without improvement before returning to the best
  bool returns_from_equal;  // also from another strategy with the best price
};

// A beta that may grow with every proposal (cooling).
class Cooling {
 public:
  // Throws std::invalid_argument unless `beta` is positive and finite.
  explicit Cooling(double beta);

  // Multiplies beta by `times` over the next `evaluations`, geometrically. Throws
  // std::invalid_argument for a negative number, or `times` that are not positive and finite.
  void begin(int64_t evaluations, double times);

  // The beta of the next proposal.
  double next();

 private:
  double beta_;
  double factor_ = 1;
  int64_t left_ = 0;
};

// Returns the cheapest of `starts` (a placement per operator each) that fits the memory, and its
// price; `limits` starts from it. Throws std::invalid_argument if one does not match the job or
// none fits.
std::pair<Strategy, double> cheapestStart(const std::vector<std::vector<Placement>>& starts,
                                          PlacementCosts& costs, Limits& limits,
                                          const std::function<double(const Strategy&)>& price);

// Throws std::invalid_argument for a negative number.
void checkEvaluations(int64_t evaluations);

}  // namespace topoopt
