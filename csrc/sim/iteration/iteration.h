// One training iteration of a job under a strategy, as a task graph on a network.

#pragma once

#include <memory>
#include <vector>

#include "sim/flow/flow_simulator.h"
#include "sim/iteration/job.h"
#include "sim/iteration/routed_network.h"

namespace topoopt {

// Prices strategies of one job on one network, with cached placement costs. Servers with the same
// operators and no transfers are equivalent, so one of them is simulated for all.
class IterationModel {
 public:
  // Throws std::invalid_argument if job and network disagree on the number of servers.
  IterationModel(std::shared_ptr<const Job> job, std::shared_ptr<RoutedNetwork> network,
                 Folding folding = Folding::kWhereItPays);

  PlacementCosts& costs() { return costs_; }
  Placements& placements() { return costs_.placements(); }
  const Placements& placements() const { return costs_.placements(); }

  // Simulates one iteration with operator i on placement `strategy[i]`; returns seconds. Throws
  // std::invalid_argument for a placement without costs.
  double run(const std::vector<int>& strategy);

  // Results of the last run: bytes per link, in the network's order; busy seconds of the busiest
  // server's accelerators.
  std::vector<double> linkBytes() const;
  double computeSeconds() const;

  int taskCount() const { return graph_.size(); }

 private:
  void chooseRepresentatives(const std::vector<int>& strategy);
  bool exchanges(const std::vector<int>& strategy, int op, int producer);

  std::shared_ptr<const Job> job_;
  std::shared_ptr<RoutedNetwork> network_;
  PlacementCosts costs_;
  FlowSimulator simulator_;
  TaskGraph graph_;
  const Outcome* outcome_ = nullptr;  // of the last run
  std::vector<int> representative_;   // per server: simulated server
};

}  // namespace topoopt
