// The input of a simulation: nodes, directed links, and tasks whose flows take given routes.

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/core/task_graph.h"

namespace topoopt {

struct ProgramLink {
  int64_t id;  // the user's id
  int source, target;
  double bits_per_s;
  double latency_ns;
};

// Sets the rate of link (index) from `time_s` on; 0: failed.
struct LinkChange {
  double time_s;
  int link;
  double bits_per_s;
};

struct ProgramFlow {
  int64_t id;
  int source, target;
  double size_bytes;
};

// Nodes are 0..nodes-1; the first `hosts` send and receive, and all forward. Both levels read the
// same program: in `graph()`, a flow's `resource` is a route, and its `latency_s` the sum over the
// route's links. Routes over the same links are shared.
//
// Additions are checked at once; a fault is a std::invalid_argument that begins with the result of
// `where()`: "line 12: flow 7", "flows[7]".
class FlowProgram {
 public:
  using Where = std::function<std::string()>;

  // Throws std::invalid_argument unless 0 < hosts <= nodes.
  FlowProgram(int64_t nodes, int64_t hosts);

  void addLink(const ProgramLink& link, const Where& where);
  // `links` (indices) must lead from the flow's source to its target.
  int addFlow(const ProgramFlow& flow, std::span<const int> links, const Where& where);
  int addCompute(int host, double seconds, int priority, const Where& where);
  int addDelay(double seconds, const Where& where);
  void addDependency(int before, int after) { graph_.addDependency(before, after); }
  void addChange(const LinkChange& change, const Where& where);
  // As RunOptions::first_come.
  void setFirstCome(bool first_come) { first_come_ = first_come; }

  // As TaskGraph::addLoop; loops repeat until each has finished `rounds` rounds, at least 1.
  void addLoop(const Loop& loop) { graph_.addLoop(loop); }
  void setRounds(int rounds);
  int rounds() const { return rounds_; }

  // As TaskGraph::setDevicesAtOnce.
  void setHostsAtOnce(double count) { graph_.setDevicesAtOnce(count); }

  int nodes() const { return nodes_; }
  int hosts() const { return hosts_; }
  const std::vector<ProgramLink>& links() const { return links_; }
  const TaskGraph& graph() const { return graph_; }
  const std::vector<LinkChange>& changes() const { return changes_; }  // in order of addition
  int64_t taskId(int task) const { return task_ids_[task]; }           // -1 unless it is a flow
  bool firstCome() const { return first_come_; }
  int flowCount() const { return flows_; }

  int routeCount() const { return static_cast<int>(route_begin_.size()) - 1; }
  // The links in the order of traversal.
  std::span<const int> route(int route) const {
    return {route_links_.data() + route_begin_[route],
            static_cast<size_t>(route_begin_[route + 1] - route_begin_[route])};
  }

 private:
  int routeOf(std::span<const int> links);

  int nodes_, hosts_;
  bool first_come_ = false;
  int rounds_ = 1;
  int flows_ = 0;
  std::vector<ProgramLink> links_;
  std::vector<int64_t> route_begin_{0};
  std::vector<int> route_links_;
  std::unordered_multimap<uint64_t, int> route_of_hash_;
  TaskGraph graph_;
  std::vector<int64_t> task_ids_;
  std::vector<LinkChange> changes_;
};

// Returns a dependency cycle in order; empty if there is none.
std::vector<int> findCycle(const TaskGraph& graph);

// "2 after 1 after 2"; a long cycle is cut. `id` maps tasks to displayed ids.
std::string cycleText(const std::vector<int>& cycle, const std::function<int64_t(int)>& id);

}  // namespace topoopt
