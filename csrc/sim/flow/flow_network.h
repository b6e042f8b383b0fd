// The network at flow level: fluid flows with max-min fair shares of links.

#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/event_queue.h"
#include "sim/core/flow_program.h"
#include "sim/core/min_tree.h"
#include "sim/core/network.h"
#include "sim/core/path_table.h"
#include "sim/flow/max_min_rates.h"

namespace topoopt {

// A flow is delivered its path's latency after its last byte was sent. Flows with the same
// bottleneck link have equal rates, so they share a clock of bytes sent per flow. A change of rate
// updates this clock instead of every flow.
class FlowNetwork : public ReconfigurableNetwork {
 public:
  // `capacity` (bytes per second per link) and `paths` must outlive the network; paths may be added
  // before reset(). A flow's `resource` is a path.
  FlowNetwork(const std::vector<double>& capacity, const PathTable& paths);
  FlowNetwork(const FlowNetwork&) = delete;
  FlowNetwork& operator=(const FlowNetwork&) = delete;

  void reset() override;
  void start(int flow, const Task& task, double now_s) override;
  double advance(double until_s, std::vector<int>& delivered) override;
  void changeLink(int link, double bits_per_s, double now_s) override;
  std::vector<double> linkBytes() const override;
  int64_t events() const override { return events_; }

  void hold(bool held) override;
  bool drained() const override { return true; }  // no sent bytes are on links
  std::vector<double> waitingBytes() const override;
  void reroute(const std::vector<std::pair<int, const PairPath*>>& paths) override;

 private:
  struct Pending {  // an active flow: sent when its path has served `target` bytes
    double target;
    double latency_s;
    int flow;
    bool operator>(const Pending& other) const {
      return target != other.target ? target > other.target : flow > other.flow;
    }
  };
  // The flows of one path, first to finish first. Usually there is only one, stored inline.
  class PathFlows {
   public:
    bool empty() const { return !any_; }
    const Pending& front() const { return first_; }
    int size() const { return any_ ? 1 + static_cast<int>(later_.size()) : 0; }
    // Sum of their targets.
    double targets() const;
    void push(Pending flow);
    void pop();
    void clear() {
      any_ = false;
      later_.clear();
    }

   private:
    Pending first_{};
    bool any_ = false;
    std::vector<Pending> later_;  // a heap
  };
  struct PathState {
    double served = 0;  // bytes sent per flow since it was 0, until..
    double joined = 0;  // ..its group had served this much
    int group = -1;     // its bottleneck link
    unsigned turn = 0;  // of the valid entry in its group's `next`
    bool touched = false;
    PathFlows flows;
  };
  struct Turn {  // the first flow of `path` has sent all when the group has served `target` bytes
    double target;
    int path;
    unsigned turn;
    bool operator>(const Turn& other) const {
      return target != other.target ? target > other.target : path > other.path;
    }
  };
  struct Group {  // the paths with this bottleneck link
    double served = 0;
    double updated_at = 0;
    double rate = 0;
    bool touched = false;
    std::vector<Turn> next;  // a heap with outdated entries
  };

  void completeGroup(int link, double horizon, std::vector<int>& delivered);
  void completeFlows(int path, double reach, std::vector<int>& delivered);
  void updateRates();
  void regroup(int path);
  void addTurn(int path);
  void setEnd(int link);
  void dropOutdated(int link);
  bool counts(const Turn& turn) const { return path_state_[turn.path].turn == turn.turn; }
  double servedNow(const Group& group) const {
    return group.served + group.rate * (now_ - group.updated_at);
  }
  double servedNow(const PathState& state) const {
    return state.group < 0 ? state.served
                           : state.served + (servedNow(groups_[state.group]) - state.joined);
  }
  double waitingOf(int path) const;
  void replacePaths(const std::vector<std::pair<int, const PairPath*>>& paths);
  void touchPath(int path);
  void touchGroup(int link);

  const std::vector<double>& planned_capacity_;
  const PathTable& planned_paths_;
  const PathTable* paths_;              // now: those, or..
  PathTable moved_paths_;               // ..after reroute() these, with their latencies
  std::vector<double> path_latency_s_;  // (below 0: that of the flow)
  std::vector<double> capacity_;        // current; 0 while held
  std::vector<double> held_capacity_;   // after the hold
  bool held_ = false;
  MaxMinRates rates_;
  double now_ = 0;
  int64_t events_ = 0;
  std::vector<PathState> path_state_;
  std::vector<Group> groups_;       // per link
  std::vector<double> path_bytes_;  // of started flows, on current paths
  std::vector<double> link_bytes_;  // over replaced paths
  std::vector<int> touched_paths_, touched_groups_, used_paths_, ended_groups_;
  std::vector<EventQueue::Event> arrived_;
  EventQueue deliveries_;  // of flows in flight
  MinTree group_ends_;     // per link with a group: first completion
};

// The links and routes of a program for the flow level.
struct ProgramFlowNetwork {
  explicit ProgramFlowNetwork(const FlowProgram& program);
  ProgramFlowNetwork(const ProgramFlowNetwork&) = delete;
  ProgramFlowNetwork& operator=(const ProgramFlowNetwork&) = delete;

  std::vector<double> capacity;  // bytes per second per link
  PathTable paths;               // in order of the program's routes
  FlowNetwork network{capacity, paths};
};

}  // namespace topoopt
