// Folds a task graph whose parts behave alike: one of each class is simulated for all of it.

#pragma once

#include <optional>
#include <vector>

#include "sim/core/path_table.h"
#include "sim/core/task_graph.h"

namespace topoopt {

enum class Folding { kNever, kWhereItPays, kAlways };

// A smaller graph on a smaller network that takes the same time. In it are all tasks of one device,
// path or group of delays per class, so what happens to them is what happens to the others too.
struct FoldedGraph {
  TaskGraph graph;
  std::vector<double> capacity;  // bytes per second, per class of links
  PathTable paths;               // per class of paths: what all of it loads one link of a class
  std::vector<int> task;         // per task: the task of `graph` that starts and ends with it
  std::vector<int> device;       // per device: the one that is simulated for it
  std::vector<int> link;         // per link: its class, -1 if no flow crosses it
};

// Classes come from colour refinement: tasks are coloured by what they are, what they wait for and
// the device or path they use, devices and paths by their tasks, paths by their links and links by
// their paths, until no class splits any more. Then at any time all tasks of a class are in the
// same state, all paths of a class have as many flows and all links of a class are filled alike, so
// the max-min rates of the folded network are those of the whole one, up to rounding.
//
// Nothing is returned if the dependencies form a cycle, and with kWhereItPays also for a graph of
// few flows or one of which more than half of the links or tasks would remain. The graph must be
// valid (FlowSimulator::validate). Colours are hashes of 64 bits.
std::optional<FoldedGraph> fold(const TaskGraph& graph, const PathTable& paths,
                                const std::vector<double>& capacity, int devices, Folding folding);

}  // namespace topoopt
