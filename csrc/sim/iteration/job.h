// The costs of a job for every split that a search may try.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "sim/iteration/placements.h"

namespace topoopt {

struct Operand {
  int producer;
  double size_bytes;      // forward, for the whole batch
  double gradient_bytes;  // backward
  int tensor = 0;         // producer's tensor number; 0: no other reader
};

struct Reader {
  int op;
  int operand;  // index into the operator's operands
};

// A tensor and all operators that read it, ascending: operands with equal producer and `tensor`, or
// a single unnumbered one. Readers with equal needs (PlacementCosts::need) get it once; their
// gradients are summed locally and returned once.
struct ReadTensor {
  int producer;
  double size_bytes;
  double gradient_bytes;  // of all readers with a gradient
  std::vector<Reader> readers;
};

// Costs of one shard, with times per micro-batch; negative times: unsupported split.
struct ShardCost {
  double forward_s;
  double backward_s;
  int64_t state_bytes;  // parameters, gradients and optimizer state
  int64_t saved_bytes;  // activations saved for the backward pass of a micro-batch
};

struct ShardedOperator {
  std::vector<ShardCost> shards;              // one per Job::degrees
  double all_reduce_bytes;                    // all parameters; a part of them costs its share
  std::vector<ParameterKind> whole_operands;  // splits; see WholeOperands::parameter
  bool whole_positions;                       // see WholeOperands::attribute
  std::vector<Operand> operands;
};

// Gradients of a group of servers that are reduced together, in backward order. A bucket is full at
// `cap_bytes` (a group's first one: `first_bytes`). It starts when all of its gradients are ready
// and the previous bucket has started. `cap_bytes` 0: each operator's gradients separately, when
// they are ready.
struct GradientBuckets {
  double first_bytes = 0;
  double cap_bytes = 0;

  bool perOperator() const { return cap_bytes == 0; }
};

// The operators of one iteration in topological order. `local_reduce_s_per_byte` is the AllReduce
// cost among a server's accelerators before the network. The batch is split into `micro_batches`
// equal parts. Every server first computes `overhead_s` per iteration outside of operators.
struct Job {
  int servers;
  int micro_batches;
  std::vector<Degrees> degrees;
  double local_reduce_s_per_byte;
  std::vector<ShardedOperator> operators;
  GradientBuckets buckets;
  double overhead_s = 0;
  // As TaskGraph::devicesAtOnce, for servers.
  double servers_at_once = std::numeric_limits<double>::infinity();

  // The slowdown if all servers compute at once.
  double stretch() const { return std::max(1.0, servers / servers_at_once); }
  // Throws std::invalid_argument naming the invalid field.
  void validate() const;
};

// The job's costs by placement id, cached. One object per thread.
class PlacementCosts {
 public:
  explicit PlacementCosts(std::shared_ptr<const Job> job);

  const Job& job() const { return *job_; }
  Placements& placements() { return placements_; }
  const Placements& placements() const { return placements_; }
  // Returns the ids of a strategy's placements. Throws std::invalid_argument unless there is one
  // per operator, and as Placements::intern.
  std::vector<int> intern(const std::vector<Placement>& strategy);

  // Returns whether operator `op` has costs for placement `id`.
  bool allowed(int op, int id);
  // Throws std::invalid_argument unless allowed.
  const ShardCost& shard(int op, int id);
  // Bytes of gradients in one parameter group of `placements().groups(id)`.
  double reducedBytes(int op, int id) const;
  // All tensors, by their first reading operand.
  const std::vector<ReadTensor>& tensors() const { return tensors_; }
  // How `op` on placement `id` needs its operands.
  WholeOperands wholeOperands(int op, int id) const;
  // The id of this need, equal for equal needs.
  int need(int op, int id) { return placements_.need(id, wholeOperands(op, id)); }
  // The carrier of a shared read: the first among opOf(0), opOf(1), ..., readers of one tensor,
  // with the need of `reader`. Its transfers serve all of them.
  template <class OpOf>
  int carrier(int reader, const std::vector<int>& strategy, const OpOf& opOf) {
    const int wanted = need(opOf(reader), strategy[opOf(reader)]);
    for (int other = 0; other < reader; ++other) {
      if (need(opOf(other), strategy[opOf(other)]) == wanted) return other;
    }
    return reader;
  }
  // The transfers for an operand of `op` on placement `consumer` from `producer`, as fractions of
  // size_bytes and gradient_bytes. Valid until the next call.
  const std::vector<Transfer>& transfers(int op, int producer, int consumer);
  // Per operator, as microBatchesInFlight.
  std::vector<int> inFlight(const std::vector<int>& strategy) const;
  // Memory use per accelerator of every server, in bytes.
  std::vector<int64_t> memoryBytes(const std::vector<int>& strategy);

 private:
  int column(int id);
  std::string describe(int id) const;

  std::shared_ptr<const Job> job_;
  Placements placements_;
  std::vector<std::vector<int>> producers_;
  std::vector<ReadTensor> tensors_;
  std::vector<int> column_;  // per placement: index into Job::degrees; -1 none, -2 not looked up
};

}  // namespace topoopt
