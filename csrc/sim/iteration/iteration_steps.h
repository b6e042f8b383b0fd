// One training iteration as dependent steps, passed to a sink. All simulators of an iteration use
// these steps, so that they price the same work.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "sim/iteration/job.h"

namespace topoopt {

// The payload of a message and its operators: activations forward, gradients back to the producer,
// or the gradients of a bucket.
enum class CargoKind : uint8_t { kActivations, kGradients, kAllReduce };
struct Cargo {
  CargoKind kind;
  std::vector<int> operators;  // ascending

  bool operator==(const Cargo&) const = default;
};

// A server's computation in a task; `op` is -1 outside of operators.
struct Computed {
  int op;
  int batch;
  bool is_backward;
};

// Decodes a task's priority, among `count` operators.
inline Computed computedAt(int priority, int count, int micro_batches) {
  if (priority < 0 || count == 0) return {-1, 0, false};
  if (micro_batches == 1) {
    return priority < count ? Computed{priority, 0, false}
                            : Computed{2 * count - priority, 0, true};
  }
  if (priority <= micro_batches * count) {
    const int batch = (priority - 1) / count;
    return {(batch + 1) * count - priority, batch, true};
  }
  return {priority % count, priority / count - micro_batches - 1, false};
}

// Requirements of a sink; tasks are identified by numbers:
//
//   int compute(int server, double seconds, int priority)   one at a time per server, the
//                                                           ready one of least priority
//   int delay(double seconds)                               uses no resource
//   int transfer(int source, int target, double size_bytes, const Cargo& cargo)
//   void allReduce(const std::vector<int>& servers, double size_bytes, int after,
//                  const Cargo& cargo)
//   void dependency(int before, int after)
//
// The steps are: every server's overhead; the passes of every operator on its servers; activations
// and gradients between placements; and an AllReduce per bucket of gradients (GradientBuckets), or
// per operator and parameter part. Readers with equal needs of a tensor share transfers, and its
// gradient waits for all of them. With micro-batches, the order is 1F1B: backward before forward,
// older before younger, and an operator starts a micro-batch only while it holds fewer than
// PlacementCosts::inFlight. Transfers between two shards follow the order of micro-batches.
//
// `representative[s]` is the server simulated for server s: itself, unless another one does the
// same work at the same times and neither is an end of a transfer.
template <class Sink>
class IterationSteps {
 public:
  IterationSteps(PlacementCosts& costs, const std::vector<int>& strategy,
                 const std::vector<int>& representative, Sink& sink)
      : costs_(costs),
        job_(costs.job()),
        strategy_(strategy),
        representative_(representative),
        sink_(sink) {}

  void build() {
    const int count = static_cast<int>(strategy_.size());
    gradient_reaches_.assign(count, 0);
    first_shard_.assign(count + 1, 0);
    for (int op = 0; op < count; ++op) {
      first_shard_[op + 1] = first_shard_[op] + static_cast<int>(servers(op).size());
      for (const Operand& operand : job_.operators[op].operands) {
        if (operand.gradient_bytes > 0) gradient_reaches_[operand.producer] = 1;
      }
    }
    for (const ReadTensor& tensor : costs_.tensors()) shareReads(tensor);
    in_flight_ = costs_.inFlight(strategy_);
    task_of_server_.assign(job_.servers, -1);
    forward_.assign(first_shard_[count], -1);
    backward_.assign(job_.micro_batches, {});
    addOverhead();
    for (int batch = 0; batch < job_.micro_batches; ++batch) {
      addForward(batch);
      addBackward(batch);
    }
    for (int op = count - 1; op >= 0; --op) addAllReduces(op);
    for (auto& [group, bucket] : buckets_) {
      if (bucket.size_bytes > 0) start(group, bucket);
    }
  }

 private:
  // Readers with equal needs of a tensor.
  struct SharedRead {
    const ReadTensor* tensor;
    std::vector<Reader> readers;
  };

  // Gradients of a group in an unfinished bucket.
  struct Bucket {
    double size_bytes = 0;
    std::vector<int> gradients;  // tasks
    std::vector<int> operators;  // descending
    int before = -1;             // start of the last one; -1: this is the first
  };

  void addOverhead() {
    if (job_.overhead_s == 0) return;
    for (int server = 0; server < job_.servers; ++server) {
      if (representative_[server] == server) sink_.compute(server, job_.overhead_s, -1);
    }
  }

