// The candidates for a collective on a graph of links, with predicted times and loads.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plan/cost_model.h"
#include "plan/gather_plan.h"
#include "plan/graph_plans.h"

namespace topoopt {

struct CollectiveCandidate {
  std::string algorithm;
  size_t steps = 0;  // messages that wait for each other
  double seconds = 0;
  double busiest_link_bytes = 0;
};

struct CollectiveCandidates {
  std::vector<CollectiveCandidate> list{};
  std::string chosen{};      // by `auto`
  double bound_bytes = 0;    // least that the busiest link carries, relative to its rate
  double bound_seconds = 0;  // their time, without latencies
};

// A group with one member on each server, whose ring order is that of the servers where no rings
// are given. Rates are in bytes per second. All functions throw std::invalid_argument for a graph
// that does not join all servers.
class GraphGroup {
 public:
  GraphGroup(int servers, std::vector<RatedLink> links, std::vector<plan::Ring> rings,
             CostModel cost);
  ~GraphGroup();

  // An operation on `bytes` bytes of all blocks together; the root of a broadcast is server 0.
  CollectiveCandidates candidates(Collective collective, size_t bytes) const;

  // The given rings, or those found.
  const std::vector<plan::Ring>& rings() const { return layout_->rings(); }

  // The chosen plan of an algorithm that moves shards, in one direction.
  const GatherPlan& plan(const std::string& algorithm, Direction direction, int origin) const;

 private:
  double busiestLinkBytes(Collective collective, size_t bytes, Algorithm algorithm) const;

  double slowest_;  // rate
  std::vector<RatedLink> links_;
  std::vector<std::vector<int>> next_hop_;  // by source and target
  std::unique_ptr<GroupLayout> layout_;
  std::unique_ptr<CostEstimate> estimate_;
};

}  // namespace topoopt
