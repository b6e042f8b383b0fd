// Random changes of a strategy.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/random.h"
#include "search/strategies/limits.h"
#include "sim/iteration/job.h"

namespace topoopt {

// The allowed placements of an operator in groups, such as by degrees. A proposal draws a group
// first, so that the many placements on few servers do not crowd out the few on many.
using PlacementGroups = std::vector<std::vector<int>>;

struct SearchSpace {
  std::vector<Placement> placements;    // of all spaces, each once
  std::vector<PlacementGroups> spaces;  // indices into `placements`
  std::vector<int> space_of_operator;   // index into `spaces`
  // Tables, linear layers, ...: some proposals change all of a kind.
  std::vector<int> kind_of_operator;

  // `spaces` as ids of `costs`, which interns the placements that they use. Throws
  // std::invalid_argument if one does not match the job, or is not there.
  std::vector<PlacementGroups> interned(PlacementCosts& costs) const;
};

// Three proposals are from FlexFlow's search (Jia et al. 2019): changing one placement, spreading
// one along edges, and swapping two. Others change two neighbours together, and give a run of
// operators one placement or the preceding pattern, which moves pipeline cuts. They also copy
// placements between ranges of the same kind, and shift a pattern within a row. For all operators
// of a kind, they copy a start, or split and spread equally placed ones. Layers repeat, and their
// best strategy is often a pattern of two to four placements that are only good together.
class Moves {
 public:
  // Interns the placements of `space` and `starts`. Throws std::invalid_argument if one does not
  // match the job.
  Moves(PlacementCosts& costs, const SearchSpace& space,
        const std::vector<std::vector<Placement>>& starts);

  // Changes `strategy`; sets `changed` to the operators with a new placement, ascending.
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
  std::vector<PlacementGroups> spaces_;        // of ids
  std::vector<std::vector<char>> is_allowed_;  // space -> number
  std::vector<int> space_of_operator_, kind_of_operator_;
  std::vector<std::vector<int>> neighbours_;  // per operator: producers and consumers
  std::vector<int> ends_of_rows_;             // per operator: see blocks.h
  std::vector<Strategy> starts_;
  Strategy copied_;
  std::vector<std::pair<int, int>> before_;  // changed operators and their old placements
};

}  // namespace topoopt
