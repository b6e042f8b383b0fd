#include "search/strategies/moves.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "search/strategies/blocks.h"

namespace topoopt {

namespace {

// Probabilities of the proposals; the rest is a run of operators.
constexpr double kChange = 0.3;   // one operator gets another placement
constexpr double kCopy = 0.15;    // a placement spreads along edges of the graph
constexpr double kSwap = 0.1;     // two operators swap placements
constexpr double kPair = 0.1;     // two neighbours get other placements
constexpr double kRepeat = 0.05;  // a few operators get the placements of others
constexpr double kShift = 0.05;   // a pattern moves by some layers; without a row: one changes
constexpr double kStart = 0.02;   // all operators of a kind copy a start
constexpr double kSpread = 0.02;  // equally placed operators of a kind are spread
constexpr double kExtend = 0.7;   // of runs: continue the preceding placements
constexpr int kLongestPattern = 8;
constexpr int kTries = 100;             // attempts to find free servers
constexpr double kContinueCopy = 0.75;  // probability of continuing the walk, as in FlexFlow

}  // namespace

std::vector<PlacementGroups> SearchSpace::interned(PlacementCosts& costs) const {
  std::vector<int> ids(placements.size(), -1);
  std::vector<PlacementGroups> found = spaces;
  for (PlacementGroups& groups : found) {
    for (auto& group : groups) {
      for (int& number : group) {
        if (number < 0 || number >= static_cast<int>(ids.size())) {
          throw std::invalid_argument("spaces: " + std::to_string(number) + " is not in 0.." +
                                      std::to_string(static_cast<int>(ids.size()) - 1));
        }
        int& id = ids[number];
        if (id < 0) id = costs.placements().intern(placements[number]);
        number = id;
      }
    }
  }
  return found;
}

Moves::Moves(PlacementCosts& costs, const SearchSpace& space,
             const std::vector<std::vector<Placement>>& starts)
    : placements_(costs.placements()),
      servers_(costs.job().servers),
      spaces_(space.interned(costs)),
      space_of_operator_(space.space_of_operator),
      kind_of_operator_(space.kind_of_operator),
      neighbours_(costs.job().operators.size()),
      ends_of_rows_(endsOfRows(costs.job())) {
  const size_t operators = costs.job().operators.size();
  for (size_t op = 0; op < operators; ++op) {
    for (const Operand& operand : costs.job().operators[op].operands) {
      neighbours_[op].push_back(operand.producer);
      neighbours_[operand.producer].push_back(static_cast<int>(op));
    }
  }
  for (const PlacementGroups& groups : spaces_) {
    for (const auto& group : groups) {
      if (group.empty()) throw std::invalid_argument("spaces: a group without placements");
    }
    if (groups.empty()) throw std::invalid_argument("spaces: a space without placements");
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
  if (kind_of_operator_.size() != operators) {
    throw std::invalid_argument("kind_of_operator: needs one entry per operator");
  }
  for (int index : space_of_operator_) {
    if (index < 0 || index >= static_cast<int>(spaces_.size())) {
      throw std::invalid_argument("space_of_operator: " + std::to_string(index) + " is not in 0.." +
                                  std::to_string(static_cast<int>(spaces_.size()) - 1));
    }
  }
  for (const auto& start : starts) {
    if (start.size() != operators) {
      throw std::invalid_argument("starts: a start needs one placement per operator");
    }
    Strategy& numbers = starts_.emplace_back();
    for (const Placement& placement : start) {
      numbers.push_back(costs.placements().intern(placement));
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

// Operators on the same servers need no transfers, so good strategies have long runs of equal
// placements. A walk along edges makes such runs in one proposal.
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

// A new placement, or the repeated pattern of the operators before the run.
void Moves::proposeRun(Strategy& strategy, Random& random) {
  const int operators = static_cast<int>(strategy.size());
  const int first = random.below(operators);
  const int length = 1 + random.below(std::max(1, operators / 2));
  const bool extends = first > 0 && random.unit() < kExtend;
  const int period = extends ? 1 + random.below(std::min(first, kLongestPattern)) : 0;
  const int drawn = extends ? 0 : draw(first, random);
  for (int op = first; op < std::min(operators, first + length); ++op) {
    const int to = extends ? strategy[op - period] : drawn;
    if (allowed(op, to)) set(strategy, op, to);
  }
}

// Two splits may be cheaper in combination than each of them alone.
void Moves::proposePair(Strategy& strategy, Random& random) {
  const int op = random.below(static_cast<int>(strategy.size()));
  set(strategy, op, draw(op, random));
  const auto& around = neighbours_[op];
  if (around.empty()) return;
  const int other = around[random.below(static_cast<int>(around.size()))];
  set(strategy, other, draw(other, random));
}

void Moves::repeat(Strategy& strategy, int from, int to, int length) {
  copied_.assign(strategy.begin() + from, strategy.begin() + from + length);
  for (int i = 0; i < length; ++i) {
    if (allowed(to + i, copied_[i])) set(strategy, to + i, copied_[i]);
  }
}

// Layers repeat, so good placements of a few operators may suit others.
void Moves::proposeRepeat(Strategy& strategy, Random& random) {
  const int operators = static_cast<int>(strategy.size());
  const int from = random.below(operators), to = random.below(operators);
  const int length = 1 + random.below(kLongestPattern);
  if (from == to || kind_of_operator_[from] != kind_of_operator_[to]) return;
  repeat(strategy, from, to, std::min(length, operators - std::max(from, to)));
}

// A pattern of placements may begin some layers earlier or later. Operators outside of rows, such
// as tables, have no pattern: one of them gets another placement.
void Moves::proposeShift(Strategy& strategy, Random& random) {
  const int operators = static_cast<int>(strategy.size());
  const int to = random.below(operators);
  const int away = 1 + random.below(kLongestPattern);
  const int from = random.unit() < 0.5 ? to + away : to - away;
  const int first = std::min(from, to), second = std::max(from, to);
  if (first < 0 || second >= ends_of_rows_[first] ||
      kind_of_operator_[from] != kind_of_operator_[to]) {
    set(strategy, to, draw(to, random));
    return;
  }
  const int length = 1 + random.below(std::max(1, operators / 2));
  repeat(strategy, from, to, std::min(length, ends_of_rows_[first] - second));
}

// For many similar operators, such as embedding tables, changing each alone may lose where changing
// all gains. Starts have them well spread. Layers with common splits are excluded.
void Moves::proposeAsInStart(Strategy& strategy, Random& random) {
  const int kind = kind_of_operator_[random.below(static_cast<int>(strategy.size()))];
  const Strategy& start = starts_[random.below(static_cast<int>(starts_.size()))];
  for (int op = 0; op < static_cast<int>(strategy.size()); ++op) {
    if (kind_of_operator_[op] == kind && allowed(op, start[op])) set(strategy, op, start[op]);
  }
}

// Equally placed operators of a kind get another split, in turn on disjoint sets that together
// cover as many servers as possible.
void Moves::proposeSpread(Strategy& strategy, Random& random) {
  const int chosen = random.below(static_cast<int>(strategy.size()));
  const int space = space_of_operator_[chosen], from = strategy[chosen];
  const auto& groups = spaces_[space];
  const auto& ids = groups[random.below(static_cast<int>(groups.size()))];
  std::vector<char> taken(servers_, 0);
  std::vector<int> turns;
  for (int tries = 0; tries < kTries; ++tries) {
    const int id = ids[random.below(static_cast<int>(ids.size()))];
    const auto& on = placements_[id].servers;
    if (std::any_of(on.begin(), on.end(), [&](int server) { return taken[server]; })) continue;
    for (int server : on) taken[server] = 1;
    turns.push_back(id);
  }
  size_t turn = 0;
  for (int op = 0; op < static_cast<int>(strategy.size()); ++op) {
    if (space_of_operator_[op] != space || strategy[op] != from) continue;
    set(strategy, op, turns[turn++ % turns.size()]);
  }
}

void Moves::propose(Strategy& strategy, Random& random, std::vector<int>& changed) {
  before_.clear();
  changed.clear();
  double kind = random.unit();
  const auto is = [&kind](double chance) { return (kind -= chance) < 0; };
  if (is(kChange)) {
    const int op = random.below(static_cast<int>(strategy.size()));
    set(strategy, op, draw(op, random));
  } else if (is(kCopy)) {
    proposeCopies(strategy, random);
  } else if (is(kSwap)) {
    proposeSwap(strategy, random);
  } else if (is(kPair)) {
    proposePair(strategy, random);
  } else if (is(kRepeat)) {
    proposeRepeat(strategy, random);
  } else if (is(kShift)) {
    proposeShift(strategy, random);
  } else if (is(kStart)) {
    proposeAsInStart(strategy, random);
  } else if (is(kSpread)) {
    proposeSpread(strategy, random);
  } else {
    proposeRun(strategy, random);
  }
  // If an operator was set twice, restore its first value.
  std::stable_sort(before_.begin(), before_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < before_.size(); ++i) {
    const auto [op, was] = before_[i];
    if (i > 0 && before_[i - 1].first == op) continue;
    if (strategy[op] != was) changed.push_back(op);
  }
}

}  // namespace topoopt
