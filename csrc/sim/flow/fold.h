// Folds a task graph: one member of each equivalence class is simulated for all.

#pragma once

#include <optional>
#include <vector>

#include "sim/core/path_table.h"
#include "sim/core/task_graph.h"

namespace topoopt {

enum class Folding { kNever, kWhereItPays, kAlways };

// A smaller graph and network with the same timing. It contains all tasks of one device, path or
// group of delays per class.
struct FoldedGraph {
  TaskGraph graph;
  std::vector<double> capacity;  // bytes per second, per class of links
  PathTable paths;               // per class of paths: total load on one link of a class
  std::vector<int> task;         // per task: its representative
  std::vector<int> device;       // per device: its representative
  std::vector<int> link;         // per link: its class, -1 without flows
};

// Classes result from colour refinement until they are stable. Tasks are coloured by properties,
// dependencies and their device or path; devices and paths by their tasks; paths and links by each
// other. At any time, all tasks of a class are then in the same state, paths have equally many
// flows, and links equal loads. So the max-min rates of the folded network are those of the
// original, up to rounding.
//
// Returns nullopt for cyclic dependencies. With kWhereItPays also for a graph with few flows, or if
// more than half of the links or tasks would remain. The graph must be valid
// (FlowSimulator::validate). Colours are 64-bit hashes.
std::optional<FoldedGraph> fold(const TaskGraph& graph, const PathTable& paths,
                                const std::vector<double>& capacity, int devices, Folding folding);

}  // namespace topoopt
