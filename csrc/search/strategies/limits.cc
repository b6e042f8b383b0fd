#include "search/strategies/limits.h"

#include <algorithm>
#include <stdexcept>

namespace topoopt {

Limits::Limits(PlacementCosts& costs, int64_t memory_bytes, int64_t transfers)
    : costs_(costs), memory_limit_bytes_(memory_bytes), transfer_limit_(transfers) {
  const auto& tensors = costs.tensors();
  tensors_of_.resize(costs.job().operators.size());
  for (int tensor = 0; tensor < static_cast<int>(tensors.size()); ++tensor) {
    tensors_of_[tensors[tensor].producer].push_back(tensor);
    for (const Reader& reader : tensors[tensor].readers) tensors_of_[reader.op].push_back(tensor);
  }
  transfers_of_.assign(tensors.size(), 0);
  counted_.assign(tensors.size(), 0);
}

// Readers with equal needs of the tensor count once.
int64_t Limits::transfersOf(const ReadTensor& tensor, const Strategy& strategy) {
  int64_t transfers = 0;
  for (size_t i = 0; i < tensor.readers.size(); ++i) {
    const int op = tensor.readers[i].op;
    const int need = costs_.need(op, strategy[op]);
    bool is_first = true;
    for (size_t j = 0; j < i && is_first; ++j) {
      const int other = tensor.readers[j].op;
      is_first = costs_.need(other, strategy[other]) != need;
    }
    if (is_first) transfers += costs_.placements().sent(strategy[tensor.producer], need);
  }
  return transfers;
}

void Limits::addMemory(int op, int id, int64_t times) {
  const ShardCost& cost = costs_.shard(op, id);
  const int64_t held = times * (cost.state_bytes + cost.saved_bytes);
  for (int server : costs_.placements()[id].servers) held_bytes_[server] += held;
}

bool Limits::memoryFits() const {
  return *std::max_element(held_bytes_.begin(), held_bytes_.end()) <= memory_limit_bytes_;
}

// With micro-batches, an operator's memory depends on the stages of all others.
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
  for (size_t tensor = 0; tensor < transfers_of_.size(); ++tensor) {
    transfers_of_[tensor] = transfersOf(costs_.tensors()[tensor], strategy);
    transfers_ += transfers_of_[tensor];
  }
  held_bytes_ = costs_.memoryBytes(strategy);
  return memoryFits();
}

int64_t Limits::transfersAfter(const Strategy& strategy, const std::vector<int>& changed) {
  ++proposals_;
  int64_t transfers = transfers_;
  proposed_transfers_of_.clear();
  for (int op : changed) {
    for (int tensor : tensors_of_[op]) {
      if (counted_[tensor] == proposals_) continue;
      counted_[tensor] = proposals_;
      const int64_t after = transfersOf(costs_.tensors()[tensor], strategy);
      transfers += after - transfers_of_[tensor];
      proposed_transfers_of_.emplace_back(tensor, after);
    }
  }
  return transfers;
}

bool Limits::fits(const Strategy& strategy, const std::vector<int>& changed) {
  const bool incremental = costs_.job().micro_batches == 1;
  for (const auto& [op, id] : proposed_) {  // undo the last proposal
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
  for (const auto& [tensor, transfers] : proposed_transfers_of_) transfers_of_[tensor] = transfers;
  proposed_.clear();
  transfers_ = proposed_transfers_;
}

}  // namespace topoopt
