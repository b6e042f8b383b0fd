// Iterations of a job as a flow program, which every level runs: each flow has explicit paths.

#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "sim/core/flow_program.h"
#include "sim/iteration/iteration_steps.h"
#include "sim/iteration/job.h"
#include "sim/iteration/routed_network.h"

namespace topoopt {

// Links (indices of a program) from a source to a target, and the fraction of the bytes on them.
struct WeightedPath {
  std::vector<int> links;
  double weight = 1.0;
};

// Iterations that were added to a program: the task that ends each, and per task of the program
// what it carries (an index into IterationTasks::cargoes(); -1: it is no flow of an iteration).
struct AddedIterations {
  std::vector<int> ends;
  std::vector<int> cargo_of_task;
};

// How the 2 (k - 1) steps of a ring AllReduce among k servers follow each other.
enum class RingSteps {
  kTogether,  // one flow per hop, with the bytes of all steps
  kChained,   // a server sends in a step what it has received in the one before
  kBarrier,   // no server begins a step before all have ended the one before
};

// The tasks of one iteration with no server folded, whose flows have no paths yet.
//
// With its steps together, a ring AllReduce has ended when the slowest hop has, and when the
// latencies of the 2 (k - 1) consecutive hops are over (ringLatency), of which each flow has paid
// its own; likewise each phase of an AllReduce along rows and columns, before which all lines of
// its part have ended the one before.
class IterationTasks {
 public:
  struct TaskFlow {
    int source, target;
    double size_bytes;
    int cargo;
  };
  // Of an AllReduce with the servers of its ring in order, or of its row or column, else without.
  // Each flow carries `steps` steps.
  struct RingCargo {
    Cargo cargo;
    std::vector<int> ring;
    bool is_line = false;
    int steps = 0;

    bool operator==(const RingCargo&) const = default;
  };

  // Groups use the rings or the grid of `network`, which has paths for those with a grid. Throws
  // std::invalid_argument as IterationSteps, and as RoutedNetwork::group.
  IterationTasks(std::shared_ptr<const Job> job, RoutedNetwork& network,
                 const std::vector<Placement>& strategy,
                 RingSteps ring_steps = RingSteps::kTogether);

  const std::vector<TaskFlow>& flows() const { return flows_; }
  const std::vector<RingCargo>& cargoes() const { return cargoes_; }
  // Of a compute task of the program, by its priority.
  Computed computed(int priority) const {
    return computedAt(priority, operators_, job_->micro_batches);
  }

  // Adds `iterations` of them to `program`, one after another, the job's server s as the program's
  // host `hosts[s]` (without any: s). Flow f of iteration i takes all of
  // `paths[path_of_flow[i * flows + f]]`, which hold fractions of its bytes. Throws
  // std::invalid_argument for no iterations, another number of `path_of_flow` or `hosts`, or a path
  // that does not lead from source to target.
  AddedIterations addTo(FlowProgram& program, const std::vector<std::vector<WeightedPath>>& paths,
                        std::span<const int> path_of_flow, int iterations,
                        std::span<const int> hosts = {}) const;

 private:
  // Sink of IterationSteps.
  friend class IterationSteps<IterationTasks>;
  int compute(int server, double seconds, int priority);
  int delay(double seconds);
  int transfer(int source, int target, double size_bytes, const Cargo& cargo);
  void allReduce(const std::vector<int>& servers, double size_bytes, int after, const Cargo& cargo);
  void dependency(int before, int after) { dependencies_.emplace_back(before, after); }

  // A compute task or a delay as Task has it; a flow, by its index in flows_; or the end of all
  // steps of a ring, a delay behind the hops flows_[first_hop, first_hop + hops). `both`: it
  // scatters and gathers.
  struct Step {
    TaskKind kind;
    int resource;
    int priority;
    double seconds;
    int first_hop = 0;
    int hops = 0;
    bool both = false;
  };
  // Data that goes around once (`both`: twice) on servers in a cyclic order.
  struct Round {
    const std::vector<int>& order;
    bool both;
    double hop_bytes;  // of all steps
    int cargo;
    int steps() const { return (both ? 2 : 1) * (static_cast<int>(order.size()) - 1); }
  };
  using Arrived = std::map<int, int>;  // per server: the step that it waits for

  int add(Step step);
  int atOnce(const Round& round, int after);
  void inSteps(const Round& round, const Arrived& before, Arrived& after);
  int barrier(const Arrived& arrived);
  void torusPart(const plan::Grid& grid, size_t number, double size_bytes, int after,
                 const Cargo& cargo);
  int addFlow(int source, int target, double size_bytes, int cargo);
  int addCargo(RingCargo cargo);
  class Emitter;

  std::shared_ptr<const Job> job_;
  RingSteps ring_steps_;
  int operators_;
  RoutedNetwork* network_ = nullptr;  // while the steps are made
  std::vector<Step> steps_;
  std::vector<TaskFlow> flows_;
  std::vector<RingCargo> cargoes_;
  std::vector<std::pair<int, int>> dependencies_;  // of steps
};

}  // namespace topoopt
