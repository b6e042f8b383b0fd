#include "sim/flow/flow_simulator.h"

#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>

namespace topoopt {

namespace {

[[noreturn]] void failTask(int task, const std::string& what) {
  throw std::invalid_argument("tasks[" + std::to_string(task) + "]: " + what);
}

}  // namespace

FlowSimulator::FlowSimulator(const std::vector<double>& capacity, const PathTable& paths,
                             int devices, Folding folding)
    : capacity_(capacity),
      paths_(paths),
      devices_(devices),
      folding_(folding),
      network_(capacity, paths),
      runner_(devices) {
  for (size_t link = 0; link < capacity.size(); ++link) {
    if (!(capacity[link] > 0) || !std::isfinite(capacity[link])) {
      throw std::invalid_argument("links[" + std::to_string(link) + "].bytes_per_s: " +
                                  std::to_string(capacity[link]) + " is not above 0 and finite");
    }
  }
}

void FlowSimulator::validate(const TaskGraph& graph) const {
  for (int i = 0; i < graph.size(); ++i) {
    const Task& task = graph.tasks()[i];
    const bool flow = task.kind == TaskKind::kFlow;
    if (!std::isfinite(task.amount) || task.amount < 0 || (flow && task.amount == 0)) {
      failTask(i, (flow ? "size_bytes: " : "seconds: ") + std::to_string(task.amount) +
                      (flow ? " is not above 0 and finite" : " is not at least 0 and finite"));
    }
    if (!std::isfinite(task.latency_s) || task.latency_s < 0) {
      failTask(i, "latency_s: " + std::to_string(task.latency_s) + " is not at least 0 and finite");
    }
    if (flow && (task.resource < 0 || task.resource >= paths_.size())) {
      failTask(i, "path " + std::to_string(task.resource) + " does not exist");
    }
    if (task.kind == TaskKind::kCompute && (task.resource < 0 || task.resource >= devices_)) {
      failTask(i, "device: " + std::to_string(task.resource) + " is not in 0.." +
                      std::to_string(devices_ - 1));
    }
  }
  for (const auto& [before, after] : graph.dependencies()) {
    for (int task : {before, after}) {
      if (task < 0 || task >= graph.size()) {
        throw std::invalid_argument("after: task " + std::to_string(task) + " is not in 0.." +
                                    std::to_string(graph.size() - 1));
      }
    }
  }
}

const Outcome& FlowSimulator::run(const TaskGraph& graph) {
  validate(graph);
  // Devices that share computing are not equivalent, because their number matters. Nor are loops.
  const bool alike = std::isinf(graph.devicesAtOnce()) && graph.loops().empty();
  const Folding folding = alike ? folding_ : Folding::kNever;
  const std::optional<FoldedGraph> folded = fold(graph, paths_, capacity_, devices_, folding);
  if (!folded) return runner_.run(graph, network_);
  FlowNetwork network(folded->capacity, folded->paths);
  return unfold(*folded, runner_.run(folded->graph, network));
}

const Outcome& FlowSimulator::unfold(const FoldedGraph& folded, const Outcome& of_folded) {
  const size_t tasks = folded.task.size();
  unfolded_.makespan_s = of_folded.makespan_s;
  unfolded_.events = of_folded.events;
  unfolded_.finished = static_cast<int>(tasks);
  unfolded_.complete = true;
  unfolded_.start_s.resize(tasks);
  unfolded_.finish_s.resize(tasks);
  for (size_t i = 0; i < tasks; ++i) {
    unfolded_.start_s[i] = of_folded.start_s[folded.task[i]];
    unfolded_.finish_s[i] = of_folded.finish_s[folded.task[i]];
  }
  unfolded_.device_busy_s.clear();
  for (int device : folded.device) {
    unfolded_.device_busy_s.push_back(of_folded.device_busy_s[device]);
  }
  unfolded_.link_bytes.clear();
  for (int link : folded.link) {
    unfolded_.link_bytes.push_back(link < 0 ? 0.0 : of_folded.link_bytes[link]);
  }
  return unfolded_;
}

}  // namespace topoopt
