#include "search/strategy_search.h"

#include <tuple>

namespace topoopt {

namespace {

constexpr int64_t kReturnAfter = 500;    // evaluations without a new best before going back to it
constexpr size_t kRemembered = 1 << 15;  // strategies whose price is kept

}  // namespace

StrategySearch::StrategySearch(std::shared_ptr<const Job> job,
                               std::shared_ptr<RoutedNetwork> network, const SearchSpace& space,
                               const std::vector<std::vector<Placement>>& starts,
                               int64_t memory_limit_bytes, int64_t max_transfers, uint64_t seed,
                               double beta)
    : job_(job),
      model_(job, std::move(network)),
      moves_(model_.costs(), space),
      limits_(model_.costs(), memory_limit_bytes, max_transfers),
      cooling_(beta),
      random_(seed) {
  const auto price = [&](const Strategy& strategy) { return this->price(strategy); };
  std::tie(current_, current_s_) = cheapestStart(starts, model_.costs(), limits_, price);
  best_ = current_;
  best_s_ = current_s_;
}

std::vector<Placement> StrategySearch::best() const {
  std::vector<Placement> strategy;
  for (int id : best_) strategy.push_back(model_.placements()[id]);
  return strategy;
}

double StrategySearch::price(const Strategy& strategy) {
  const auto found = known_.find(strategy);
  if (found != known_.end()) return found->second;
  if (known_.size() >= kRemembered) known_.clear();
  ++simulations_;
  const double seconds = model_.run(strategy);
  tasks_ += model_.taskCount();
  return known_[strategy] = seconds;
}

void StrategySearch::judge(const Strategy& proposal) {
  if (changed_.empty() || !limits_.fits(proposal, changed_)) return;
  const double seconds = price(proposal);
  if (random_.unit() >= acceptanceProbability(current_s_, seconds, cooling_.next())) return;
  ++accepted_;
  limits_.accept();
  current_ = proposal;
  current_s_ = seconds;
  if (seconds < best_s_) {
    best_ = proposal;
    best_s_ = seconds;
    best_at_ = evaluations_;
  }
}

void StrategySearch::step(int evaluations) {
  checkEvaluations(evaluations);
  Strategy proposal;
  for (int i = 0; i < evaluations; ++i) {
    ++evaluations_;
    proposal = current_;
    moves_.propose(proposal, random_, changed_);
    judge(proposal);
    if (evaluations_ - best_at_ >= kReturnAfter) {
      current_ = best_;
      current_s_ = best_s_;
      limits_.start(current_);
      best_at_ = evaluations_;
    }
  }
}

}  // namespace topoopt
