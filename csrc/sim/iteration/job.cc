#include "sim/iteration/job.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <utility>

namespace topoopt {

namespace {

constexpr int kNoColumn = -1;
constexpr int kUnknown = -2;

void checkAmount(const std::string& field, double value) {
  if (!std::isfinite(value) || value < 0) {
    throw std::invalid_argument(field + ": " + std::to_string(value) +
                                " is not at least 0 and finite");
  }
}

void checkShard(const std::string& where, const ShardCost& shard) {
  if (shard.forward_s < 0 && shard.backward_s < 0) return;  // unsupported split
  checkAmount(where + "forward_s", shard.forward_s);
  checkAmount(where + "backward_s", shard.backward_s);
  checkAmount(where + "state_bytes", static_cast<double>(shard.state_bytes));
  checkAmount(where + "saved_bytes", static_cast<double>(shard.saved_bytes));
}

}  // namespace

void Job::validate() const {
  if (servers < 1) throw std::invalid_argument("servers: must be at least 1");
  if (micro_batches < 1) throw std::invalid_argument("micro_batches: must be at least 1");
  checkAmount("local_reduce_s_per_byte", local_reduce_s_per_byte);
  checkAmount("buckets.first_bytes", buckets.first_bytes);
  checkAmount("buckets.cap_bytes", buckets.cap_bytes);
  checkAmount("overhead_s", overhead_s);
  if (!(servers_at_once > 0)) {
    throw std::invalid_argument("servers_at_once: " + std::to_string(servers_at_once) +
                                " is not above 0");
  }
  for (const Degrees& split : degrees) {
    const bool positive = split.sample >= 1 && split.parameter >= 1 && split.attribute >= 1;
    // Divide factor by factor, because the product may overflow.
    if (!positive || split.parameter > servers / split.sample ||
        split.attribute > servers / split.sample / split.parameter) {
      throw std::invalid_argument("degrees: " + std::to_string(split.sample) + " x " +
                                  std::to_string(split.parameter) + " x " +
                                  std::to_string(split.attribute) + " shards are not in 1.." +
                                  std::to_string(servers));
    }
  }
  for (size_t i = 0; i < operators.size(); ++i) {
    const ShardedOperator& op = operators[i];
    const std::string where = "operators[" + std::to_string(i) + "].";
    if (op.shards.size() != degrees.size()) {
      throw std::invalid_argument(where + "shards: needs one entry per degrees");
    }
    for (const ShardCost& shard : op.shards) checkShard(where + "shards.", shard);
    checkAmount(where + "all_reduce_bytes", op.all_reduce_bytes);
    for (const Operand& operand : op.operands) {
      if (operand.producer < 0 || operand.producer >= static_cast<int>(i)) {
        throw std::invalid_argument(where + "operands: producer " +
                                    std::to_string(operand.producer) +
                                    " is not an earlier operator");
      }
      checkAmount(where + "operands.size_bytes", operand.size_bytes);
      checkAmount(where + "operands.gradient_bytes", operand.gradient_bytes);
    }
  }
}

PlacementCosts::PlacementCosts(std::shared_ptr<const Job> job)
    : job_(std::move(job)), placements_(job_->servers) {
  job_->validate();
  std::map<std::pair<int, int>, size_t> known;  // numbered tensors
  for (int op = 0; op < static_cast<int>(job_->operators.size()); ++op) {
    auto& producers = producers_.emplace_back();
    const auto& operands = job_->operators[op].operands;
    for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
      const Operand& operand = operands[i];
      producers.push_back(operand.producer);
      size_t at = tensors_.size();
      if (operand.tensor > 0) {
        at = known.try_emplace({operand.producer, operand.tensor}, at).first->second;
      }
      if (at == tensors_.size()) {
        tensors_.push_back({operand.producer, operand.size_bytes, 0, {}});
      }
      ReadTensor& tensor = tensors_[at];
      tensor.gradient_bytes = std::max(tensor.gradient_bytes, operand.gradient_bytes);
      tensor.readers.push_back({op, i});
    }
  }
}

std::vector<int> PlacementCosts::intern(const std::vector<Placement>& strategy) {
  if (strategy.size() != job_->operators.size()) {
    throw std::invalid_argument("strategy: places " + std::to_string(strategy.size()) + " of " +
                                std::to_string(job_->operators.size()) + " operators");
  }
  std::vector<int> ids;
  for (const Placement& placement : strategy) ids.push_back(placements_.intern(placement));
  return ids;
}

int PlacementCosts::column(int id) {
  if (id >= static_cast<int>(column_.size())) column_.resize(placements_.size(), kUnknown);
  int& known = column_[id];
  if (known == kUnknown) {
    known = kNoColumn;
    for (size_t i = 0; i < job_->degrees.size(); ++i) {
      if (job_->degrees[i] == placements_[id].degrees) known = static_cast<int>(i);
    }
  }
  return known;
}

bool PlacementCosts::allowed(int op, int id) {
  const int at = column(id);
  return at != kNoColumn && job_->operators[op].shards[at].forward_s >= 0;
}

std::string PlacementCosts::describe(int id) const {
  const Degrees& split = placements_[id].degrees;
  return std::to_string(split.sample) + " parts of the samples, " +
         std::to_string(split.parameter) + " of the parameters and " +
         std::to_string(split.attribute) + " of the positions";
}

const ShardCost& PlacementCosts::shard(int op, int id) {
  if (!allowed(op, id)) {
    throw std::invalid_argument("degrees: no cost of operator " + std::to_string(op) + " for " +
                                describe(id));
  }
  return job_->operators[op].shards[column_[id]];
}

double PlacementCosts::reducedBytes(int op, int id) const {
  return job_->operators[op].all_reduce_bytes / placements_[id].degrees.parameter;
}

WholeOperands PlacementCosts::wholeOperands(int op, int id) const {
  const ShardedOperator& cost = job_->operators[op];
  const auto& whole = cost.whole_operands;
  const ParameterKind kind = placements_[id].degrees.kind;
  return {std::find(whole.begin(), whole.end(), kind) != whole.end(), cost.whole_positions};
}

const std::vector<Transfer>& PlacementCosts::transfers(int op, int producer, int consumer) {
  return placements_.transfers(producer, need(op, consumer));
}

std::vector<int> PlacementCosts::inFlight(const std::vector<int>& strategy) const {
  std::vector<const Placement*> placed;
  for (int id : strategy) placed.push_back(&placements_[id]);
  return microBatchesInFlight(placed, producers_, job_->servers, job_->micro_batches);
}

std::vector<int64_t> PlacementCosts::memoryBytes(const std::vector<int>& strategy) {
  const std::vector<int> in_flight = inFlight(strategy);
  std::vector<int64_t> bytes(job_->servers, 0);
  for (size_t op = 0; op < strategy.size(); ++op) {
    const ShardCost& cost = shard(static_cast<int>(op), strategy[op]);
    const int64_t held = cost.state_bytes + cost.saved_bytes * in_flight[op];
    for (int server : placements_[strategy[op]].servers) bytes[server] += held;
  }
  return bytes;
}

}  // namespace topoopt
