// The network at flow level: flows as fluid, links shared max-min fairly.

#pragma once

#include <cstdint>
#include <vector>

#include "sim/event_queue.h"
#include "sim/flow_program.h"
#include "sim/max_min_rates.h"
#include "sim/min_tree.h"
#include "sim/network.h"
#include "sim/path_table.h"

namespace topoopt {

// A flow is delivered its path's latency after its last byte was sent. The flows of one path
// progress together, so an event costs a heap operation and a re-solve of the rates that it can
// reach, not a visit to every flow.
class FlowNetwork : public Network {
 public:
  // `capacity` (bytes per second per link) and `paths` must outlive the network; paths may be
  // added before reset(). A flow's `resource` is a path.
  FlowNetwork(const std::vector<double>& capacity, const PathTable& paths);

  void reset() override;
  void start(int flow, const Task& task, double now_s) override;
  double advance(double until_s, std::vector<int>& delivered) override;
  void changeLink(int link, double bits_per_s, double now_s) override;
  std::vector<double> linkBytes() const override;
  int64_t events() const override { return events_; }

  // Bytes per second of each flow on `path` since the last event; 0 without flows.
  double rate(int path) const { return path_state_[path].rate; }

 private:
  struct Pending {  // a flow in progress: sent when its path has served `target` bytes
    double target;
    double latency_s;
    int flow;
    bool operator>(const Pending& other) const {
      return target != other.target ? target > other.target : flow > other.flow;
    }
  };
  struct PathState {
    double served = 0;  // bytes that each flow present since `served` was 0 has sent
    double updated_at = 0;
    double rate = 0;
    bool touched = false;
    std::vector<Pending> flows;
  };

  void completeFlows(int path, double horizon, std::vector<int>& delivered);
  void updateRates();
  void advancePath(PathState& state);
  void touch(int path);

  const std::vector<double>& planned_capacity_;
  const PathTable& paths_;
  std::vector<double> capacity_;  // now
  MaxMinRates rates_;
  double now_ = 0;
  int64_t events_ = 0;
  std::vector<PathState> path_state_;
  std::vector<double> path_bytes_;  // of flows that have started
  std::vector<int> touched_paths_, used_paths_, ended_paths_;
  EventQueue deliveries_;  // per flow that is sent and on its way
  MinTree path_ends_;      // per path with flows: when the first of them has sent its last byte
};

// The links and routes of a program as the flow level takes them.
struct ProgramFlowNetwork {
  explicit ProgramFlowNetwork(const FlowProgram& program);
  ProgramFlowNetwork(const ProgramFlowNetwork&) = delete;
  ProgramFlowNetwork& operator=(const ProgramFlowNetwork&) = delete;

  std::vector<double> capacity;  // bytes per second per link
  PathTable paths;               // in the order of the program's routes
  FlowNetwork network{capacity, paths};
};

}  // namespace topoopt
