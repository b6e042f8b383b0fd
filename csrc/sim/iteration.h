// One training iteration of a job under a strategy, as a task graph on a network.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "sim/flow_simulator.h"
#include "sim/routed_network.h"

namespace topoopt {

struct OperandCost {
  int producer;
  double size_bytes;      // forward, producer to this operator, for the whole batch
  double gradient_bytes;  // backward, the other way
};

// What one operator costs. `forward_s[c]` is the time of one shard when the batch is shared by
// `Job::shard_counts[c]` servers.
struct OperatorCost {
  std::vector<double> forward_s, backward_s;
  double all_reduce_bytes;
  int64_t replicated_bytes;  // memory of an accelerator, whatever the number of shards
  int64_t divided_bytes;     // memory divided by the number of shards
  std::vector<OperandCost> operands;
};

// The operators of one iteration, in topological order. `local_reduce_s_per_byte` is what an
// AllReduce costs among the accelerators of one server before its bytes go on the network.
struct Job {
  int servers;
  std::vector<int> shard_counts;
  double local_reduce_s_per_byte;
  std::vector<OperatorCost> operators;

  // Throws std::invalid_argument naming the field that is wrong.
  void validate() const;
};

// Server sets by number, so that a strategy is a list of small integers. Sets are ascending; the
// i-th server of a set of k computes samples [i/k, (i+1)/k) of the batch.
class ServerSets {
 public:
  explicit ServerSets(int servers) : servers_(servers) {}
  // Throws std::invalid_argument for an empty set, a repeated or an unknown server.
  int intern(std::vector<int> set);
  const std::vector<int>& operator[](int id) const { return sets_[id]; }
  int size() const { return static_cast<int>(sets_.size()); }

 private:
  int servers_;
  std::vector<std::vector<int>> sets_;
  std::map<std::vector<int>, int> ids_;
};

// A shard of a producer whose samples overlap those of a shard of a consumer.
struct Overlap {
  int producer_shard;
  int consumer_shard;
  int source;  // servers; equal when nothing has to be sent
  int target;
  double fraction;  // of the whole batch
};

// Which shards of `consumer` need samples of which shards of `producer`. A consumer takes from
// itself what it holds and the rest from the holders.
std::vector<Overlap> overlaps(const std::vector<int>& producer, const std::vector<int>& consumer);

// Prices strategies of one job on one network; keeps what it has learnt about server sets.
// Servers that take part in the same operators and in no transfer behave alike, so one of them is
// simulated for all.
class IterationModel {
 public:
  // Throws std::invalid_argument if job and network disagree on the number of servers.
  IterationModel(std::shared_ptr<const Job> job, std::shared_ptr<RoutedNetwork> network,
                 Folding folding = Folding::kWhereItPays);

  ServerSets& sets() { return sets_; }
  const ServerSets& sets() const { return sets_; }
  const Job& job() const { return *job_; }

  // Simulates one iteration with operator i on the servers of set `strategy[i]`; returns seconds.
  double run(const std::vector<int>& strategy);

  // Of the last run: bytes per link, in the order of the network's links; the busy seconds of the
  // busiest server's accelerators.
  std::vector<double> linkBytes() const;
  double computeSeconds() const;

  int taskCount() const { return graph_.size(); }

 private:
  // Valid until the next call.
  const std::vector<Overlap>& overlapsOf(int producer_set, int consumer_set);
  int column(int shards) const;
  void chooseStandIns(const std::vector<int>& strategy);
  void addForward(const std::vector<int>& strategy);
  void addBackward(const std::vector<int>& strategy);
  void addAllReduce(int op, int set);
  void addTransfer(const Overlap& overlap, double size_bytes, int before, int after);
  int forwardTask(int op, int shard) const { return forward_task_[first_shard_[op] + shard]; }
  int backwardTask(int op, int shard) const { return backward_task_[first_shard_[op] + shard]; }

  std::shared_ptr<const Job> job_;
  std::shared_ptr<RoutedNetwork> network_;
  ServerSets sets_;
  FlowSimulator simulator_;
  TaskGraph graph_;
  const Outcome* outcome_ = nullptr;  // of the last run
  std::map<std::pair<int, int>, std::vector<Overlap>> overlaps_;
  std::vector<int> column_;             // per number of shards: index into forward_s, -1 without
  std::vector<char> gradient_reaches_;  // per operator: some consumer sends a gradient back
  std::vector<int> stand_in_;           // per server: the server simulated for it
  std::vector<char> exchanges_;         // per server: end of a transfer
  std::vector<int> first_shard_;        // per operator, into forward_task_ and backward_task_
  std::vector<int> forward_task_, backward_task_;
};

}  // namespace topoopt
