#include "search/strategies/neighbourhood.h"

#include <algorithm>
#include <utility>

namespace topoopt {

Neighbourhood::Neighbourhood(PlacementCosts& costs, const SearchSpace& space)
    : costs_(costs), space_of_operator_(space.space_of_operator) {
  const auto& operators = costs.job().operators;
  neighbours_.resize(operators.size());
  for (size_t op = 0; op < operators.size(); ++op) {
    for (const Operand& operand : operators[op].operands) {
      neighbours_[op].push_back(operand.producer);
      neighbours_[operand.producer].push_back(static_cast<int>(op));
    }
  }
  for (const PlacementGroups& groups : space.interned(costs)) {
    auto& ids = spaces_.emplace_back();
    for (const auto& group : groups) ids.insert(ids.end(), group.begin(), group.end());
    allowed_.emplace_back(ids.begin(), ids.end());
  }
  for (size_t op = 0; op < operators.size(); ++op) kind_.push_back(kindOf(static_cast<int>(op)));
}

int Neighbourhood::kindOf(int op) {
  const ShardedOperator& of = costs_.job().operators[op];
  std::vector<double> cost{static_cast<double>(space_of_operator_[op]), of.all_reduce_bytes};
  for (const ShardCost& shard : of.shards) {
    cost.push_back(shard.forward_s);
    cost.push_back(static_cast<double>(shard.state_bytes));
  }
  for (const Operand& operand : of.operands) cost.push_back(operand.size_bytes);
  return kinds_.emplace(std::move(cost), static_cast<int>(kinds_.size())).first->second;
}

// For a few operators, the number of servers matters more than their identity.
int Neighbourhood::shapeOf(int id) {
  Placement shape = costs_.placements()[id];
  if (static_cast<int>(shape.servers.size()) < costs_.job().servers) shape.servers.clear();
  return shapes_.emplace(std::move(shape), static_cast<int>(shapes_.size())).first->second;
}

std::vector<int> Neighbourhood::signature(const std::vector<int>& unit, const Strategy& strategy) {
  std::vector<int> found{static_cast<int>(unit.size())};
  std::vector<std::pair<int, int>> around;
  for (int op : unit) {
    found.push_back(kind_[op]);
    found.push_back(shapeOf(strategy[op]));
    for (int other : neighbours_[op]) around.emplace_back(kind_[other], shapeOf(strategy[other]));
  }
  std::sort(around.begin(), around.end());
  for (const auto& [kind, shape] : around) {
    found.push_back(kind);
    found.push_back(shape);
  }
  return found;
}

std::vector<std::vector<int>> Neighbourhood::units(const Strategy& strategy) {
  const auto& operators = costs_.job().operators;
  std::map<std::vector<int>, std::vector<std::vector<int>>> alike;
  for (int op = 0; op < static_cast<int>(operators.size()); ++op) {
    std::vector<int> unit{op};
    alike[signature(unit, strategy)].push_back(unit);
    const auto follows = [&](int next) {
      const auto& of = operators[next];
      return of.all_reduce_bytes == 0 &&
             std::any_of(of.operands.begin(), of.operands.end(),
                         [next](const Operand& operand) { return operand.producer == next - 1; });
    };
    for (int next = op + 1; next < static_cast<int>(operators.size()) && follows(next); ++next) {
      unit.push_back(next);
    }
    if (unit.size() > 1) alike[signature(unit, strategy)].push_back(unit);
  }
  std::set<std::vector<int>> found;
  for (const auto& [signature, members] : alike) {
    found.insert(members.front());
    found.insert(members.back());
    std::set<int> all;
    for (const auto& member : members) all.insert(member.begin(), member.end());
    found.emplace(all.begin(), all.end());
  }
  return {found.begin(), found.end()};
}

std::vector<int> Neighbourhood::destinations(const std::vector<int>& unit,
                                             const Strategy& strategy) const {
  const Placements& placements = costs_.placements();
  std::set<std::vector<int>> near;
  for (int op : unit) {
    near.insert(placements[strategy[op]].servers);
    for (int other : neighbours_[op]) near.insert(placements[strategy[other]].servers);
  }
  std::vector<int> found;
  std::set<Degrees> offered;
  for (int id : spaces_[space_of_operator_[unit.front()]]) {
    const Placement& placement = placements[id];
    const bool is_first = offered.insert(placement.degrees).second;
    if (is_first || near.contains(placement.servers)) found.push_back(id);
  }
  return found;
}

std::vector<PlacementChange> Neighbourhood::changes(const Strategy& strategy) {
  std::vector<PlacementChange> found;
  Strategy proposal = strategy;
  std::vector<int> changed;
  for (const auto& unit : units(strategy)) {
    for (int to : destinations(unit, strategy)) {
      PlacementChange change{unit, to};
      apply(change, proposal, changed);
      for (int op : changed) proposal[op] = strategy[op];
      if (!changed.empty()) found.push_back(std::move(change));
    }
  }
  return found;
}

void Neighbourhood::apply(const PlacementChange& change, Strategy& strategy,
                          std::vector<int>& changed) const {
  changed.clear();
  for (int op : change.operators) {
    if (!allows(op, change.to) || strategy[op] == change.to) continue;
    strategy[op] = change.to;
    changed.push_back(op);
  }
}

}  // namespace topoopt
