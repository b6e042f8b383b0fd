// How a search changes a strategy.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/random.h"
#include "search/strategies/limits.h"
#include "sim/iteration/job.h"

namespace topoopt {

// The placements that an operator may have, in groups, such as those of the same degrees. A
// proposal draws a group first and then a placement, so that the many placements on few servers do
// not crowd out the few on many.
using PlacementGroups = std::vector<std::vector<Placement>>;

struct SearchSpace {
  std::vector<PlacementGroups> spaces;
  std::vector<int> space_of_operator;  // index into `spaces`
  std::vector<int> kind_of_operator;  // tables, linear layers, ...: proposals may change all of one
};

// Proposals as in FlexFlow's search (Jia et al. 2019): one operator gets another placement, one
// spreads along edges, two operators swap theirs. Beyond it: two neighbours get others at once; a
// run of operators gets one placement, which is what moves the cut between two stages of a
// pipeline, or goes on with the pattern of those before it; a few operators get what others have
// that begin at the same kind; a pattern moves by a few layers in a row of them; all of a kind get
// what they have in a start; and all of a kind that are placed alike are split in another way and
// spread. Layers repeat, and the best strategy of several in a row is often a pattern of two to
// four placements that are only good together.
class Moves {
 public:
  // Interns the placements of `space` and `starts`. Throws std::invalid_argument if one does not
  // match the job.
  Moves(PlacementCosts& costs, const SearchSpace& space,
        const std::vector<std::vector<Placement>>& starts);

  // Changes `strategy`; lists the operators that have another one now in `changed`, ascending.
  void propose(Strategy& strategy, Random& random, std::vector<int>& changed);

 private:
  bool allowed(int op, int id) const;
  int draw(int op, Random& random) const;
  void set(Strategy& strategy, int op, int to);
  void repeat(Strategy& strategy, int from, int to, int length);
  void proposeCopies(Strategy& strategy, Random& random);
  void proposeSwap(Strategy& strategy, Random& random);
  void proposePair(Strategy& strategy, Random& random);
  void proposeAsInStart(Strategy& strategy, Random& random);
  void proposeSpread(Strategy& strategy, Random& random);
  void proposeRepeat(Strategy& strategy, Random& random);
  void proposeShift(Strategy& strategy, Random& random);
  void proposeRun(Strategy& strategy, Random& random);

  const Placements& placements_;
  const int servers_;
  std::vector<std::vector<std::vector<int>>> spaces_;  // space -> group -> numbers
  std::vector<std::vector<char>> is_allowed_;          // space -> number
  std::vector<int> space_of_operator_, kind_of_operator_;
  std::vector<std::vector<int>> neighbours_;  // per operator: producers and consumers
  std::vector<int> ends_of_rows_;             // per operator: see blocks.h
  std::vector<Strategy> starts_;
  Strategy copied_;
  std::vector<std::pair<int, int>> before_;  // operators touched by the proposal, what they had
};

}  // namespace topoopt
