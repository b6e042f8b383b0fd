// What a strategy may need: memory of the accelerators, and transfers.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sim/iteration/job.h"

namespace topoopt {

using Strategy = std::vector<int>;  // per operator: number of a placement

// Keeps what the current strategy needs while it changes. An all-to-all between the parts of two
// operators is a transfer for every pair of servers, and the flow level, which has the last word,
// takes seconds for some ten thousands: hence the second limit.
class Limits {
 public:
  Limits(PlacementCosts& costs, int64_t memory_bytes, int64_t transfers);

  // Whether `strategy` fits into memory; it is the one that changes are counted from, however many
  // transfers it makes.
  bool start(const Strategy& strategy);

  // Whether the strategy would fit if each operator of `changed` had its placement of `strategy`,
  // with no more transfers than the limit, or than it has now. A pipeline whose stages wait for
  // each other fits nowhere.
  bool fits(const Strategy& strategy, const std::vector<int>& changed);

  // The last proposal that `fits` was asked about is the strategy now.
  void accept();

 private:
  void addMemory(int op, int id, int64_t times);
  bool wholeFits(const Strategy& strategy);
  bool memoryFits() const;
  int64_t transfersAfter(const Strategy& strategy, const std::vector<int>& changed);
  int64_t transfersOf(const ReadTensor& tensor, const Strategy& strategy);

  PlacementCosts& costs_;
  int64_t memory_limit_bytes_, transfer_limit_;
  std::vector<std::vector<int>> tensors_of_;  // per operator: what it makes or reads
  std::vector<int64_t> transfers_of_;         // per tensor
  std::vector<int64_t> counted_;              // per tensor: the last proposal that counted it
  std::vector<std::pair<int, int64_t>> proposed_transfers_of_;  // tensor, its transfers
  int64_t proposals_ = 0;
  Strategy strategy_;
  std::vector<std::pair<int, int>> proposed_;  // operator, placement
  std::vector<int64_t> held_bytes_;            // per server, proposal included
  int64_t transfers_ = 0, proposed_transfers_ = 0;
};

}  // namespace topoopt