  void shareReads(const ReadTensor& tensor) {
    const auto opOf = [&](int reader) { return tensor.readers[reader].op; };
    std::vector<size_t> read_of(tensor.readers.size());
    for (int reader = 0; reader < static_cast<int>(read_of.size()); ++reader) {
      const int carrier = costs_.carrier(reader, strategy_, opOf);
      if (carrier == reader) {
        read_of[reader] = reads_.size();
        reads_.push_back({&tensor, {}});
      }
      read_of[reader] = read_of[carrier];
      reads_[read_of[reader]].readers.push_back(tensor.readers[reader]);
    }
  }

  const std::vector<int>& servers(int op) const {
    return costs_.placements()[strategy_[op]].servers;
  }

  // Inverse of computedAt().
  int priority(int op, int batch, bool is_backward) const {
    const int count = static_cast<int>(strategy_.size());
    if (job_.micro_batches == 1) return is_backward ? 2 * count - op : op;
    return is_backward ? (batch + 1) * count - op : (job_.micro_batches + batch + 1) * count + op;
  }

  // One task per shard of a simulated server; other shards use their representative's.
  void addShards(int op, double seconds, int priority, std::vector<int>& tasks) {
    const std::vector<int>& on = servers(op);
    int* const of_shard = tasks.data() + first_shard_[op];
    for (size_t shard = 0; shard < on.size(); ++shard) {
      const int server = on[shard];
      if (representative_[server] != server) continue;
      of_shard[shard] = task_of_server_[server] = sink_.compute(server, seconds, priority);
    }
    for (size_t shard = 0; shard < on.size(); ++shard) {
      const int server = on[shard];
      if (representative_[server] != server)
        of_shard[shard] = task_of_server_[representative_[server]];
    }
  }

  bool simulated(int op, size_t shard) const {
    const int server = servers(op)[shard];
    return representative_[server] == server;
  }

  void addForward(int batch) {
    for (int op = 0; op < static_cast<int>(strategy_.size()); ++op) {
      const double seconds = costs_.shard(op, strategy_[op]).forward_s;
      addShards(op, seconds, priority(op, batch, false), forward_);
      const int back = batch - in_flight_[op];
      for (size_t shard = 0; back >= 0 && shard < servers(op).size(); ++shard) {
        if (!simulated(op, shard)) continue;
        const int at = first_shard_[op] + static_cast<int>(shard);
        sink_.dependency(backward_[back][at], forward_[at]);
      }
    }
    for (const SharedRead& read : reads_) addTransfers(read, read.readers, batch, false);
  }

  void addBackward(int batch) {
    std::vector<int>& tasks = backward_[batch];
    tasks.assign(forward_.size(), -1);
    const int count = static_cast<int>(strategy_.size());
    for (int op = count - 1; op >= 0; --op) {
      const double seconds = costs_.shard(op, strategy_[op]).backward_s;
      addShards(op, seconds, priority(op, batch, true), tasks);
      for (size_t shard = 0; !gradient_reaches_[op] && shard < servers(op).size(); ++shard) {
        const int at = first_shard_[op] + static_cast<int>(shard);
        if (simulated(op, shard)) sink_.dependency(forward_[at], tasks[at]);
      }
    }
    for (auto read = reads_.rbegin(); read != reads_.rend(); ++read) {
      std::vector<Reader> returning;
      for (const Reader& reader : read->readers) {
        const Operand& operand = job_.operators[reader.op].operands[reader.operand];
        if (operand.gradient_bytes > 0) returning.push_back(reader);
      }
      if (!returning.empty()) addTransfers(*read, returning, batch, true);
    }
  }

