// The computation and memory of a job, for every split that a search may try.

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
  double size_bytes;      // forward, producer to this operator, for the whole batch
  double gradient_bytes;  // backward, the other way
  int tensor = 0;         // which of the producer's; 0: no other operator reads it
};

struct Reader {
  int op;
  int operand;  // index into its Operand
};

// A tensor and all operators that read it, ascending: the operands with the same producer and
// `tensor`, or one without a number. Readers that need the same of it (PlacementCosts::need) get it
// once, together; their gradients are added up where they are, and go back once.
struct ReadTensor {
  int producer;
  double size_bytes;
  double gradient_bytes;  // of all readers through whom a gradient flows
  std::vector<Reader> readers;
};

// Of one shard. Times are those of one micro-batch; times below 0 mean that the operator cannot be
// split that way.
struct ShardCost {
  double forward_s;
  double backward_s;
  int64_t state_bytes;  // parameters, their gradients and what the optimizer keeps
  int64_t saved_bytes;  // activations kept from the forward to the backward of one micro-batch
};

struct ShardedOperator {
  std::vector<ShardCost> shards;  // one per Job::degrees
  double all_reduce_bytes;        // gradients of all parameters; a part of them has its share
  std::vector<ParameterKind> whole_operands;  // kinds of splits: as WholeOperands::parameter
  bool whole_positions;                       // as WholeOperands::attribute
  std::vector<Operand> operands;
};

// Gradients that are reduced together: those of one group of servers, in the order of the backward
// pass. A bucket is full as soon as it holds `cap_bytes` (a group's first one: `first_bytes`) or
// more, and starts when all of its gradients are there and the bucket before it has started.
// `cap_bytes` 0: every operator's by themselves, as soon as they are there.
struct GradientBuckets {
  double first_bytes = 0;
  double cap_bytes = 0;

  bool perOperator() const { return cap_bytes == 0; }
};

// The operators of one iteration, in topological order. `local_reduce_s_per_byte` is what an
// AllReduce costs among the accelerators of one server before its bytes go on the network. The
// batch is split into `micro_batches` equal parts (1: as a whole). Every server is busy for
// `overhead_s` in each iteration with what is no operator, before its first one.
struct Job {
  int servers;
  int micro_batches;
  std::vector<Degrees> degrees;
  double local_reduce_s_per_byte;
  std::vector<ShardedOperator> operators;
  GradientBuckets buckets;
  double overhead_s = 0;
  // As TaskGraph::devicesAtOnce, of servers.
  double servers_at_once = std::numeric_limits<double>::infinity();

  // How much longer everything takes where all servers compute at once.
  double stretch() const { return std::max(1.0, servers / servers_at_once); }
  // Throws std::invalid_argument naming the field that is wrong.
  void validate() const;
};

// The job's costs by placement number. Holds caches: one of these for each thread.
class PlacementCosts {
 public:
  explicit PlacementCosts(std::shared_ptr<const Job> job);

  const Job& job() const { return *job_; }
  Placements& placements() { return placements_; }
  const Placements& placements() const { return placements_; }
  // The numbers of a strategy's placements. Throws std::invalid_argument unless it is one for each
  // operator, and as Placements::intern.
  std::vector<int> intern(const std::vector<Placement>& strategy);

  // Whether operator `op` has costs for placement `id`.
  bool allowed(int op, int id);
  // Throws std::invalid_argument where not allowed.
  const ShardCost& shard(int op, int id);
  // Bytes of gradients in one parameter group of `placements().groups(id)`.
  double reducedBytes(int op, int id) const;
  // All tensors, by the first operand that reads each.
  const std::vector<ReadTensor>& tensors() const { return tensors_; }
  // How `op` on placement `id` needs its operands.
  WholeOperands wholeOperands(int op, int id) const;
  // What it needs of them, as a number that is the same for all who need the same.
  int need(int op, int id) { return placements_.need(id, wholeOperands(op, id)); }
  // The carrier of a shared read: of the operators opOf(0), opOf(1), ... that read one tensor, the
  // first that needs the same of it as number `reader`. What is sent for that one serves them all.
  template <class OpOf>
  int carrier(int reader, const std::vector<int>& strategy, const OpOf& opOf) {
    const int wanted = need(opOf(reader), strategy[opOf(reader)]);
    for (int other = 0; other < reader; ++other) {
      if (need(opOf(other), strategy[opOf(other)]) == wanted) return other;
    }
    return reader;
  }
  // What moves for an operand of `op` on placement `consumer` from `producer`: fractions of its
  // size_bytes and gradient_bytes. Valid until the next call.
  const std::vector<Transfer>& transfers(int op, int producer, int consumer);
  // Per operator, as microBatchesInFlight.
  std::vector<int> inFlight(const std::vector<int>& strategy) const;
  // Bytes in the memory of each accelerator of every server.
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
