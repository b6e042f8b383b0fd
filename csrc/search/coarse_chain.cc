#include "search/coarse_chain.h"

#include <limits>
#include <tuple>

namespace topoopt {

namespace {

constexpr int64_t kReturnAfter = 20000;  // evaluations without a new best before going back to it
constexpr double kMilestone = 1e-3;      // how much better than the last one
constexpr size_t kMilestones = 256;

}  // namespace

CoarseChain::CoarseChain(std::shared_ptr<const Job> job, const RoutedNetwork& network,
                         const SearchSpace& space,
                         const std::vector<std::vector<Placement>>& starts,
                         int64_t memory_limit_bytes, int64_t max_transfers, uint64_t seed,
                         double beta)
    : job_(job),
      simulator_(job, network),
      moves_(simulator_.costs(), space),
      limits_(simulator_.costs(), memory_limit_bytes, max_transfers),
      cooling_(beta),
      random_(seed) {
  const auto price = [&](const Strategy& strategy) { return simulator_.run(strategy); };
  std::tie(current_, current_s_) = cheapestStart(starts, simulator_.costs(), limits_, price);
  simulator_.run(current_);
  proposal_ = current_;
  best_s_ = current_s_;
  milestones_.emplace_back(best_s_, current_);
}

std::vector<std::pair<double, std::vector<Placement>>> CoarseChain::best(int count) const {
  std::vector<std::pair<double, std::vector<Placement>>> found;
  const Placements& placements = simulator_.costs().placements();
  for (size_t i = milestones_.size(); i-- > 0 && static_cast<int>(found.size()) < count;) {
    auto& [seconds, strategy] = found.emplace_back();
    seconds = milestones_[i].first;
    for (int id : milestones_[i].second) strategy.push_back(placements[id]);
  }
  return found;
}

// The last milestone is the best; it gives way to one that is hardly better.
void CoarseChain::remember() {
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

void CoarseChain::judge() {
  const double limit_s = slowestAccepted(current_s_, 1 - random_.unit(), cooling_.next());
  bool accepted = false;
  if (!changed_.empty() && limits_.fits(proposal_, changed_)) {
    const double seconds = simulator_.propose(proposal_, changed_, limit_s);
    accepted = seconds <= limit_s;
    if (accepted) {
      ++accepted_;
      simulator_.accept();
      limits_.accept();
      for (int op : changed_) current_[op] = proposal_[op];
      current_s_ = seconds;
      if (seconds < best_s_) {
        best_s_ = seconds;
        best_at_ = evaluations_;
        remember();
      }
    }
  }
  if (!accepted) {
    for (int op : changed_) proposal_[op] = current_[op];
  }
}

void CoarseChain::step(int evaluations) {
  checkEvaluations(evaluations);
  for (int i = 0; i < evaluations; ++i) {
    ++evaluations_;
    moves_.propose(proposal_, random_, changed_);
    judge();
    if (evaluations_ - best_at_ >= kReturnAfter && current_s_ > best_s_) {
      current_ = proposal_ = milestones_.back().second;
      current_s_ = simulator_.run(current_);
      limits_.start(current_);
      best_at_ = evaluations_;
    }
  }
}

}  // namespace topoopt
