// How a search changes a strategy, and whether the result fits into memory.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/random.h"
#include "sim/job.h"

namespace topoopt {

// The placements that an operator may have, in groups, such as those of the same degrees. A
// proposal draws a group first and then a placement, so that the many placements on few servers do
// not crowd out the few on many.
using PlacementGroups = std::vector<std::vector<Placement>>;

struct SearchSpace {
  std::vector<PlacementGroups> spaces;
  std::vector<int> space_of_operator;  // index into `spaces`
};

using Strategy = std::vector<int>;  // per operator: number of a placement

// Proposals as in FlexFlow's search (Jia et al. 2019): one operator gets another placement, one
// spreads along edges, two operators swap theirs; and, beyond it, a run of operators that follow
// each other gets one, which is what moves the cut between two stages of a pipeline.
class Moves {
 public:
  // Interns the placements of `space`. Throws std::invalid_argument if it does not match the job.
  Moves(PlacementCosts& costs, const SearchSpace& space);

  // Changes `strategy`; lists the operators that have another one now in `changed`, ascending.
  void propose(Strategy& strategy, Random& random, std::vector<int>& changed);

 private:
  bool allowed(int op, int id) const;
  int draw(int op, Random& random) const;
  void set(Strategy& strategy, int op, int to);
  void proposeCopies(Strategy& strategy, Random& random);
  void proposeSwap(Strategy& strategy, Random& random);
  void proposeRun(Strategy& strategy, Random& random);

  std::vector<std::vector<std::vector<int>>> spaces_;  // space -> group -> numbers
  std::vector<std::vector<char>> is_allowed_;          // space -> number
  std::vector<int> space_of_operator_;
  std::vector<std::vector<int>> neighbours_;  // per operator: producers and consumers
  std::vector<std::pair<int, int>> before_;   // operators touched by the proposal, what they had
};

// The memory that a strategy needs, kept while it changes.
class MemoryUse {
 public:
  MemoryUse(PlacementCosts& costs, int64_t limit_bytes);

  // Whether `strategy` fits; it is the one that changes are counted from.
  bool start(const Strategy& strategy);

  // Whether the last strategy would fit if each operator of `changed` had its placement of
  // `strategy`. A pipeline whose stages wait for each other fits nowhere.
  bool fits(const Strategy& strategy, const std::vector<int>& changed);

  // The last proposal that `fits` was asked about is the strategy now.
  void accept();

 private:
  void add(int op, int id, int64_t times);
  bool wholeFits(const Strategy& strategy);

  PlacementCosts& costs_;
  int64_t limit_bytes_;
  Strategy strategy_;
  std::vector<std::pair<int, int>> proposed_;  // operator, placement
  std::vector<int64_t> held_bytes_;            // per server, proposal included
};

}  // namespace topoopt