  // Between a tensor's producer and those of its `readers` with equal needs.
  void addTransfers(const SharedRead& read, const std::vector<Reader>& readers, int batch,
                    bool is_backward) {
    const int producer = read.tensor->producer;
    const Reader& first = readers[0];
    const std::vector<int>& tasks = is_backward ? backward_[batch] : forward_;
    const double size_bytes =
        (is_backward ? read.tensor->gradient_bytes : read.tensor->size_bytes) / job_.micro_batches;
    Cargo cargo{is_backward ? CargoKind::kGradients : CargoKind::kActivations, {}};
    if (is_backward) {
      for (const Reader& reader : readers) {
        const bool again = !cargo.operators.empty() && cargo.operators.back() == reader.op;
        if (!again) cargo.operators.push_back(reader.op);
      }
    } else {
      cargo.operators.push_back(producer);
    }
    const auto wait = [&](int before, int after) {
      is_backward ? sink_.dependency(after, before) : sink_.dependency(before, after);
    };
    int number = -1;
    for (const Transfer& transfer :
         costs_.transfers(first.op, strategy_[producer], strategy_[first.op])) {
      ++number;
      if (representative_[transfer.target] != transfer.target) continue;
      int made = tasks[first_shard_[producer] + transfer.producer_shard];
      const double moved = transfer.fraction * size_bytes;
      if (transfer.source != transfer.target && moved > 0) {
        const int flow = is_backward
                             ? sink_.transfer(transfer.target, transfer.source, moved, cargo)
                             : sink_.transfer(transfer.source, transfer.target, moved, cargo);
        wait(made, flow);
        if (job_.micro_batches > 1) {
          const auto [last, is_first] =
              last_transfer_.try_emplace({first.op, first.operand, number, is_backward}, flow);
          if (!is_first) sink_.dependency(std::exchange(last->second, flow), flow);
        }
        made = flow;
      }
      for (const Reader& reader : readers) {
        wait(made, tasks[first_shard_[reader.op] + transfer.consumer_shard]);
      }
    }
  }

  // Starts them when every shard of the group has its gradients; only the end of the iteration
  // depends on them.
  void addAllReduces(int op) {
    const double size_bytes = costs_.reducedBytes(op, strategy_[op]);
    if (size_bytes == 0) return;
    const Placement& placement = costs_.placements()[strategy_[op]];
    const auto& groups = costs_.placements().groups(strategy_[op]);
    const GradientBuckets& rule = job_.buckets;
    for (size_t part = 0; part < groups.size(); ++part) {
      if (groups[part].size() == 1 && job_.local_reduce_s_per_byte == 0) continue;
      Bucket alone;
      Bucket& bucket = rule.perOperator() ? alone : buckets_[groups[part]];
      bucket.size_bytes += size_bytes;
      const auto made = gradientsOf(op, placement.degrees, static_cast<int>(part));
      bucket.gradients.insert(bucket.gradients.end(), made.begin(), made.end());
      bucket.operators.push_back(op);
      const double cap_bytes = bucket.before < 0 ? rule.first_bytes : rule.cap_bytes;
      if (rule.perOperator() || bucket.size_bytes >= cap_bytes) start(groups[part], bucket);
    }
  }

  void start(const std::vector<int>& group, Bucket& bucket) {
    const int ready = sink_.delay(bucket.size_bytes * job_.local_reduce_s_per_byte);
    for (int gradient : bucket.gradients) sink_.dependency(gradient, ready);
    if (bucket.before >= 0) sink_.dependency(bucket.before, ready);
    if (group.size() > 1) {
      std::reverse(bucket.operators.begin(), bucket.operators.end());
      sink_.allReduce(group, bucket.size_bytes, ready,
                      {CargoKind::kAllReduce, std::move(bucket.operators)});
    }
    bucket = {0, {}, {}, ready};
  }

  std::vector<int> gradientsOf(int op, const Degrees& degrees, int part) const {
    std::vector<int> found;
    for (int shard = 0; shard < degrees.shards(); ++shard) {
      if (shard / degrees.attribute % degrees.parameter != part) continue;
      for (const auto& tasks : backward_) found.push_back(tasks[first_shard_[op] + shard]);
    }
    std::sort(found.begin(), found.end());  // shards may share a representative
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }

  PlacementCosts& costs_;
  const Job& job_;
  const std::vector<int>& strategy_;
  const std::vector<int>& representative_;
  Sink& sink_;
  std::vector<char> gradient_reaches_;  // per operator: a consumer returns a gradient
  std::vector<int> in_flight_;          // per operator
  std::vector<int> first_shard_;        // per operator, into forward_ and each of backward_
  std::vector<int> task_of_server_;
  std::vector<int> forward_;                // per shard, of the micro-batch being built
  std::vector<std::vector<int>> backward_;  // per micro-batch and shard
  std::vector<SharedRead> reads_;
  std::map<std::vector<int>, Bucket> buckets_;  // by group
  // By first reader, operand, transfer and direction: the last micro-batch's task.
  std::map<std::array<int, 4>, int> last_transfer_;
};

}  // namespace topoopt
