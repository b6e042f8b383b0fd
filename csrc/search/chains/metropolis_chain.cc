#include "search/chains/metropolis_chain.h"

#include <limits>
#include <tuple>

namespace topoopt {
namespace {

constexpr double kMilestone = 1e-3;  // relative improvement between milestones
constexpr size_t kMilestones = 256;

}  // namespace

template <typename Pricing>
MetropolisChain<Pricing>::MetropolisChain(std::unique_ptr<Pricing> pricing,
                                          const SearchSpace& space,
                                          const std::vector<std::vector<Placement>>& starts,
                                          int64_t memory_limit_bytes, int64_t max_transfers,
                                          uint64_t seed, double beta)
    : pricing_(std::move(pricing)),
      moves_(pricing_->costs(), space, starts),
      limits_(pricing_->costs(), memory_limit_bytes, max_transfers),
      cooling_(beta),
      random_(seed) {
  const auto price = [&](const Strategy& strategy) { return pricing_->run(strategy); };
  std::tie(current_, current_s_) = cheapestStart(starts, pricing_->costs(), limits_, price);
  pricing_->run(current_);
  proposal_ = current_;
  best_s_ = current_s_;
  milestones_.emplace_back(best_s_, current_);
}

template <typename Pricing>
std::vector<std::pair<double, std::vector<Placement>>> MetropolisChain<Pricing>::best(
    int count) const {
  std::vector<std::pair<double, std::vector<Placement>>> found;
  const Placements& placements = pricing_->costs().placements();
  for (size_t i = milestones_.size(); i-- > 0 && static_cast<int>(found.size()) < count;) {
    auto& [seconds, strategy] = found.emplace_back();
    seconds = milestones_[i].first;
    for (int id : milestones_[i].second) strategy.push_back(placements[id]);
  }
  return found;
}

// The last milestone is the best; a slightly better one replaces it.
template <typename Pricing>
void MetropolisChain<Pricing>::remember() {
  const size_t last = milestones_.size() - 1;
  const double before_s =
      last == 0 ? std::numeric_limits<double>::infinity() : milestones_[last - 1].first;
  if (milestones_[last].first > before_s * (1 - kMilestone)) {
    milestones_[last] = {current_s_, current_};
    return;
  }
  milestones_.emplace_back(current_s_, current_);
  if (milestones_.size() > kMilestones) milestones_.erase(milestones_.begin());
}

template <typename Pricing>
bool MetropolisChain<Pricing>::accepts() {
  double limit_s = std::numeric_limits<double>::infinity();
  if (Pricing::kChain.draws_limit) {
    limit_s = slowestAccepted(current_s_, 1 - random_.unit(), cooling_.next());
  }
  if (changed_.empty() || !limits_.fits(proposal_, changed_)) return false;
  proposed_s_ = pricing_->propose(proposal_, changed_, limit_s);
  if (Pricing::kChain.draws_limit) return proposed_s_ <= limit_s;
  return random_.unit() < acceptanceProbability(current_s_, proposed_s_, cooling_.next());
}

template <typename Pricing>
void MetropolisChain<Pricing>::judge() {
  if (!accepts()) {
    for (int op : changed_) proposal_[op] = current_[op];
    return;
  }
  ++accepted_;
  pricing_->accept();
  limits_.accept();
  for (int op : changed_) current_[op] = proposal_[op];
  current_s_ = proposed_s_;
  if (current_s_ >= best_s_) return;
  best_s_ = current_s_;
  best_at_ = evaluations_;
  remember();
}

template <typename Pricing>
void MetropolisChain<Pricing>::returnToBest() {
  if (evaluations_ - best_at_ < Pricing::kChain.return_after) return;
  if (current_s_ == best_s_ && !Pricing::kChain.returns_from_equal) return;
  current_ = proposal_ = milestones_.back().second;
  current_s_ = pricing_->run(current_);
  limits_.start(current_);
  best_at_ = evaluations_;
}

template <typename Pricing>
void MetropolisChain<Pricing>::step(int evaluations) {
  checkEvaluations(evaluations);
  for (int i = 0; i < evaluations; ++i) {
    ++evaluations_;
    moves_.propose(proposal_, random_, changed_);
    judge();
    returnToBest();
  }
}

template class MetropolisChain<CoarseSimulator>;
template class MetropolisChain<FlowPricing>;

}  // namespace topoopt
