// The changes of a strategy that a descent tries one after the other.

#pragma once

#include <map>
#include <set>
#include <vector>

#include "search/strategies/limits.h"
#include "search/strategies/moves.h"
#include "sim/iteration/job.h"

namespace topoopt {

// All of `operators` get placement `to`, those that it is allowed for.
struct PlacementChange {
  std::vector<int> operators;  // ascending
  int to;
};

// Models repeat their layers, so most changes of one operator are like those of another: of
// operators that cost the same, are split the same way, and so are those that they read and that
// read them, only the first and the last are changed, and all of them together. A change is that of
// one operator, or of one and those without parameters that follow it. Placements are those on
// servers that the operator or a neighbour is on, and the first of each way of splitting.
class Neighbourhood {
 public:
  // Interns the placements of `space`. Throws std::invalid_argument if one does not match the job.
  Neighbourhood(PlacementCosts& costs, const SearchSpace& space);

  // In ascending order of their first operators; each changes something.
  std::vector<PlacementChange> changes(const Strategy& strategy);

  bool allows(int op, int id) const { return allowed_[space_of_operator_[op]].contains(id); }

  // `strategy` with `change`; lists the operators that have another placement then in `changed`.
  void apply(const PlacementChange& change, Strategy& strategy, std::vector<int>& changed) const;

 private:
  int kindOf(int op);
  int shapeOf(int id);
  std::vector<std::vector<int>> units(const Strategy& strategy);
  std::vector<int> signature(const std::vector<int>& unit, const Strategy& strategy);
  std::vector<int> destinations(const std::vector<int>& unit, const Strategy& strategy) const;

  PlacementCosts& costs_;
  std::vector<std::vector<int>> spaces_;  // space -> numbers of placements
  std::vector<std::set<int>> allowed_;    // the same
  std::vector<int> space_of_operator_;
  std::vector<std::vector<int>> neighbours_;  // per operator: producers and consumers
  std::vector<int> kind_;                     // per operator: the same where costs are
  std::map<std::vector<double>, int> kinds_;
  std::map<Placement, int> shapes_;
};

}  // namespace topoopt
