// Iterations of a job as a flow program, which every level runs: each flow has explicit paths.

#pragma once

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
// its own.
class IterationTasks {
 public:
  struct Flow {
    int source, target;
    double size_bytes;
    int cargo;
  };
  // Of an AllReduce with the servers of its ring in order, else without.
  struct RingCargo {
    Cargo cargo;
    std::vector<int> ring;
  };

  // Groups use the rings of `network`. Throws std::invalid_argument as IterationSteps.
  IterationTasks(std::shared_ptr<const Job> job, const RoutedNetwork& network,
                 const std::vector<Placement>& strategy,
                 RingSteps ring_steps = RingSteps::kTogether);

  const std::vector<Flow>& flows() const { return flows_; }
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

  // A compute task or a delay as Task has it; a flow, by its index in flows_; or the end of a ring
  // AllReduce, a delay behind the hops flows_[first_hop, first_hop + hops).
  struct Step {
    TaskKind kind;
    int resource;
    int priority;
    double seconds;
    int first_hop = 0;
    int hops = 0;
  };
  int add(Step step);
  void ringAtOnce(const plan::Ring& ring, double hop_bytes, int after, int cargo);
  void ringInSteps(const plan::Ring& ring, double hop_bytes, int after, int cargo);
  int addFlow(int source, int target, double size_bytes, int cargo);
  int addCargo(const Cargo& cargo, std::vector<int> ring);
  class Emitter;

  std::shared_ptr<const Job> job_;
  RingSteps ring_steps_;
  int operators_;
  const RoutedNetwork* network_ = nullptr;  // while the steps are made
  std::vector<Step> steps_;
  std::vector<Flow> flows_;
  std::vector<RingCargo> cargoes_;
  std::vector<std::pair<int, int>> dependencies_;  // of steps
};

}  // namespace topoopt
