#include "search/flow_pricing.h"

namespace topoopt {
namespace {

constexpr size_t kRemembered = 1 << 15;  // strategies whose price is kept

}  // namespace

double FlowPricing::run(const Strategy& strategy) {
  const auto found = known_.find(strategy);
  if (found != known_.end()) return found->second;
  if (known_.size() >= kRemembered) known_.clear();
  ++simulations_;
  const double seconds = model_.run(strategy);
  tasks_ += model_.taskCount();
  return known_[strategy] = seconds;
}

}  // namespace topoopt
