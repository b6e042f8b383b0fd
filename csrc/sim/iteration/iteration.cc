#include "sim/iteration/iteration.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "sim/iteration/iteration_steps.h"

namespace topoopt {

namespace {

// Maps the steps of an iteration to the links of a network.
class NetworkSink {
 public:
  NetworkSink(RoutedNetwork& network, TaskGraph& graph) : network_(network), graph_(graph) {}

  int compute(int server, double seconds, int priority) {
    return graph_.addCompute(server, seconds, priority);
  }
  int delay(double seconds) { return graph_.addDelay(seconds); }
  int transfer(int source, int target, double size_bytes, const Cargo&) {
    const FlowPath& route = network_.pair(source, target);
    return graph_.addFlow(route.path, size_bytes, route.latency_s);
  }
  void allReduce(const std::vector<int>& servers, double size_bytes, int after, const Cargo&) {
    const AllReduceFlows& chosen = network_.allReduce(servers, size_bytes);
    after = waited(chosen.waitSeconds(size_bytes), after);
    for (const TorusPart& part : chosen.parts) {
      const int scattered = send(part.first, part.first.share * size_bytes, after);
      const int reduced = send(part.second, part.second.share * size_bytes, scattered);
      send(part.first, part.first.share * size_bytes, reduced);
    }
    for (const FlowPath& flow : chosen.flows) {
      const int sent = send(flow, flow.share * size_bytes, after);
      if (chosen.schedule != nullptr) after = sent;
    }
  }
  void dependency(int before, int after) { graph_.addDependency(before, after); }

 private:
  int waited(double seconds, int after) {
    if (seconds <= 0) return after;
    const int wait = graph_.addDelay(seconds);
    graph_.addDependency(after, wait);
    return wait;
  }

  int send(const FlowPath& path, double size_bytes, int after) {
    const int flow = graph_.addFlow(path.path, size_bytes, path.latency_s);
    graph_.addDependency(after, flow);
    return flow;
  }

  RoutedNetwork& network_;
  TaskGraph& graph_;
};

}  // namespace

IterationModel::IterationModel(std::shared_ptr<const Job> job,
                               std::shared_ptr<RoutedNetwork> network, Folding folding)
    : job_(std::move(job)),
      network_(std::move(network)),
      costs_(job_),
      simulator_(network_->capacity(), network_->paths(), job_->servers, folding) {
  if (job_->servers != network_->servers()) {
    throw std::invalid_argument("servers: the job has " + std::to_string(job_->servers) +
                                ", the network " + std::to_string(network_->servers()));
  }
}

// Returns whether an operand of `op` may cross servers.
bool IterationModel::exchanges(const std::vector<int>& strategy, int op, int producer) {
  if (strategy[producer] != strategy[op]) return true;
  const Degrees& degrees = placements()[strategy[op]].degrees;
  if (degrees.parameter == 1 && degrees.attribute == 1) return false;
  const auto& transfers = costs_.transfers(op, strategy[producer], strategy[op]);
  return std::any_of(transfers.begin(), transfers.end(),
                     [](const Transfer& transfer) { return transfer.source != transfer.target; });
}

// Servers that exchange data represent themselves. The others are grouped by their placements, with
// the first of each class as representative. Where servers share processors, all of them count.
void IterationModel::chooseRepresentatives(const std::vector<int>& strategy) {
  const int servers = job_->servers;
  if (std::isfinite(job_->servers_at_once)) {
    representative_.resize(servers);
    std::iota(representative_.begin(), representative_.end(), 0);
    return;
  }
  const int known = placements().size();
  std::vector<char> exchanging(servers, 0);
  std::vector<char> used(known, 0);
  std::vector<char> marked(known, 0);
  const auto mark = [&](int id) {
    if (marked[id]) return;
    marked[id] = 1;
    for (int server : placements()[id].servers) exchanging[server] = 1;
  };
  for (size_t op = 0; op < strategy.size(); ++op) {
    used[strategy[op]] = 1;
    for (const Operand& operand : job_->operators[op].operands) {
      if (!exchanges(strategy, static_cast<int>(op), operand.producer)) continue;
      mark(strategy[operand.producer]);
      mark(strategy[op]);
    }
  }
  std::vector<int> part(servers, 0);
  int parts = 1;
  for (int id = 0; id < known; ++id) {
    if (!used[id]) continue;
    std::vector<int> split(parts, -1);
    for (int server : placements()[id].servers) {
      int& target = split[part[server]];
      if (target < 0) target = parts++;
      part[server] = target;
    }
  }
  std::vector<int> first(parts, -1);
  representative_.resize(servers);
  for (int server = 0; server < servers; ++server) {
    if (exchanging[server]) {
      representative_[server] = server;
      continue;
    }
    if (first[part[server]] < 0) first[part[server]] = server;
    representative_[server] = first[part[server]];
  }
}

double IterationModel::run(const std::vector<int>& strategy) {
  if (strategy.size() != job_->operators.size()) {
    throw std::invalid_argument("strategy: places " + std::to_string(strategy.size()) + " of " +
                                std::to_string(job_->operators.size()) + " operators");
  }
  graph_.clear();
  graph_.setDevicesAtOnce(job_->servers_at_once);
  chooseRepresentatives(strategy);
  NetworkSink sink(*network_, graph_);
  IterationSteps(costs_, strategy, representative_, sink).build();
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
