// Limits of a strategy: accelerator memory and number of transfers.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sim/iteration/job.h"

namespace topoopt {

using Strategy = std::vector<int>;  // per operator: number of a placement

// Tracks the memory and transfers of the current strategy. An all-to-all between two operators is a
// transfer per pair of servers, and the flow level takes seconds for some ten thousands.
class Limits {
 public:
  Limits(PlacementCosts& costs, int64_t memory_bytes, int64_t transfers);

  // Returns whether `strategy` fits the memory and makes it current; its transfers are not limited.
  bool start(const Strategy& strategy);

  // Returns whether the strategy still fits with the operators of `changed` placed as in
  // `strategy`, and its transfers stay within the limit or the current number. A pipeline with
  // cyclic stages never fits.
  bool fits(const Strategy& strategy, const std::vector<int>& changed);

  // Makes the last proposal to `fits` the current strategy.
  void accept();

 private:
  void addMemory(int op, int id, int64_t times);
  bool wholeFits(const Strategy& strategy);
  bool memoryFits() const;
  int64_t transfersAfter(const Strategy& strategy, const std::vector<int>& changed);
  int64_t transfersOf(const ReadTensor& tensor, const Strategy& strategy);

  PlacementCosts& costs_;
  int64_t memory_limit_bytes_, transfer_limit_;
  std::vector<std::vector<int>> tensors_of_;  // per operator: inputs and outputs
  std::vector<int64_t> transfers_of_;         // per tensor
  std::vector<int64_t> counted_;              // per tensor: last proposal that counted it
  std::vector<std::pair<int, int64_t>> proposed_transfers_of_;  // tensor, its transfers
  int64_t proposals_ = 0;
  Strategy strategy_;
  std::vector<std::pair<int, int>> proposed_;  // operator, placement
  std::vector<int64_t> held_bytes_;            // per server, with the proposal
  int64_t transfers_ = 0, proposed_transfers_ = 0;
};

}  // namespace topoopt
