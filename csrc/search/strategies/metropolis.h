// Metropolis' rule for strategies: where a chain begins, what it accepts, how it cools down.

#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "search/strategies/limits.h"
#include "sim/iteration/job.h"

namespace topoopt {

// The probability of moving from a strategy of `current_s` to one of `proposed_s`,
// min(1, exp(-beta (proposed - current) / current)). FlexFlow's chain (Jia et al. 2019) compares
// milliseconds; a worsening counts by its relative size here, so that beta means the same for every
// model.
double acceptanceProbability(double current_s, double proposed_s, double beta);

// The slowest strategy that is accepted where the chance drawn is `chance`, in (0, 1].
double slowestAccepted(double current_s, double chance, double beta);

// What a way to price strategies asks of its chain.
struct ChainRules {
  // The chance of a proposal is drawn before it is priced, which says how slow it may be; so the
  // simulation of a slower one can end early, and nothing changes.
  bool draws_limit;
  int64_t return_after;     // evaluations without a new best before going back to it
  bool returns_from_equal;  // also from another strategy that is as good as the best
};

// A beta that may grow with every proposal: the chain cools down.
class Cooling {
 public:
  // Throws std::invalid_argument for a `beta` that is not above 0 and finite.
  explicit Cooling(double beta);

  // Over the next `evaluations`, beta grows to `times` what it is now, by the same factor each
  // time. Throws std::invalid_argument for a negative number, or `times` that are not above 0 and
  // finite.
  void begin(int64_t evaluations, double times);

  // The beta of the next proposal.
  double next();

 private:
  double beta_;
  double factor_ = 1;
  int64_t left_ = 0;
};

// The cheapest of `starts` (each a placement per operator) that fits into memory, and its price;
// `limits` count from it. Throws std::invalid_argument if one does not match the job or none fits.
std::pair<Strategy, double> cheapestStart(const std::vector<std::vector<Placement>>& starts,
                                          PlacementCosts& costs, Limits& limits,
                                          const std::function<double(const Strategy&)>& price);

// Throws std::invalid_argument for a negative number.
void checkEvaluations(int64_t evaluations);

}  // namespace topoopt
