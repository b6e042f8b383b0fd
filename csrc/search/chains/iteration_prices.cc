#include "search/chains/iteration_prices.h"

namespace topoopt {
namespace {

constexpr size_t kMostPrices = 1 << 15;  // cached prices

}  // namespace

std::optional<IterationPrices::Price> IterationPrices::find(const Strategy& strategy,
                                                            const Placements& placements,
                                                            std::vector<int>& numbers) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(numbered(strategy, placements, numbers));
  if (found == known_.end()) return std::nullopt;
  return found->second;
}

void IterationPrices::add(const Strategy& strategy, const Placements& placements,
                          std::vector<int>& numbers, Price price) {
  const std::lock_guard lock(mutex_);
  if (known_.size() >= kMostPrices) known_.clear();
  known_[numbered(strategy, placements, numbers)] = price;
}

size_t IterationPrices::size() const {
  const std::lock_guard lock(mutex_);
  return known_.size();
}

Strategy IterationPrices::numbered(const Strategy& strategy, const Placements& placements,
                                   std::vector<int>& numbers) {
  while (static_cast<int>(numbers.size()) < placements.size()) {
    numbers.push_back(placements_.intern(placements[static_cast<int>(numbers.size())]));
  }
  Strategy made;
  for (int id : strategy) made.push_back(numbers[id]);
  return made;
}

}  // namespace topoopt
