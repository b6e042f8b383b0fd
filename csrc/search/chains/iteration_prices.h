// A cache of flow-level prices shared by several searches.

#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "search/strategies/limits.h"
#include "sim/iteration/placements.h"

namespace topoopt {

// For one job, number of micro-batches and network. Thread-safe.
class IterationPrices {
 public:
  struct Price {
    double seconds;
    int tasks;  // of the simulation
  };

  explicit IterationPrices(int servers) : servers_(servers), placements_(servers) {}

  int servers() const { return servers_; }

  // `placements` belongs to one caller and may only grow; `numbers`, initially empty, is that
  // caller's map from its placement ids to ids here.
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
