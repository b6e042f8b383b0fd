// Runs a task graph on a network of either level: dependencies, devices, delays and link changes.

#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <tuple>
#include <vector>

#include "sim/core/dependents.h"
#include "sim/core/event_queue.h"
#include "sim/core/flow_program.h"
#include "sim/core/network.h"
#include "sim/core/task_graph.h"

namespace topoopt {

struct Outcome {
  double makespan_s = 0;              // end of the last task; if stopped: the reached time
  std::vector<double> start_s;        // per task; infinity if it never became ready
  std::vector<double> finish_s;       // per task; infinity if it has not finished
  std::vector<double> device_busy_s;  // per device
  std::vector<double> link_bytes;     // per link
  int64_t events = 0;
  int finished = 0;  // tasks; each repetition counts, and times are of the last one
  bool complete = false;
  std::vector<std::vector<double>> round_ends_s;  // per loop of the graph
};

struct RunOptions {
  double until_s = std::numeric_limits<double>::infinity();
  std::span<const LinkChange> changes = {};
  // Devices run ready tasks of equal priority in the order of becoming ready.
  bool first_come = false;
  // Number of rounds that each loop must finish.
  int rounds = 1;
  // Called at `control_at_s` (0: before all tasks), then at every returned time (infinity: never);
  // it may change the network.
  double control_at_s = std::numeric_limits<double>::infinity();
  std::function<double(double now_s)> control = nullptr;
  // Called periodically with the time and the finished tasks; false stops the run.
  std::function<bool(double now_s, int finished)> keep_going = nullptr;
};

// Runs one graph after another and reuses its buffers.
class TaskRunner {
 public:
  explicit TaskRunner(int devices) : devices_(devices) {}

  // Simulates `graph` from time 0 on `network`, which is reset first. The graph must be valid
  // (FlowSimulator::validate). Throws std::invalid_argument for a dependency cycle, or flows that
  // wait forever on a failed link. Also for a loop with outside dependencies, with tasks not before
  // its last, or without duration. The result is valid until the next call.
  const Outcome& run(const TaskGraph& graph, Network& network, const RunOptions& options = {});

 private:
  struct Ready {
    int priority;
    double since;  // 0 unless first_come
    int task;
    bool operator>(const Ready& other) const {
      return std::tie(priority, since, task) > std::tie(other.priority, other.since, other.task);
    }
  };
  struct Device {
    bool busy = false;
    double since_s = 0;  // start of being busy
    std::vector<Ready> ready;
  };

  // State of a loop: rounds, start of this round, finished tasks.
  struct Turning {
    Loop loop;
    double begin_s = 0;
    int finished = 0;
  };

  void prepare(const TaskGraph& graph);
  void prepareLoops(const TaskGraph& graph);
  void beginRound(int loop);
  void finishInLoop(int loop, int task);
  void start(int task);
  void finish(int task);
  void free(int device);
  void takeTimers();
  double pace() const;
  double nextWorkedOff() const;
  void work();
  void takeWorkedOff();
  void takeChanges();
  void dispatchDevices();
  [[noreturn]] void failOnUnfinished(const TaskGraph& graph) const;

  Outcome outcome_;
  double now_ = 0;
  Network* network_ = nullptr;
  bool first_come_ = false;
  const std::vector<Task>* tasks_ = nullptr;
  Dependents dependents_;
  std::vector<Turning> loops_;
  std::vector<int> loop_of_;  // per task, -1: none; empty without loops
  int rounds_ = 1;
  int64_t left_ = 0;  // unfinished tasks outside of loops, and rounds
  std::vector<Device> devices_;
  std::vector<int> idle_devices_;  // to be dispatched
  std::vector<int> delivered_;
  std::vector<LinkChange> changes_;  // by time
  size_t next_change_ = 0;
  EventQueue timers_;
  // Shared computing: all busy devices advance equally, to `worked_s_` at `worked_at_s_`. A task
  // ends when that reaches its value in `shared_`.
  double at_once_ = 0;
  int busy_ = 0;
  double worked_s_ = 0;
  double worked_at_s_ = 0;
  EventQueue shared_;
  std::vector<EventQueue::Event> expired_;
};

}  // namespace topoopt
