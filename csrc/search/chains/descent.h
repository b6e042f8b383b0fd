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

// Tries the changes of a Neighbourhood in turn and keeps each that helps. Chains end in the valley
// that the coarse simulator likes most; the flow level may see a way out, and then another one,
// that chance does not find among a thousand others.
class Descent {
 public:
  // `pricing` may screen changes. `memory_limit_bytes` is that of one accelerator; `max_transfers`
  // as in Limits. Throws std::invalid_argument if `start` or the space does not match the job, or
  // if the start does not fit into memory.
  Descent(std::unique_ptr<FlowPricing> pricing, const SearchSpace& space,
          const std::vector<Placement>& start, int64_t memory_limit_bytes, int64_t max_transfers);

  // Tries `evaluations` changes, or as many as there are. What the screen finds slower by more than
  // the fraction `slack` is refused.
  void step(int evaluations, double slack);

  // No change helps, as far as is known since the last one that did.
  bool done() const { return tried_ >= changes_.size(); }

  // The same with blocks: some operators in a row get the placements of others.
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
  size_t next_ = 0;          // of changes_, which are a cycle
  size_t tried_ = 0;         // of changes_, since one helped
  size_t next_block_ = 0;    // of blocks_, which are a cycle
  size_t blocks_tried_ = 0;  // since one helped
  int64_t evaluations_ = 0;
};

}  // namespace topoopt
