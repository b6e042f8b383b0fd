// What a collective costs, and which algorithm costs least. All members choose alike, because all
// have the same layout and the same model.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/group_layout.h"
#include "plan/tree_schedules.h"

namespace topoopt::plan {

// What an all_reduce of `bytes` among all ranks has taken by an algorithm.
struct AllReduceTime {
  std::string algorithm;
  size_t bytes = 0;
  double seconds = 0;
};

// The alpha-beta-gamma model with a latency per hop, as torch_topoopt.plan.CostModel has it: a
// message of b bytes over h links takes alpha + h (per-hop latency + b beta), and reducing it b
// gamma.
struct CostModel {
  double alpha_s = 25e-6;            // to hand over and take one message
  double per_hop_latency_s = 15e-6;  // to pass one on over one link
  double beta_s_per_byte = 1.0e-9;   // of one link
  double gamma_s_per_byte = 0.2e-9;  // of adding up
  // What all_reduces of this very group have taken; empty for a group that was not measured.
  std::vector<AllReduceTime> all_reduce{};
};

}  // namespace topoopt::plan

namespace topoopt {

using plan::CostModel;

enum class Algorithm : uint8_t { kDirect, kRing, kMultiRing, kBothWays, kTree, kDoubling, kTorus };
const char* nameOf(Algorithm algorithm);

// "auto" is no algorithm. Throws std::invalid_argument for a name that is not known.
std::optional<Algorithm> algorithmNamed(const std::string& name);

enum class Collective : uint8_t {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kExchange,
  kBarrier,
};
const char* nameOf(Collective collective);

// What a call asks for, as far as its cost is concerned.
struct Request {
  Collective collective = Collective::kBarrier;
  size_t bytes = 0;          // of the whole tensor: of all blocks together
  int root = 0;              // of broadcast and reduce
  bool commutative = false;  // a op b and b op a have the same bits
};

// One thread at a time.
class CostEstimate {
 public:
  CostEstimate(const GroupLayout& layout, const CostModel& model);

  // The algorithms that can serve the request, in order of preference where costs are equal.
  std::vector<Algorithm> candidates(const Request& request) const;
  // What was measured goes before the model: on straight lines between sizes and beyond the last.
  double seconds(const Request& request, Algorithm algorithm) const;
  // The forced one if it can serve the request, or the one that costs least.
  Algorithm choose(const Request& request, std::optional<Algorithm> forced) const;
  // Why no collective of this group can take the algorithm; empty if one can.
  std::string_view whyNever(Algorithm algorithm) const;

  // The fewest bytes, of `least` doubled until it is `most`, with which a sum over all members has
  // at least 0.9 of the rate of an endless one; `most`, if none has.
  size_t busyBytes(size_t least, size_t most, std::optional<Algorithm> forced) const;

  // The trees of tree and chain algorithms; which way data moves on a chain depends on the
  // collective.
  std::vector<TreeShare> trees(const Request& request, Algorithm algorithm) const;

 private:
  double modelSeconds(const Request& request, Algorithm algorithm) const;
  std::optional<double> measuredSeconds(const Request& request, Algorithm algorithm) const;
  double ringSteps(size_t steps, size_t bytes, double factor, bool reduces, size_t rings) const;
  double treeSeconds(const std::vector<TreeShare>& trees, size_t bytes, int directions,
                     bool reduces) const;
  double torusSeconds(size_t bytes) const;
  double doublingSeconds(size_t bytes) const;
  double disseminationSeconds() const;
  double messageSeconds(double hops, size_t bytes) const;

  const GroupLayout& layout_;
  const CostModel model_;
  std::map<Algorithm, std::map<size_t, double>> times_{};  // that were measured: bytes, seconds
  const bool flat_;                                        // one member per server
  const bool both_;                                        // every ring also runs the other way
  double links_ = 1;                // how many links of one server the rings use together
  int ring_hops_ = 0;               // the most links between neighbours on the first ring
  std::array<int, 2> grid_hops_{};  // and in a row and a column of the grid
  mutable std::optional<std::array<Tree, 2>> binary_;  // found when it is first asked for
};

}  // namespace topoopt
