// Estimates the costs of collectives and selects the cheapest algorithm. All members select the
// same, from equal layouts and models.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/group_layout.h"
#include "plan/tree_schedules.h"

namespace topoopt::plan {

// A measured all_reduce of `bytes` among all ranks.
struct AllReduceTime {
  std::string algorithm;
  size_t bytes = 0;
  double seconds = 0;
};

// The alpha-beta-gamma model with a latency per hop, as torch_topoopt.plan.CostModel: a message of
// b bytes over h links takes alpha + h (per-hop latency + b beta), and its reduction b gamma.
struct CostModel {
  double alpha_s = 25e-6;            // send and receive overhead of a message
  double per_hop_latency_s = 15e-6;  // relay overhead per link
  double beta_s_per_byte = 1.0e-9;   // of a link
  double gamma_s_per_byte = 0.2e-9;  // of reduction
  // Measured times of this group's all_reduces; empty if not measured.
  std::vector<AllReduceTime> all_reduce{};
};

}  // namespace topoopt::plan

namespace topoopt {

using plan::CostModel;

enum class Algorithm : uint8_t {
  kDirect,
  kRing,
  kMultiRing,
  kBothWays,
  kTree,
  kDoubling,
  kTorus,
  kSwing,
  kBreadthFirst,
  kPacking,
  kFlooding,
  kOneShot,
};
const char* nameOf(Algorithm algorithm);

// "auto" is no algorithm. Throws std::invalid_argument for an unknown name.
std::optional<Algorithm> algorithmNamed(const std::string& name);

enum class Collective : uint8_t {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kGather,
  kScatter,
  kExchange,
  kBarrier,
};
const char* nameOf(Collective collective);

// The properties of a call that affect its cost.
struct Request {
  Collective collective = Collective::kBarrier;
  size_t bytes = 0;          // of all blocks together
  int root = 0;              // of collectives that have one
  bool commutative = false;  // a op b equals b op a bit for bit
};

class GraphCosts;

// One thread at a time.
class CostEstimate {
 public:
  CostEstimate(const GroupLayout& layout, const CostModel& model);
  ~CostEstimate();

  // Algorithms that support the request, in order of preference at equal costs.
  std::vector<Algorithm> candidates(const Request& request) const;
  // Interpolates and extrapolates measured times, else uses the model.
  double seconds(const Request& request, Algorithm algorithm) const;
  // The forced algorithm if it supports the request, else the cheapest.
  Algorithm choose(const Request& request, std::optional<Algorithm> forced) const;
  // The reason why no collective of this group supports the algorithm; empty if one does.
  std::string_view whyNever(Algorithm algorithm) const;

  // The first size, doubling from `least` to `most`, at which a sum over all members reaches 0.9 of
  // the asymptotic rate; else `most`.
  size_t busyBytes(size_t least, size_t most, std::optional<Algorithm> forced) const;

  // Plans and costs over the links; nullptr without links.
  GraphCosts* graph() const { return graph_.get(); }

  // The trees of tree and chain algorithms; the direction of a chain depends on the collective.
  std::vector<TreeShare> trees(const Request& request, Algorithm algorithm) const;

 private:
  void addGraphCandidates(const Request& request, std::vector<Algorithm>& list) const;
  double modelSeconds(const Request& request, Algorithm algorithm) const;
  std::optional<double> measuredSeconds(const Request& request, Algorithm algorithm) const;
  double ringSteps(size_t steps, size_t bytes, double factor, bool reduces, size_t rings) const;
  double treeSeconds(const std::vector<TreeShare>& trees, size_t bytes, int directions,
                     bool reduces) const;
  double torusSeconds(size_t bytes) const;
  double doublingSeconds(size_t bytes) const;
  double swingSeconds(size_t bytes) const;
  double disseminationSeconds() const;
  double messageSeconds(double hops, size_t bytes) const;

  const GroupLayout& layout_;
  const CostModel model_;
  std::map<Algorithm, std::map<size_t, double>> times_{};  // measured: bytes, seconds
  const bool flat_;                                        // one member per server
  const bool both_;                                        // every ring also runs in reverse
  const bool swings_;               // a grid with powers of two rows and columns
  double links_ = 1;                // links of a server used by all rings together
  double ring_links_ = 1;           // fewer if their neighbours are joined through others
  double tree_links_ = 1;           // fewer if a server has more rings than links
  int ring_hops_ = 0;               // maximum links between neighbours on the first ring
  std::array<int, 2> grid_hops_{};  // the same in rows and columns of the grid
  mutable std::optional<std::array<Tree, 2>> binary_;  // computed on first use
  const std::unique_ptr<GraphCosts> graph_;
};

}  // namespace topoopt
