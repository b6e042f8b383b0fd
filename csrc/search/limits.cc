#include "search/limits.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace topoopt {

WholeOperands wholeOperands(const PlacementCosts& costs, int op, int consumer) {
  const OperatorCost& cost = costs.job().operators[op];
  const auto kind = static_cast<size_t>(costs.placements()[consumer].degrees.kind);
  return {cost.whole_operands[kind], cost.whole_positions};
}

// Two divisions of the samples make at most as many pieces as they have cuts, and every other part
// of one operator meets every part of the other.
int64_t mostTransfers(const PlacementCosts& costs, int op, int producer, int consumer) {
  const WholeOperands whole = wholeOperands(costs, op, consumer);
  if (producer == consumer && !whole.parameter && !whole.attribute) return 0;
  const Degrees& a = costs.placements()[producer].degrees;
  const Degrees& b = costs.placements()[consumer].degrees;
  const int64_t pieces = a.sample + b.sample - std::gcd(a.sample, b.sample);
  return pieces * a.parameter * a.attribute * b.parameter * b.attribute;
}

Limits::Limits(PlacementCosts& costs, int64_t memory_bytes, int64_t transfers)
    : costs_(costs), memory_limit_bytes_(memory_bytes), transfer_limit_(transfers) {
  const auto& operators = costs.job().operators;
  edges_of_.resize(operators.size());
  for (size_t op = 0; op < operators.size(); ++op) {
    for (const OperandCost& operand : operators[op].operands) {
      edges_of_[op].push_back(static_cast<int>(edges_.size()));
      edges_of_[operand.producer].push_back(static_cast<int>(edges_.size()));
      edges_.push_back({operand.producer, static_cast<int>(op)});
    }
  }
  counted_.assign(edges_.size(), 0);
}

int64_t Limits::transfersOf(const Edge& edge, const Strategy& strategy) const {
  return mostTransfers(costs_, edge.consumer, strategy[edge.producer], strategy[edge.consumer]);
}

void Limits::addMemory(int op, int id, int64_t times) {
  const ShardCost& cost = costs_.shard(op, id);
  const int64_t held = times * (cost.state_bytes + cost.saved_bytes);
  for (int server : costs_.placements()[id].servers) held_bytes_[server] += held;
}

bool Limits::memoryFits() const {
  return *std::max_element(held_bytes_.begin(), held_bytes_.end()) <= memory_limit_bytes_;
}

// With micro-batches, what an operator holds hangs on the stages of all others.
bool Limits::wholeFits(const Strategy& strategy) {
  try {
    held_bytes_ = costs_.memoryBytes(strategy);
  } catch (const std::invalid_argument&) {
    return false;
  }
  return memoryFits();
}

bool Limits::start(const Strategy& strategy) {
  strategy_ = strategy;
  proposed_.clear();
  transfers_ = 0;
  for (const Edge& edge : edges_) transfers_ += transfersOf(edge, strategy);
  held_bytes_ = costs_.memoryBytes(strategy);
  return memoryFits();
}

int64_t Limits::transfersAfter(const Strategy& strategy, const std::vector<int>& changed) {
  ++proposals_;
  int64_t transfers = transfers_;
  for (int op : changed) {
    for (int edge : edges_of_[op]) {
      if (counted_[edge] == proposals_) continue;
      counted_[edge] = proposals_;
      transfers += transfersOf(edges_[edge], strategy) - transfersOf(edges_[edge], strategy_);
    }
  }
  return transfers;
}

bool Limits::fits(const Strategy& strategy, const std::vector<int>& changed) {
  const bool incremental = costs_.job().micro_batches == 1;
  for (const auto& [op, id] : proposed_) {  // take the last proposal back
    if (!incremental) break;
    addMemory(op, id, -1);
    addMemory(op, strategy_[op], 1);
  }
  proposed_.clear();
  proposed_transfers_ = transfersAfter(strategy, changed);
  if (proposed_transfers_ > std::max(transfer_limit_, transfers_)) return false;
  for (int op : changed) {
    if (incremental) {
      addMemory(op, strategy_[op], -1);
      addMemory(op, strategy[op], 1);
    }
    proposed_.emplace_back(op, strategy[op]);
  }
  return incremental ? memoryFits() : wholeFits(strategy);
}

void Limits::accept() {
  for (const auto& [op, id] : proposed_) strategy_[op] = id;
  proposed_.clear();
  transfers_ = proposed_transfers_;
}

}  // namespace topoopt
