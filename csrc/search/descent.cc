#include "search/descent.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace topoopt {
namespace {

constexpr double kGain = 1e-4;  // a change that gains less does not help

}  // namespace

Descent::Descent(std::unique_ptr<FlowPricing> pricing, const SearchSpace& space,
                 const std::vector<Placement>& start, int64_t memory_limit_bytes,
                 int64_t max_transfers)
    : pricing_(std::move(pricing)),
      neighbourhood_(pricing_->costs(), space),
      limits_(pricing_->costs(), memory_limit_bytes, max_transfers),
      strategy_(pricing_->costs().intern(start)),
      proposal_(strategy_) {
  if (!limits_.start(strategy_)) throw std::invalid_argument("start: does not fit into memory");
  seconds_ = pricing_->run(strategy_);
  begin(0);
}

std::vector<Placement> Descent::best() const {
  std::vector<Placement> found;
  for (int id : strategy_) found.push_back(pricing_->costs().placements()[id]);
  return found;
}

// Changes of the strategy at hand, from those of operator `first` on.
void Descent::begin(int first) {
  changes_ = neighbourhood_.changes(strategy_);
  const auto at = std::find_if(changes_.begin(), changes_.end(), [first](const Change& change) {
    return change.operators.front() >= first;
  });
  next_ = at == changes_.end() ? 0 : at - changes_.begin();
  tried_ = 0;
}

bool Descent::helps(const Change& change) {
  neighbourhood_.apply(change, proposal_, changed_);
  if (!limits_.fits(proposal_, changed_)) return false;
  const double infinity = std::numeric_limits<double>::infinity();
  const double seconds = pricing_->propose(proposal_, changed_, infinity);
  if (seconds >= seconds_ * (1 - kGain)) return false;
  seconds_ = seconds;
  return true;
}

void Descent::step(int evaluations) {
  checkEvaluations(evaluations);
  for (int i = 0; i < evaluations && !done(); ++i) {
    ++evaluations_;
    const Change& change = changes_[next_];
    if (!helps(change)) {
      for (int op : changed_) proposal_[op] = strategy_[op];
      ++tried_;
      next_ = (next_ + 1) % changes_.size();
      continue;
    }
    pricing_->accept();
    limits_.accept();
    for (int op : changed_) strategy_[op] = proposal_[op];
    begin(change.operators.front());
  }
}

}  // namespace topoopt
