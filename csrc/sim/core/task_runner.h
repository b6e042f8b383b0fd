// Runs a task graph on a network of either level: dependencies, devices, delays, changes of links.

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
  double makespan_s = 0;         // end of the last task; of a run cut short: the time reached
  std::vector<double> start_s;   // per task: when it was free to start; infinity if it never was
  std::vector<double> finish_s;  // per task; infinity if it has not finished
  std::vector<double> device_busy_s;  // per device
  std::vector<double> link_bytes;     // per link
  int64_t events = 0;
  int finished = 0;  // tasks; what is repeated counts each time, and has the times of the last
  bool complete = false;
  std::vector<std::vector<double>> round_ends_s;  // per loop of the graph
};

struct RunOptions {
  double until_s = std::numeric_limits<double>::infinity();
  std::span<const LinkChange> changes = {};
  // Whether devices take, of ready tasks with equal priority, the one that was ready first.
  bool first_come = false;
  // Loops go on until each of them has been through so many rounds.
  int rounds = 1;
  // Called at `control_at_s` (0: before anything starts), and then at every time that it returns
  // (infinity: no more); it may change the network.
  double control_at_s = std::numeric_limits<double>::infinity();
  std::function<double(double now_s)> control = nullptr;
  // Called now and then with the time reached and the tasks finished; false ends the run.
  std::function<bool(double now_s, int finished)> keep_going = nullptr;
};

// An instance runs one graph after another and keeps its buffers.
class TaskRunner {
 public:
  explicit TaskRunner(int devices) : devices_(devices) {}

  // Simulates `graph` from time 0 on `network`, which is reset first. The graph must be valid
  // (FlowSimulator::validate). Throws std::invalid_argument for a cycle in the dependencies, for
  // flows that wait for ever on a link that has failed, and for a loop that depends on other tasks,
  // whose last task does not wait for all of it, or that takes no time. Valid until the next call.
  const Outcome& run(const TaskGraph& graph, Network& network, const RunOptions& options = {});

 private:
  struct Ready {
    int priority;
    double since;  // 0 unless first come is first served
    int task;
    bool operator>(const Ready& other) const {
      return std::tie(priority, since, task) > std::tie(other.priority, other.since, other.task);
    }
  };
  struct Device {
    bool busy = false;
    double since_s = 0;  // when it became busy
    std::vector<Ready> ready;
  };

  // Where a loop stands: its rounds so far, when this one began, its tasks that have finished.
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
  int64_t left_ = 0;  // tasks outside of loops, and rounds, that are still to be finished
  std::vector<Device> devices_;
  std::vector<int> idle_devices_;  // with new ready tasks or newly idle, to be dispatched
  std::vector<int> delivered_;
  std::vector<LinkChange> changes_;  // by time
  size_t next_change_ = 0;
  EventQueue timers_;
  // Where devices share what computes: all that are busy have come equally far, `worked_s_` at time
  // `worked_at_s_`, and a task ends when that reaches what it stands in `shared_` with.
  double at_once_ = 0;
  int busy_ = 0;
  double worked_s_ = 0;
  double worked_at_s_ = 0;
  EventQueue shared_;
  std::vector<EventQueue::Event> expired_;
};

}  // namespace topoopt
