// Iterations of a job as a flow program for both levels: each flow has explicit paths.

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

// Links (program indices) from a source to a target, and their fraction of the bytes.
struct WeightedPath {
  std::vector<int> links;
  double weight = 1.0;
};

// Iterations added to a program: the last task of each, and each task's cargo (index into
// IterationTasks::cargoes(); -1: no flow of an iteration).
struct AddedIterations {
  std::vector<int> ends;
  std::vector<int> cargo_of_task;
};

// The order of a ring AllReduce's 2 (k - 1) steps among k servers.
enum class RingSteps {
  kTogether,  // one flow per hop with the bytes of all steps
  kChained,   // a server forwards in a step the data of its previous one
  kBarrier,   // a step begins when all servers have ended the previous one
};

// The tasks of one iteration without folding; flows have no paths yet.
//
// With kTogether, a ring AllReduce ends after its slowest hop and the latencies of 2 (k - 1)
// consecutive hops (ringLatency). Each flow includes its own latency. The same holds for each phase
// of an AllReduce along rows and columns, which starts when all lines of its part have ended the
// previous phase. A pass of a schedule is one flow per message, with any RingSteps.
class IterationTasks {
 public:
  struct TaskFlow {
    int source, target;
    double size_bytes;
    int cargo;
    int is_direct = 0;  // over the link from source to target, whatever their routes
  };
  // Cargo of an AllReduce, with the servers of its ring, row or column in order; else empty. Each
  // flow carries `steps` steps, or its share of those of a schedule over links.
  struct RingCargo {
    Cargo cargo;
    std::vector<int> ring;
    bool is_line = false;
    int steps = 0;

    bool operator==(const RingCargo&) const = default;
  };

  // Groups use the rings, the grid or the schedules of `network`, which must have paths for grid
  // groups, and for all groups if it has schedules. Throws
  // std::invalid_argument as IterationSteps and RoutedNetwork::group.
  IterationTasks(std::shared_ptr<const Job> job, RoutedNetwork& network,
                 const std::vector<Placement>& strategy,
                 RingSteps ring_steps = RingSteps::kTogether);

  const std::vector<TaskFlow>& flows() const { return flows_; }
  const std::vector<RingCargo>& cargoes() const { return cargoes_; }
  // The computation of a program's task, by its priority.
  Computed computed(int priority) const {
    return computedAt(priority, operators_, job_->micro_batches);
  }

  // Adds `iterations` to `program` in sequence, with the job's server s on host `hosts[s]` (empty:
  // s). Flow f of iteration i uses all of `paths[path_of_flow[i * flows + f]]` with their
  // fractions. Throws std::invalid_argument without iterations, for wrong numbers of `path_of_flow`
  // or `hosts`, or a path with wrong ends.
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

  // A compute task or delay as in Task; a flow, by its index in flows_; or the end of a ring's
  // steps, a delay after the hops flows_[first_hop, first_hop + hops). `both`: scatter and gather.
  // `schedule_steps`: a pass of a schedule ends instead, after so many steps.
  struct Step {
    TaskKind kind;
    int resource;
    int priority;
    double seconds;
    int first_hop = 0;
    int hops = 0;
    bool both = false;
    int schedule_steps = 0;
  };
  // Data that goes around servers in cyclic order once (`both`: twice).
  struct Round {
    const std::vector<int>& order;
    bool both;
    double hop_bytes;  // of all steps
    int cargo;
    int steps() const { return (both ? 2 : 1) * (static_cast<int>(order.size()) - 1); }
  };
  using Arrived = std::map<int, int>;  // per server: the step that it depends on

  int add(Step step);
  int atOnce(const Round& round, int after);
  void onRings(const std::vector<plan::Ring>& rings, double size_bytes, int after,
               const Cargo& cargo);
  int messages(const LinkPass& pass, bool is_direct, double size_bytes, int after,
               const Cargo& cargo);
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
  RoutedNetwork* network_ = nullptr;  // while steps are created
  std::vector<Step> steps_;
  std::vector<TaskFlow> flows_;
  std::vector<RingCargo> cargoes_;
  std::vector<std::pair<int, int>> dependencies_;  // of steps
};

}  // namespace topoopt
