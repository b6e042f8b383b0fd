// Placements of operators on servers, and the bytes that move between two placements.
//
// A tensor has four axes: samples, features, positions (its attribute dimension) and, after a
// mixture of experts, the expert of a token. Every axis is the interval [0, 1), and a shard holds
// an interval of each. Transfers follow from the producer's and the consumer's intervals.

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "plan/placement.h"

namespace topoopt {

using plan::Degrees;
using plan::ParameterKind;
using plan::Placement;

// Throws std::invalid_argument unless the degrees match the number of servers, and the servers are
// in 0..servers-1.
void validate(const Placement& placement, int servers);

// Whether a consumer's shards need their operands whole along a split dimension, or only their own
// part.
struct WholeOperands {
  bool parameter = false;
  bool attribute = false;
  auto operator<=>(const WholeOperands&) const = default;
};

// The needs of a consumer's shards, independent of the producer. Consumers with equal needs of a
// tensor share it: it is sent to each server once. `by_expert`: parts are tokens of different
// experts, not features.
struct Need {
  std::vector<int> servers;
  int sample, parameter, attribute;
  WholeOperands whole;
  bool by_expert;

  auto operator<=>(const Need&) const = default;
};

Need needOf(const Placement& consumer, WholeOperands whole);

// A transfer from a producer's shard to a consumer's, as a fraction of the tensor; backward, the
// same fraction of the gradient. Nothing is sent within a server. The consumer adds partial sums of
// several producer shards; the producer adds gradients of several consumer shards.
struct Transfer {
  int producer_shard;
  int consumer_shard;
  int source;  // server of the producer's shard
  int target;  // server of the consumer's
  double fraction;
};

// All pairs of shards that share a part of the tensor.
std::vector<Transfer> transfersBetween(const Placement& producer, const Need& need);

// The number of transfers between different servers, without building the list.
int64_t sentBetween(const Placement& producer, const Need& need);

// The servers with equal parameters, ascending: one group per parameter part, including single
// servers.
std::vector<std::vector<int>> parameterGroups(const Placement& placement);

// Interned placements, so that a strategy is a list of small integers.
class Placements {
 public:
  explicit Placements(int servers) : servers_(servers) {}

  // Throws std::invalid_argument unless degrees match the number of servers, and servers are known
  // and distinct.
  int intern(Placement placement);
  // Servers ascending, split by samples.
  int intern(std::vector<int> servers);

  int size() const { return static_cast<int>(placements_.size()); }
  const Placement& operator[](int id) const { return placements_[id]; }
  // As parameterGroups; the reference stays valid.
  const std::vector<std::vector<int>>& groups(int id);

  // The id of needOf(placement `id`), equal for equal needs.
  int need(int id, WholeOperands whole);
  const Need& needNumber(int need) const { return needs_[need]; }

  // As transfersBetween, for the need `need`. Valid until the next call.
  const std::vector<Transfer>& transfers(int producer, int need);
  // As sentBetween.
  int64_t sent(int producer, int need);

 private:
  void check(const Placement& placement) const;

  int servers_;
  std::vector<Placement> placements_;
  // A search space of a thousand servers has some hundred thousand placements on hundreds of them,
  // of which a search tries few: only those get groups, and no second copy is a key.
  std::unordered_map<int, std::vector<std::vector<int>>> groups_;
  std::unordered_multimap<uint64_t, int> ids_;  // by the hash of a placement
  std::vector<Need> needs_;
  std::map<Need, int> need_ids_;
  std::vector<std::array<int, 4>> need_of_;  // per placement and WholeOperands; -1: unknown
  std::unordered_map<uint64_t, std::vector<Transfer>> transfers_;
  std::unordered_map<uint64_t, int64_t> sent_;
};

// The number of micro-batches, out of `micro_batches`, that each operator of a pipeline holds at
// once. Operators that share a server are in one stage. The schedule is 1F1B with a flush
// ("PipeDream-Flush"; Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, 2021).
// Stage d from the end (counted from 1) starts no micro-batch while d are unfinished.
// `producers[i]` are the operators that operator i reads from. Throws std::invalid_argument for
// cyclic stages.
std::vector<int> microBatchesInFlight(const std::vector<const Placement*>& strategy,
                                      const std::vector<std::vector<int>>& producers, int servers,
                                      int micro_batches);

}  // namespace topoopt
