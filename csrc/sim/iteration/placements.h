// Onto which servers an operator is split and how, and which bytes move between two placements.
//
// A tensor has four axes: samples, features, positions (its attribute dimension) and, behind a
// mixture of experts, the expert that a token goes to. Every axis is the interval [0, 1); a shard
// holds an interval of each. Bytes follow from who holds what and who needs what, nothing else.

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

// Throws std::invalid_argument for degrees that are not the number of servers, or a server that is
// not in 0..servers-1.
void validate(const Placement& placement, int servers);

// Whether every shard of a consumer needs its operands along a split dimension as a whole, or only
// the part of its own place.
struct WholeOperands {
  bool parameter = false;
  bool attribute = false;
  auto operator<=>(const WholeOperands&) const = default;
};

// What the shards of a consumer need of a tensor, whoever made it. Consumers that need the same of
// one tensor get it together: it is sent to each of their servers once. `by_expert`: the parts are
// the tokens of different experts, and not features.
struct Need {
  std::vector<int> servers;
  int sample, parameter, attribute;
  WholeOperands whole;
  bool by_expert;

  auto operator<=>(const Need&) const = default;
};

Need needOf(const Placement& consumer, WholeOperands whole);

// What a shard of a consumer takes from a shard of a producer, as a fraction of the whole tensor:
// forward that part of the activations, backward as much of the gradient the other way. Nothing is
// sent where the two servers are one. Parts of several producer shards that hold partial sums are
// added by the consumer; gradients of several consumer shards for the same part, by the producer.
struct Transfer {
  int producer_shard;
  int consumer_shard;
  int source;  // server of the producer's shard
  int target;  // server of the consumer's
  double fraction;
};

// Every pair of shards that share a part of the tensor, each once.
std::vector<Transfer> transfersBetween(const Placement& producer, const Need& need);

// How many of them are between different servers; no list is made, which may be long.
int64_t sentBetween(const Placement& producer, const Need& need);

// The servers that hold the same parameters, ascending: one group per parameter part. Groups of one
// server are among them.
std::vector<std::vector<int>> parameterGroups(const Placement& placement);

// Placements by number, so that a strategy is a list of small integers.
class Placements {
 public:
  explicit Placements(int servers) : servers_(servers) {}

  // Throws std::invalid_argument for degrees that are not the number of servers, or a server that
  // is unknown or named twice.
  int intern(Placement placement);
  // The servers ascending, the samples split among them.
  int intern(std::vector<int> servers);

  int size() const { return static_cast<int>(placements_.size()); }
  const Placement& operator[](int id) const { return placements_[id]; }
  const std::vector<std::vector<int>>& groups(int id) const { return groups_[id]; }

  // The number of needOf(placement `id`): the same for all who need the same.
  int need(int id, WholeOperands whole);
  const Need& needNumber(int need) const { return needs_[need]; }

  // As transfersBetween, for need number `need`. Valid until the next call.
  const std::vector<Transfer>& transfers(int producer, int need);
  // As sentBetween.
  int64_t sent(int producer, int need);

 private:
  void check(const Placement& placement) const;

  int servers_;
  std::vector<Placement> placements_;
  std::vector<std::vector<std::vector<int>>> groups_;
  std::map<Placement, int> ids_;
  std::vector<Need> needs_;
  std::map<Need, int> need_ids_;
  std::vector<std::array<int, 4>> need_of_;  // per placement and WholeOperands; -1 not looked up
  std::unordered_map<uint64_t, std::vector<Transfer>> transfers_;
  std::unordered_map<uint64_t, int64_t> sent_;
};

// How many micro-batches each operator of a pipeline holds at once, of `micro_batches`. Operators
// whose placements share a server belong to one stage. The schedule is 1F1B with a flush
// ("PipeDream-Flush"; Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, 2021): a
// stage that is d stages from the end, itself counted, starts no further micro-batch while d have
// not come back. `producers[i]` are the operators that operator i reads from. Throws
// std::invalid_argument if two stages wait for each other.
std::vector<int> microBatchesInFlight(const std::vector<const Placement*>& strategy,
                                      const std::vector<std::vector<int>>& producers, int servers,
                                      int micro_batches);

}  // namespace topoopt
