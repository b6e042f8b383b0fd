// Event-driven flow-level simulation of a task graph.

#pragma once

#include <cstdint>
#include <vector>

#include "sim/indexed_heap.h"
#include "sim/max_min_rates.h"
#include "sim/path_table.h"
#include "sim/task_graph.h"

namespace topoopt {

struct Outcome {
  double makespan_s = 0;
  std::vector<double> finish_s;       // per task
  std::vector<double> device_busy_s;  // per device
  std::vector<double> link_bytes;     // per link
  int64_t events = 0;
};

// An instance simulates one graph after another and keeps its buffers. Flows share links max-min
// fairly; the flows of one path progress together, so an event costs a heap operation and a
// re-solve of the rates that it can reach, not a visit to every flow. Events closer together than
// one part in 10^12 of the time count as simultaneous.
class FlowSimulator {
 public:
  // `capacity` (bytes per second per link) and `paths` must outlive the simulator. Throws
  // std::invalid_argument for a capacity that is not positive and finite.
  FlowSimulator(const std::vector<double>& capacity, const PathTable& paths, int devices);

  // Simulates `graph` from time 0. Throws std::invalid_argument for a cycle in the dependencies,
  // an unknown device, path or task, or an amount that is negative, NaN or infinite (flows: also
  // zero). The result is valid until the next call.
  const Outcome& run(const TaskGraph& graph);

 private:
  struct Timer {
    double time;
    int task;
    bool operator>(const Timer& other) const {
      return time != other.time ? time > other.time : task > other.task;
    }
  };
  struct Pending {  // a flow in progress: done when its path has served `target` bytes
    double target;
    int task;
    bool operator>(const Pending& other) const {
      return target != other.target ? target > other.target : task > other.task;
    }
  };
  struct PathState {
    double served = 0;  // bytes that each flow present since `served` was 0 has sent
    double updated_at = 0;
    double rate = 0;
    bool touched = false;
    std::vector<Pending> flows;
  };
  struct Ready {
    int priority;
    int task;
    bool operator>(const Ready& other) const {
      return priority != other.priority ? priority > other.priority : task > other.task;
    }
  };
  struct Device {
    bool busy = false;
    std::vector<Ready> ready;
  };

  void prepare(const TaskGraph& graph);
  void validate(const TaskGraph& graph) const;
  void start(int task);
  void startFlow(int task);
  void finish(int task);
  double nextEventTime() const;
  void takeTimers(double horizon);
  void takeFlows(double horizon);
  void completeFlows(int path, double horizon);
  void dispatchDevices();
  void updateRates();
  void advance(PathState& state);
  void touch(int path);
  void addLinkBytes();
  void failOnCycle(const TaskGraph& graph) const;

  const std::vector<double>& capacity_;
  const PathTable& paths_;
  MaxMinRates rates_;
  Outcome outcome_;
  double now_ = 0;
  int finished_ = 0;
  const std::vector<Task>* tasks_ = nullptr;
  std::vector<int> waiting_;           // per task: dependencies not done
  std::vector<int> dependents_begin_;  // per task, into dependents_
  std::vector<int> dependents_;
  std::vector<Device> devices_;
  std::vector<int> idle_devices_;  // with new ready tasks or newly idle, to be dispatched
  std::vector<PathState> path_state_;
  std::vector<double> path_bytes_;
  std::vector<int> touched_paths_, used_paths_, done_;
  std::vector<Timer> timers_;
  IndexedHeap path_ends_;  // per path with flows: when the first of them has sent its last byte
};

}  // namespace topoopt
