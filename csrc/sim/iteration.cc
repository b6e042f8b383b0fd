#include "sim/iteration.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace topoopt {

namespace {

constexpr size_t kRememberedPairs = 1 << 14;  // of server sets, of which a long search sees many

void checkAmount(const std::string& field, double value) {
  if (!std::isfinite(value) || value < 0) {
    throw std::invalid_argument(field + ": " + std::to_string(value) +
                                " is not at least 0 and finite");
  }
}

}  // namespace

void Job::validate() const {
  if (servers < 1) throw std::invalid_argument("servers: must be at least 1");
  checkAmount("local_reduce_s_per_byte", local_reduce_s_per_byte);
  for (int shards : shard_counts) {
    if (shards < 1 || shards > servers) {
      throw std::invalid_argument("shard_counts: " + std::to_string(shards) + " is not in 1.." +
                                  std::to_string(servers));
    }
  }
  for (size_t i = 0; i < operators.size(); ++i) {
    const OperatorCost& op = operators[i];
    const std::string where = "operators[" + std::to_string(i) + "].";
    if (op.forward_s.size() != shard_counts.size() || op.backward_s.size() != shard_counts.size()) {
      throw std::invalid_argument(where + "forward_s: needs one time per shard count");
    }
    for (double seconds : op.forward_s) checkAmount(where + "forward_s", seconds);
    for (double seconds : op.backward_s) checkAmount(where + "backward_s", seconds);
    checkAmount(where + "all_reduce_bytes", op.all_reduce_bytes);
    checkAmount(where + "replicated_bytes", static_cast<double>(op.replicated_bytes));
    checkAmount(where + "divided_bytes", static_cast<double>(op.divided_bytes));
    for (const OperandCost& operand : op.operands) {
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

int ServerSets::intern(std::vector<int> set) {
  if (set.empty()) throw std::invalid_argument("servers: an operator needs at least one server");
  std::sort(set.begin(), set.end());
  for (size_t i = 0; i < set.size(); ++i) {
    if (set[i] < 0 || set[i] >= servers_) {
      throw std::invalid_argument("servers: server " + std::to_string(set[i]) + " is not in 0.." +
                                  std::to_string(servers_ - 1));
    }
    if (i > 0 && set[i] == set[i - 1]) {
      throw std::invalid_argument("servers: server " + std::to_string(set[i]) + " is named twice");
    }
  }
  const auto [it, is_new] = ids_.try_emplace(set, size());
  if (is_new) sets_.push_back(std::move(set));
  return it->second;
}

std::vector<Overlap> overlaps(const std::vector<int>& producer, const std::vector<int>& consumer) {
  const int64_t a = static_cast<int64_t>(producer.size());
  const int64_t b = static_cast<int64_t>(consumer.size());
  std::vector<Overlap> found;
  int64_t i = 0;
  int64_t j = 0;
  while (i < a && j < b) {  // in units of 1/(a b) of the batch
    const int64_t begin = std::max(i * b, j * a);
    const int64_t end = std::min((i + 1) * b, (j + 1) * a);
    if (end > begin) {
      found.push_back({static_cast<int>(i), static_cast<int>(j), producer[i], consumer[j],
                       static_cast<double>(end - begin) / static_cast<double>(a * b)});
    }
    if ((i + 1) * b <= (j + 1) * a) {
      ++i;
    } else {
      ++j;
    }
  }
  return found;
}

IterationModel::IterationModel(std::shared_ptr<const Job> job,
                               std::shared_ptr<RoutedNetwork> network, Folding folding)
    : job_(std::move(job)),
      network_(std::move(network)),
      sets_(job_->servers),
      simulator_(network_->capacity(), network_->paths(), job_->servers, folding),
      gradient_reaches_(job_->operators.size(), 0) {
  job_->validate();
  if (job_->servers != network_->servers()) {
    throw std::invalid_argument("servers: the job has " + std::to_string(job_->servers) +
                                ", the network " + std::to_string(network_->servers()));
  }
  column_.assign(job_->servers + 1, -1);
  for (size_t c = 0; c < job_->shard_counts.size(); ++c) {
    column_[job_->shard_counts[c]] = static_cast<int>(c);
  }
  for (const OperatorCost& op : job_->operators) {
    for (const OperandCost& operand : op.operands) {
      if (operand.gradient_bytes > 0) gradient_reaches_[operand.producer] = 1;
    }
  }
}

const std::vector<Overlap>& IterationModel::overlapsOf(int producer_set, int consumer_set) {
  if (overlaps_.size() >= kRememberedPairs) overlaps_.clear();
  const auto [it, is_new] = overlaps_.try_emplace({producer_set, consumer_set});
  if (is_new) it->second = overlaps(sets_[producer_set], sets_[consumer_set]);
  return it->second;
}

int IterationModel::column(int shards) const {
  if (column_[shards] < 0) {
    throw std::invalid_argument("shard_counts: no cost for " + std::to_string(shards) + " shards");
  }
  return column_[shards];
}

// Servers that exchange data stand for themselves. The others are split into classes by the server
// sets that contain them, and the first of each class stands for all of it.
void IterationModel::chooseStandIns(const std::vector<int>& strategy) {
  const int servers = job_->servers;
  exchanges_.assign(servers, 0);
  std::vector<char> used(sets_.size(), 0);
  std::vector<char> marked(sets_.size(), 0);
  const auto mark = [&](int set) {
    if (marked[set]) return;
    marked[set] = 1;
    for (int server : sets_[set]) exchanges_[server] = 1;
  };
  for (size_t op = 0; op < strategy.size(); ++op) {
    used[strategy[op]] = 1;
    for (const OperandCost& operand : job_->operators[op].operands) {
      if (strategy[operand.producer] == strategy[op]) continue;
      mark(strategy[operand.producer]);
      mark(strategy[op]);
    }
  }
  std::vector<int> part(servers, 0);
  int parts = 1;
  for (int set = 0; set < sets_.size(); ++set) {
    if (!used[set]) continue;
    std::vector<int> split(parts, -1);
    for (int server : sets_[set]) {
      int& target = split[part[server]];
      if (target < 0) target = parts++;
      part[server] = target;
    }
  }
  std::vector<int> first(parts, -1);
  stand_in_.resize(servers);
  for (int server = 0; server < servers; ++server) {
    if (exchanges_[server]) {
      stand_in_[server] = server;
      continue;
    }
    if (first[part[server]] < 0) first[part[server]] = server;
    stand_in_[server] = first[part[server]];
  }
}

void IterationModel::addTransfer(const Overlap& overlap, double size_bytes, int before, int after) {
  const double bytes = overlap.fraction * size_bytes;
  if (overlap.source == overlap.target || bytes == 0) {
    graph_.addDependency(before, after);
    return;
  }
  const FlowPath& route = network_->pair(overlap.source, overlap.target);
  const int flow = graph_.addFlow(route.path, bytes, route.latency_s);
  graph_.addDependency(before, flow);
  graph_.addDependency(flow, after);
}

void IterationModel::addForward(const std::vector<int>& strategy) {
  for (size_t op = 0; op < strategy.size(); ++op) {
    const std::vector<int>& servers = sets_[strategy[op]];
    const OperatorCost& cost = job_->operators[op];
    const double seconds = cost.forward_s[column(static_cast<int>(servers.size()))];
    first_shard_[op] = static_cast<int>(forward_task_.size());
    for (int server : servers) {
      const bool simulated = stand_in_[server] == server;
      forward_task_.push_back(simulated ? graph_.addCompute(server, seconds, static_cast<int>(op))
                                        : -1);
    }
    for (const OperandCost& operand : cost.operands) {
      for (const Overlap& overlap : overlapsOf(strategy[operand.producer], strategy[op])) {
        if (stand_in_[overlap.target] != overlap.target) continue;
        addTransfer(overlap, operand.size_bytes,
                    forwardTask(operand.producer, overlap.producer_shard),
                    forwardTask(static_cast<int>(op), overlap.consumer_shard));
      }
    }
  }
}

void IterationModel::addBackward(const std::vector<int>& strategy) {
  const int count = static_cast<int>(strategy.size());
  backward_task_.assign(forward_task_.size(), -1);
  for (int op = count - 1; op >= 0; --op) {
    const std::vector<int>& servers = sets_[strategy[op]];
    const OperatorCost& cost = job_->operators[op];
    const double seconds = cost.backward_s[column(static_cast<int>(servers.size()))];
    for (size_t shard = 0; shard < servers.size(); ++shard) {
      const int server = servers[shard];
      if (stand_in_[server] != server) continue;
      const int task = graph_.addCompute(server, seconds, 2 * count - op);
      backward_task_[first_shard_[op] + shard] = task;
      if (!gradient_reaches_[op]) graph_.addDependency(forwardTask(op, shard), task);
    }
  }
  for (int op = count - 1; op >= 0; --op) {
    for (const OperandCost& operand : job_->operators[op].operands) {
      if (operand.gradient_bytes == 0) continue;
      for (Overlap overlap : overlapsOf(strategy[operand.producer], strategy[op])) {
        if (stand_in_[overlap.target] != overlap.target) continue;
        std::swap(overlap.source, overlap.target);
        addTransfer(overlap, operand.gradient_bytes, backwardTask(op, overlap.consumer_shard),
                    backwardTask(operand.producer, overlap.producer_shard));
      }
    }
  }
}

// Starts when every shard has its gradient; nothing waits for it but the end of the iteration.
void IterationModel::addAllReduce(int op, int set) {
  const std::vector<int>& servers = sets_[set];
  const double bytes = job_->operators[op].all_reduce_bytes;
  const double local_s = bytes * job_->local_reduce_s_per_byte;
  const double k = static_cast<double>(servers.size());
  if (bytes == 0 || (servers.size() == 1 && local_s == 0)) return;
  const int ready = graph_.addDelay(local_s);
  for (size_t shard = 0; shard < servers.size(); ++shard) {
    if (stand_in_[servers[shard]] != servers[shard]) continue;
    graph_.addDependency(backwardTask(op, static_cast<int>(shard)), ready);
  }
  if (servers.size() == 1) return;
  for (const FlowPath& ring : network_->group(servers)) {
    const int flow =
        graph_.addFlow(ring.path, 2 * (k - 1) / k * ring.share * bytes, ring.latency_s);
    graph_.addDependency(ready, flow);
  }
}

double IterationModel::run(const std::vector<int>& strategy) {
  if (strategy.size() != job_->operators.size()) {
    throw std::invalid_argument("strategy: places " + std::to_string(strategy.size()) + " of " +
                                std::to_string(job_->operators.size()) + " operators");
  }
  graph_.clear();
  forward_task_.clear();
  first_shard_.assign(strategy.size(), 0);
  chooseStandIns(strategy);
  addForward(strategy);
  addBackward(strategy);
  for (size_t op = strategy.size(); op-- > 0;) addAllReduce(static_cast<int>(op), strategy[op]);
  outcome_ = &simulator_.run(graph_);
  return outcome_->makespan_s;
}

std::vector<double> IterationModel::linkBytes() const {
  if (outcome_ == nullptr) throw std::logic_error("no iteration has been simulated yet");
  return network_->linkBytes(outcome_->link_bytes);
}

double IterationModel::computeSeconds() const {
  if (outcome_ == nullptr) throw std::logic_error("no iteration has been simulated yet");
  return *std::max_element(outcome_->device_busy_s.begin(), outcome_->device_busy_s.end());
}

}  // namespace topoopt
