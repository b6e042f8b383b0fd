#include "search/strategy_search.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace topoopt {

namespace {

constexpr double kChange = 0.5;          // one operator gets another placement
constexpr double kCopy = 0.3;            // a placement spreads along edges of the graph
constexpr double kContinueCopy = 0.75;   // as in FlexFlow: the walk goes on with this probability
constexpr int64_t kReturnAfter = 500;    // evaluations without a new best before going back to it
constexpr size_t kRemembered = 1 << 15;  // strategies whose price is kept

}  // namespace

double acceptanceProbability(double current_s, double proposed_s, double beta) {
  if (proposed_s <= current_s) return 1;
  return std::exp(-beta * (proposed_s - current_s) / current_s);
}

StrategySearch::StrategySearch(std::shared_ptr<const Job> job,
                               std::shared_ptr<RoutedNetwork> network, const SearchSpace& space,
                               const std::vector<std::vector<Placement>>& starts,
                               int64_t memory_limit_bytes, uint64_t seed, double beta)
    : job_(job),
      model_(job, std::move(network)),
      space_of_operator_(space.space_of_operator),
      neighbours_(job->operators.size()),
      memory_limit_bytes_(memory_limit_bytes),
      beta_(beta),
      random_(seed) {
  if (!(beta > 0) || !std::isfinite(beta)) {
    throw std::invalid_argument("beta: " + std::to_string(beta) + " is not above 0 and finite");
  }
  for (size_t op = 0; op < job_->operators.size(); ++op) {
    for (const OperandCost& operand : job_->operators[op].operands) {
      neighbours_[op].push_back(operand.producer);
      neighbours_[operand.producer].push_back(static_cast<int>(op));
    }
  }
  addSpaces(space);
  for (const auto& start : starts) addStart(start);
  if (current_.empty()) throw std::invalid_argument("starts: no start fits into memory");
  best_ = current_;
  best_s_ = current_s_;
}

void StrategySearch::addSpaces(const SearchSpace& space) {
  for (const PlacementGroups& groups : space.spaces) {
    auto& ids = spaces_.emplace_back();
    for (const auto& group : groups) {
      if (group.empty()) throw std::invalid_argument("spaces: a group without placements");
      auto& numbers = ids.emplace_back();
      for (const auto& placement : group) numbers.push_back(model_.placements().intern(placement));
    }
    if (ids.empty()) throw std::invalid_argument("spaces: a space without placements");
  }
  is_allowed_.assign(spaces_.size(), std::vector<char>(model_.placements().size(), 0));
  for (size_t s = 0; s < spaces_.size(); ++s) {
    for (const auto& ids : spaces_[s]) {
      for (int id : ids) is_allowed_[s][id] = 1;
    }
  }
  if (space_of_operator_.size() != job_->operators.size()) {
    throw std::invalid_argument("space_of_operator: needs one entry per operator");
  }
  for (int index : space_of_operator_) {
    if (index < 0 || index >= static_cast<int>(spaces_.size())) {
      throw std::invalid_argument("space_of_operator: " + std::to_string(index) + " is not in 0.." +
                                  std::to_string(static_cast<int>(spaces_.size()) - 1));
    }
  }
}

void StrategySearch::addStart(const std::vector<Placement>& start) {
  if (start.size() != job_->operators.size()) {
    throw std::invalid_argument("starts: a start needs one placement per operator");
  }
  State state;
  for (const auto& placement : start) state.push_back(model_.placements().intern(placement));
  if (!fits(state)) return;
  const double seconds = price(state);
  if (current_.empty() || seconds < current_s_) {
    current_ = std::move(state);
    current_s_ = seconds;
  }
}

std::vector<Placement> StrategySearch::best() const {
  std::vector<Placement> strategy;
  for (int id : best_) strategy.push_back(model_.placements()[id]);
  return strategy;
}

bool StrategySearch::fits(const State& state) {
  const std::vector<int64_t> bytes = model_.costs().memoryBytes(state);
  return *std::max_element(bytes.begin(), bytes.end()) <= memory_limit_bytes_;
}

double StrategySearch::price(const State& state) {
  const auto found = known_.find(state);
  if (found != known_.end()) return found->second;
  if (known_.size() >= kRemembered) known_.clear();
  ++simulations_;
  return known_[state] = model_.run(state);
}

bool StrategySearch::allowed(int op, int set) const {
  const auto& sets = is_allowed_[space_of_operator_[op]];
  return set < static_cast<int>(sets.size()) && sets[set];
}

void StrategySearch::proposeSet(State& state) {
  const int op = random_.below(static_cast<int>(state.size()));
  const auto& sizes = spaces_[space_of_operator_[op]];
  const auto& ids = sizes[random_.below(static_cast<int>(sizes.size()))];
  state[op] = ids[random_.below(static_cast<int>(ids.size()))];
}

// Transfers cost nothing between operators on the same servers, so good strategies have long runs
// of equal sets; a walk along edges makes such runs in one proposal.
void StrategySearch::proposeCopies(State& state) {
  int op = random_.below(static_cast<int>(state.size()));
  const int set = state[op];
  do {
    if (neighbours_[op].empty()) return;
    const auto& around = neighbours_[op];
    op = around[random_.below(static_cast<int>(around.size()))];
    if (allowed(op, set)) state[op] = set;
  } while (random_.unit() < kContinueCopy);
}

void StrategySearch::proposeSwap(State& state) {
  const int a = random_.below(static_cast<int>(state.size()));
  const int b = random_.below(static_cast<int>(state.size()));
  if (allowed(a, state[b]) && allowed(b, state[a])) std::swap(state[a], state[b]);
}

void StrategySearch::propose(State& state) {
  const double kind = random_.unit();
  if (kind < kChange) {
    proposeSet(state);
  } else if (kind < kChange + kCopy) {
    proposeCopies(state);
  } else {
    proposeSwap(state);
  }
}

void StrategySearch::judge(const State& proposal) {
  if (proposal == current_ || !fits(proposal)) return;
  const double seconds = price(proposal);
  if (random_.unit() >= acceptanceProbability(current_s_, seconds, beta_)) return;
  ++accepted_;
  current_ = proposal;
  current_s_ = seconds;
  if (seconds < best_s_) {
    best_ = proposal;
    best_s_ = seconds;
    best_at_ = evaluations_;
  }
}

void StrategySearch::step(int evaluations) {
  if (evaluations < 0) {
    throw std::invalid_argument("evaluations: " + std::to_string(evaluations) + " is negative");
  }
  State proposal;
  for (int i = 0; i < evaluations; ++i) {
    ++evaluations_;
    proposal = current_;
    propose(proposal);
    judge(proposal);
    if (evaluations_ - best_at_ >= kReturnAfter) {
      current_ = best_;
      current_s_ = best_s_;
      best_at_ = evaluations_;
    }
  }
}

}  // namespace topoopt
