// Prices of strategies at flow level that several searches share: each strategy is simulated once.

#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "search/strategies/limits.h"
#include "sim/iteration/placements.h"

namespace topoopt {

// Of one job, with one number of micro-batches, on one network. Threads may share it.
class IterationPrices {
 public:
  struct Price {
    double seconds;
    int tasks;  // of the simulation
  };

  explicit IterationPrices(int servers) : servers_(servers), placements_(servers) {}

  int servers() const { return servers_; }

  // The strategy is numbered by `placements`, of one owner who only adds to them; `numbers` are
  // kept by that owner, empty at first: per placement its number here.
  std::optional<Price> find(const Strategy& strategy, const Placements& placements,
                            std::vector<int>& numbers);
  void add(const Strategy& strategy, const Placements& placements, std::vector<int>& numbers,
           Price price);

  size_t size() const;

 private:
  Strategy numbered(const Strategy& strategy, const Placements& placements,
                    std::vector<int>& numbers);

  int servers_;
  mutable std::mutex mutex_;
  Placements placements_;
  std::map<Strategy, Price> known_;
};

}  // namespace topoopt
