#include "search/chains/flow_pricing.h"

#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

namespace topoopt {
namespace {

constexpr size_t kRemembered = 1 << 15;  // cached prices

}  // namespace

FlowPricing::FlowPricing(std::shared_ptr<const Job> job, std::shared_ptr<RoutedNetwork> network,
                         std::shared_ptr<IterationPrices> prices, double slack)
    : model_(job, network), prices_(std::move(prices)) {
  setSlack(slack);
  if (std::isfinite(slack)) screen_ = std::make_unique<CoarseSimulator>(std::move(job), *network);
}

void FlowPricing::setSlack(double slack) {
  if (!(slack >= 0)) {
    throw std::invalid_argument("slack: " + std::to_string(slack) + " is not at least 0");
  }
  slack_ = slack;
}

double FlowPricing::run(const Strategy& strategy) {
  if (screen_) base_s_ = screen_->run(coarse(strategy));
  return price(strategy);
}

double FlowPricing::propose(const Strategy& strategy, const std::vector<int>& changed, double) {
  if (screen_) {
    const double limit_s = base_s_ * (1 + slack_);
    proposed_s_ = screen_->propose(coarse(strategy), changed, limit_s);
    if (proposed_s_ > limit_s) return std::numeric_limits<double>::infinity();
  }
  return price(strategy);
}

void FlowPricing::accept() {
  if (!screen_) return;
  screen_->accept();
  base_s_ = proposed_s_;
}

double FlowPricing::price(const Strategy& strategy) {
  const auto found = known_.find(strategy);
  if (found != known_.end()) return found->second;
  if (known_.size() >= kRemembered) known_.clear();
  auto price = prices_->find(strategy, model_.placements(), number_in_prices_);
  if (!price) {
    ++simulations_;
    const double seconds = model_.run(strategy);
    price = {seconds, model_.taskCount()};
    prices_->add(strategy, model_.placements(), number_in_prices_, *price);
  }
  tasks_ += price->tasks;
  return known_[strategy] = price->seconds;
}

// Both intern placements in order of their first use.
const Strategy& FlowPricing::coarse(const Strategy& strategy) {
  const Placements& placements = model_.placements();
  while (static_cast<int>(coarse_id_.size()) < placements.size()) {
    const Placement& next = placements[static_cast<int>(coarse_id_.size())];
    coarse_id_.push_back(screen_->costs().placements().intern(next));
  }
  coarse_.clear();
  for (int id : strategy) coarse_.push_back(coarse_id_[id]);
  return coarse_;
}

}  // namespace topoopt
