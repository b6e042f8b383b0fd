// Costs of NCCL's algorithms on the cables of a plan in the alpha-beta model: bytes per cable and
// per rank with cables, and sequential messages.
// NCCL orders servers by their ranks. A ring connects each server to the next. Two trees carry half
// of the bytes each, both ways over each edge; an edge without a cable loads all cables of its
// routes. PAT sends between servers at powers of two. CollNet costs what its engine estimates.

#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/group/group.h"
#include "nccl/tuner_abi.h"
#include "nccl/wiring.h"
#include "plan/cost_model.h"
#include "plan/group_layout.h"

namespace topoopt::nccl {

// `bytes` are NCCL's: the longer of a rank's two buffers.
struct Cost {
  double latency_s = 0;   // of sequential messages
  double s_per_byte = 0;  // of the most loaded cable or rank

  double seconds(double bytes) const { return latency_s + s_per_byte * bytes; }
};

class FabricCosts {
 public:
  explicit FabricCosts(const Wiring& wiring);

  int servers() const { return static_cast<int>(order_.size()); }

  // For a communicator of `ranks` ranks on all servers.
  Cost ring(NcclCollective collective, size_t ranks) const;
  Cost trees() const;  // AllReduce
  Cost pat() const;    // AllGather and ReduceScatter

  // CollNet between the servers: AllReduce, AllGather and ReduceScatter.
  double collNetSeconds(NcclCollective collective, size_t bytes) const;

  // The ring's bandwidth on the cables, in Gb/s.
  double ringGbps() const;

 private:
  // The collectives engine of CollNet.
  struct CollNetModel {
    CollNetModel(const GroupConfig& group, std::vector<RatedLink> links);
    GroupLayout layout;
    CostEstimate estimate;
  };
  // From server to server (indices in NCCL's order), as a fraction of all bytes.
  struct Traffic {
    int source;
    int target;
    double part;
  };

  std::vector<RatedLink> ratedLinks() const;
  // The routes of all bytes, weighted by their fractions.
  std::vector<plan::Route> routesOf(const Traffic& traffic) const;
  // Seconds per byte on the most loaded cable; relayed bytes count twice.
  double cables(const std::vector<Traffic>& traffic) const;
  double threads(const std::vector<Traffic>& traffic) const;
  double perByte(const std::vector<Traffic>& traffic) const;
  std::vector<Traffic> around(double part) const;
  double latency(int source, int target) const;
  double latencyAround() const;

  std::vector<int> order_;  // ranks with cables, in NCCL's order of their servers
  std::map<std::pair<int, int>, double> gbps_;  // total rate from rank to rank
  std::map<std::pair<int, int>, std::vector<plan::Route>> routes_;
  std::shared_ptr<const CollNetModel> collnet_;  // does not move: the estimate refers to the layout
};

// Returns the parents in the first of NCCL's two trees over `count` servers; -1 at the root. The
// second is its mirror image, or, for odd `count`, the first shifted by one server.
std::vector<int> treeParents(int count);
std::vector<int> secondTreeParents(int count);

}  // namespace topoopt::nccl
