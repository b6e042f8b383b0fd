#include "search/moves.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace topoopt {

namespace {

constexpr double kChange = 0.45;        // one operator gets another placement
constexpr double kCopy = 0.25;          // one spreads along edges of the graph
constexpr double kSwap = 0.15;          // two operators swap theirs; otherwise a run
constexpr double kContinueCopy = 0.75;  // as in FlexFlow: the walk goes on with this probability

}  // namespace

Moves::Moves(PlacementCosts& costs, const SearchSpace& space)
    : space_of_operator_(space.space_of_operator), neighbours_(costs.job().operators.size()) {
  const size_t operators = costs.job().operators.size();
  for (size_t op = 0; op < operators; ++op) {
    for (const Operand& operand : costs.job().operators[op].operands) {
      neighbours_[op].push_back(operand.producer);
      neighbours_[operand.producer].push_back(static_cast<int>(op));
    }
  }
  for (const PlacementGroups& groups : space.spaces) {
    auto& ids = spaces_.emplace_back();
    for (const auto& group : groups) {
      if (group.empty()) throw std::invalid_argument("spaces: a group without placements");
      auto& numbers = ids.emplace_back();
      for (const Placement& placement : group) {
        numbers.push_back(costs.placements().intern(placement));
      }
    }
    if (ids.empty()) throw std::invalid_argument("spaces: a space without placements");
  }
  is_allowed_.assign(spaces_.size(), std::vector<char>(costs.placements().size(), 0));
  for (size_t s = 0; s < spaces_.size(); ++s) {
    for (const auto& ids : spaces_[s]) {
      for (int id : ids) is_allowed_[s][id] = 1;
    }
  }
  if (space_of_operator_.size() != operators) {
    throw std::invalid_argument("space_of_operator: needs one entry per operator");
  }
  for (int index : space_of_operator_) {
    if (index < 0 || index >= static_cast<int>(spaces_.size())) {
      throw std::invalid_argument("space_of_operator: " + std::to_string(index) + " is not in 0.." +
                                  std::to_string(static_cast<int>(spaces_.size()) - 1));
    }
  }
}

bool Moves::allowed(int op, int id) const {
  const auto& ids = is_allowed_[space_of_operator_[op]];
  return id < static_cast<int>(ids.size()) && ids[id];
}

int Moves::draw(int op, Random& random) const {
  const auto& groups = spaces_[space_of_operator_[op]];
  const auto& ids = groups[random.below(static_cast<int>(groups.size()))];
  return ids[random.below(static_cast<int>(ids.size()))];
}

void Moves::set(Strategy& strategy, int op, int to) {
  before_.emplace_back(op, strategy[op]);
  strategy[op] = to;
}

// Transfers cost nothing between operators on the same servers, so good strategies have long runs
// of equal placements; a walk along edges makes such runs in one proposal.
void Moves::proposeCopies(Strategy& strategy, Random& random) {
  int op = random.below(static_cast<int>(strategy.size()));
  const int copied = strategy[op];
  do {
    if (neighbours_[op].empty()) return;
    const auto& around = neighbours_[op];
    op = around[random.below(static_cast<int>(around.size()))];
    if (allowed(op, copied)) set(strategy, op, copied);
  } while (random.unit() < kContinueCopy);
}

void Moves::proposeSwap(Strategy& strategy, Random& random) {
  const int a = random.below(static_cast<int>(strategy.size()));
  const int b = random.below(static_cast<int>(strategy.size()));
  if (!allowed(a, strategy[b]) || !allowed(b, strategy[a])) return;
  const int of_a = strategy[a];
  set(strategy, a, strategy[b]);
  set(strategy, b, of_a);
}

// Either a new placement, or that of the operator before the run.
void Moves::proposeRun(Strategy& strategy, Random& random) {
  const int operators = static_cast<int>(strategy.size());
  const int first = random.below(operators);
  const int length = 1 + random.below(std::max(1, operators / 2));
  const bool extends = first > 0 && random.unit() < 0.5;
  const int to = extends ? strategy[first - 1] : draw(first, random);
  for (int op = first; op < std::min(operators, first + length); ++op) {
    if (allowed(op, to)) set(strategy, op, to);
  }
}

void Moves::propose(Strategy& strategy, Random& random, std::vector<int>& changed) {
  before_.clear();
  changed.clear();
  const double kind = random.unit();
  if (kind < kChange) {
    const int op = random.below(static_cast<int>(strategy.size()));
    set(strategy, op, draw(op, random));
  } else if (kind < kChange + kCopy) {
    proposeCopies(strategy, random);
  } else if (kind < kChange + kCopy + kSwap) {
    proposeSwap(strategy, random);
  } else {
    proposeRun(strategy, random);
  }
  // An operator may have been set twice: what it had first counts.
  std::stable_sort(before_.begin(), before_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < before_.size(); ++i) {
    const auto [op, was] = before_[i];
    if (i > 0 && before_[i - 1].first == op) continue;
    if (strategy[op] != was) changed.push_back(op);
  }
}

}  // namespace topoopt
