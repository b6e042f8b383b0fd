// Event-driven flow-level simulation of a task graph.

#pragma once

#include <vector>

#include "sim/core/path_table.h"
#include "sim/core/task_graph.h"
#include "sim/core/task_runner.h"
#include "sim/flow/flow_network.h"
#include "sim/flow/fold.h"

namespace topoopt {

// A TaskRunner on a FlowNetwork, with reused buffers. Equivalent parts of a graph are simulated
// once (fold.h).
class FlowSimulator {
 public:
  // `capacity` (bytes per second per link) and `paths` must outlive the simulator. Throws
  // std::invalid_argument for a capacity that is not positive and finite.
  FlowSimulator(const std::vector<double>& capacity, const PathTable& paths, int devices,
                Folding folding = Folding::kWhereItPays);

  // Simulates `graph` from time 0. Throws std::invalid_argument for a dependency cycle, an unknown
  // device, path or task, or an amount that is negative, NaN or infinite (flows: also zero). The
  // result is valid until the next call; its `events` are of the folded graph.
  const Outcome& run(const TaskGraph& graph);

 private:
  void validate(const TaskGraph& graph) const;

  const Outcome& unfold(const FoldedGraph& folded, const Outcome& of_folded);

  const std::vector<double>& capacity_;
  const PathTable& paths_;
  int devices_;
  Folding folding_;
  FlowNetwork network_;
  TaskRunner runner_;
  Outcome unfolded_;
};

}  // namespace topoopt
