// The last step of planning: from one strategy downhill, at flow level, until no change helps.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "search/chains/flow_pricing.h"
#include "search/strategies/blocks.h"
#include "search/strategies/limits.h"
#include "search/strategies/neighbourhood.h"

namespace topoopt {

// Tries the changes of a Neighbourhood in turn and keeps each improvement. Chains end in a local
// optimum of the coarse simulator. The flow level may find improvements there that random proposals
// miss.
class Descent {
 public:
  // `pricing` may screen changes. `memory_limit_bytes` is per accelerator; `max_transfers` as in
  // Limits. Throws std::invalid_argument if `start` or the space does not match the job, or if the
  // start exceeds the memory.
  Descent(std::unique_ptr<FlowPricing> pricing, const SearchSpace& space,
          const std::vector<Placement>& start, int64_t memory_limit_bytes, int64_t max_transfers);

  // Tries up to `evaluations` changes. Rejects those that the screen predicts to be slower by more
  // than the fraction `slack`.
  void step(int evaluations, double slack);

  // Returns whether all changes were tried since the last improvement.
  bool done() const { return tried_ >= changes_.size(); }

  // The same with blocks: consecutive operators get the placements of others.
  void stepBlocks(int evaluations, double slack);
  bool blocksDone() const { return blocks_tried_ >= blocks_.size(); }

  double bestSeconds() const { return seconds_; }
  std::vector<Placement> best() const;
  int64_t evaluations() const { return evaluations_; }
  const FlowPricing& pricing() const { return *pricing_; }

 private:
  bool helps();
  void keep();
  void restore();
  void begin(int first);
  void apply(const Block& block);

  std::unique_ptr<FlowPricing> pricing_;
  Neighbourhood neighbourhood_;
  std::vector<Block> blocks_;
  Limits limits_;
  Strategy strategy_, proposal_;
  std::vector<int> changed_;
  double seconds_ = 0;
  std::vector<PlacementChange> changes_;
  size_t next_ = 0;          // cyclic index into changes_
  size_t tried_ = 0;         // since the last improvement
  size_t next_block_ = 0;    // cyclic index into blocks_
  size_t blocks_tried_ = 0;  // since the last improvement
  int64_t evaluations_ = 0;
};

}  // namespace topoopt
