// The changes of a strategy that a descent tries in turn.

#pragma once

#include <map>
#include <set>
#include <vector>

#include "search/strategies/limits.h"
#include "search/strategies/moves.h"
#include "sim/iteration/job.h"

namespace topoopt {

// Moves all of `operators` that allow it to placement `to`.
struct PlacementChange {
  std::vector<int> operators;  // ascending
  int to;
};

// Models repeat layers, so most single changes are equivalent. Operators with equal costs, splits
// and neighbours' splits form a class: only its first, its last and all of it are changed. A change
// moves one operator, alone or with the parameterless ones that follow. Candidate placements are
// those on the servers of the operator or a neighbour, and the first of each split.
class Neighbourhood {
 public:
  // Interns the placements of `space`. Throws std::invalid_argument if one does not match the job.
  Neighbourhood(PlacementCosts& costs, const SearchSpace& space);

  // In ascending order of the first operator; each has an effect.
  std::vector<PlacementChange> changes(const Strategy& strategy);

  bool allows(int op, int id) const { return allowed_[space_of_operator_[op]].contains(id); }

  // Applies `change` to `strategy`; sets `changed` to the operators with a new placement.
  void apply(const PlacementChange& change, Strategy& strategy, std::vector<int>& changed) const;

 private:
  int kindOf(int op);
  int shapeOf(int id);
  std::vector<std::vector<int>> units(const Strategy& strategy);
  std::vector<int> signature(const std::vector<int>& unit, const Strategy& strategy);
  std::vector<int> destinations(const std::vector<int>& unit, const Strategy& strategy) const;

  PlacementCosts& costs_;
  std::vector<std::vector<int>> spaces_;  // space -> numbers of placements
  std::vector<std::set<int>> allowed_;    // the same as sets
  std::vector<int> space_of_operator_;
  std::vector<std::vector<int>> neighbours_;  // per operator: producers and consumers
  std::vector<int> kind_;                     // per operator: equal for equal costs
  std::map<std::vector<double>, int> kinds_;
  std::map<Placement, int> shapes_;
};

}  // namespace topoopt
