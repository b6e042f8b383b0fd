#include "search/strategies/metropolis.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace topoopt {

namespace {

void checkPositive(const char* name, double value) {
  if (value > 0 && std::isfinite(value)) return;
  throw std::invalid_argument(std::string(name) + ": " + std::to_string(value) +
                              " is not above 0 and finite");
}

}  // namespace

double acceptanceProbability(double current_s, double proposed_s, double beta) {
  if (proposed_s <= current_s) return 1;
  return std::exp(-beta * (proposed_s - current_s) / current_s);
}

double slowestAccepted(double current_s, double chance, double beta) {
  return current_s * (1 - std::log(chance) / beta);
}

Cooling::Cooling(double beta) : beta_(beta) { checkPositive("beta", beta); }

void Cooling::begin(int64_t evaluations, double times) {
  checkEvaluations(evaluations);
  checkPositive("times", times);
  left_ = evaluations;
  if (evaluations > 0) factor_ = std::pow(times, 1 / static_cast<double>(evaluations));
}

double Cooling::next() {
  const double beta = beta_;
  if (left_ > 0) {
    beta_ *= factor_;
    --left_;
  }
  return beta;
}

std::pair<Strategy, double> cheapestStart(const std::vector<std::vector<Placement>>& starts,
                                          PlacementCosts& costs, Limits& limits,
                                          const std::function<double(const Strategy&)>& price) {
  std::pair<Strategy, double> best;
  for (const auto& start : starts) {
    if (start.size() != costs.job().operators.size()) {
      throw std::invalid_argument("starts: a start needs one placement per operator");
    }
    Strategy strategy;
    for (const Placement& placement : start) {
      strategy.push_back(costs.placements().intern(placement));
    }
    if (!limits.start(strategy)) continue;
    const double seconds = price(strategy);
    if (best.first.empty() || seconds < best.second) best = {std::move(strategy), seconds};
  }
  if (best.first.empty()) throw std::invalid_argument("starts: no start fits into memory");
  limits.start(best.first);
  return best;
}

void checkEvaluations(int64_t evaluations) {
  if (evaluations < 0) {
    throw std::invalid_argument("evaluations: " + std::to_string(evaluations) + " is negative");
  }
}

}  // namespace topoopt
