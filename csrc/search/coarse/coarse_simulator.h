// A simulator of one training iteration, coarser than the flow level, for searches that price
// thousands of strategies a second.
//
// There is a task per operator and pass, per edge between servers, and per AllReduce, in one order.
// Operators go forward, those of equal depth together, then backward in reverse, each followed by
// its transfers and AllReduce. A server computes in this order. A transfer starts when all senders
// are ready. It occupies every link of its routes for its bytes, one transfer after another, and
// arrives when its last link has finished. AllReduces use the links' remaining time; on up to 32
// servers, shared links slow them down (link_sharing.h).
//
// The flow level (sim/iteration/iteration.h) instead shares links among all active flows, starts
// every pair of servers independently, and runs a shard as soon as possible. Buckets here belong to
// a placement, not to each of its groups. Readers with equal needs share a transfer, and the last
// one returns the gradient.
//
// With micro-batches, every server follows 1F1B (one forward, one backward;
// PlacementCosts::inFlight). Where servers share processors (Job::servers_at_once), all
// computations are slowed down as if all servers were computing.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "search/coarse/busy_times.h"
#include "search/coarse/lane_loops.h"
#include "search/coarse/link_loads.h"
#include "search/coarse/link_sharing.h"
#include "search/coarse/step_order.h"
#include "search/strategies/metropolis.h"
#include "sim/iteration/job.h"

namespace topoopt {

// Prices strategies of one job on one network. A strategy that differs from the last one in a few
// operators is simulated from its first changed task to the first equal state. The result is the
// same bit for bit.
class CoarseSimulator {
 public:
  static constexpr ChainRules kChain{
      .draws_limit = true, .return_after = 20000, .returns_from_equal = false};

  // Throws std::invalid_argument if job and network disagree on the number of servers.
  CoarseSimulator(std::shared_ptr<const Job> job, const RoutedNetwork& network);

  PlacementCosts& costs() { return costs_; }

  // Simulates one whole iteration with operator i on placement `strategy[i]`; returns seconds. The
  // strategy becomes the base of proposals.
  double run(const std::vector<int>& strategy);

  // The same for a strategy that differs from the base in the operators `changed`; simulates only
  // the changes. Returns some time above `limit_s` once that is exceeded, without simulation if a
  // server or link is busy for longer.
  double propose(const std::vector<int>& strategy, const std::vector<int>& changed, double limit_s);

  // Simulates later proposals completely, to measure the savings.
  void simulateFully() { fully_ = true; }

  // Makes the last proposal, which must be within its `limit_s`, the base.
  void accept();

  // Number of simulated proposals. Over all runs and proposals: simulated tasks, and those of full
  // simulations.
  int64_t simulations() const { return simulations_; }
  int64_t stepsSimulated() const { return steps_simulated_; }
  int64_t fullSteps() const { return full_steps_; }

 private:
  struct Edge {
    int producer, consumer;
    double size_bytes, gradient_bytes;
    int out_slot, in_slot;  // among the producer's and the consumer's edges
    int tensor;
  };
  // Gradients of a placement in an unfinished bucket; `ready_s` is the arrival of the last one.
  // Buckets start in order, after the one at `before_s`.
  struct Bucket {
    int placement;
    double size_bytes = 0;
    double ready_s = 0;
    double before_s = 0;
    bool is_first = true;
  };
  // The state between two steps. `end_s` is the end of the last AllReduce.
  struct State {
    std::vector<double> server_s;    // when a server's accelerators are free
    std::vector<double> transfer_s;  // when a link has no transfers
    std::vector<double> link_s;      // when a link is idle
    ReducingLinks reducing;          // with sharing_ only
    std::vector<Bucket> buckets;     // in order of their first use
    double end_s = 0;
  };
  // Two copies of state that proposals change: `which_` has the base's side of every step.
  struct Side {
    std::vector<double> finish_s;  // step x servers
    std::vector<double> arrive_s;  // step x slots: arrival at the receivers
    std::vector<State> saved;      // before every kSpacing-th step
  };
  int stepCount() const { return static_cast<int>(which_.size()); }
  int at(int op, int batch, bool forward) const {
    return order_->at[2 * (batch * operators_ + op) + (forward ? 0 : 1)];
  }
  int side(int step) const { return which_[step] ^ (step >= first_step_ && step < end_step_); }
  double* finish(int step) {
    return sides_[side(step)].finish_s.data() + static_cast<size_t>(step) * server_lanes_;
  }
  double* finish(int op, int batch, bool forward) { return finish(at(op, batch, forward)); }
  double& arrival(int edge, int batch, bool forward);

  void addEdges();
  void sortByDepth();
  void shareReads(int tensor);
  double simulate(int first_step, double limit_s);
  void choose(const std::vector<int>& strategy, const std::vector<int>& changed);
  void priceEdge(int edge);
  void addBusy(int edge, const std::vector<std::shared_ptr<const EdgeLoads>>& loads,
               const std::vector<int>& carrier, double times);
  bool tooBusy(double limit_s);
  void sumUp();
  int firstStep(const std::vector<int>& changed) const;
  void run(const OperatorStep& step);
  void compute(double* done, int id, double seconds);
  void takeReady(int edge, int batch, bool forward);
  void send(int edge, int batch, bool forward);
  void allReduce(int op);
  void fill(int id, double size_bytes, double ready_s);
  void start(int id, double size_bytes, double gradients_s, double before_s);
  double transfer(const LinkLoads& loads, double size_bytes, double ready_s);
  void reduce(const LinkLoads& loads, double size_bytes, double ready_s);
  double lowerBound() const;

  std::shared_ptr<const Job> job_;
  PlacementCosts costs_;
  LinkLoadTable loads_;
  BusyTimes busy_;
  std::optional<LinkSharing> sharing_;  // on few servers
  const LaneLoops& loops_;
  int operators_;
  size_t server_lanes_, link_lanes_;  // padded numbers
  double stretch_;                    // of computations
  size_t slots_ = 1;                  // maximum edges into or out of an operator
  std::vector<Edge> edges_;
  std::vector<std::vector<int>> in_edges_, out_edges_;  // per operator
  std::vector<int> by_depth_;                           // operators
  std::vector<std::vector<int>> readers_;               // per tensor: edges, the carrier first
  std::vector<int> base_, strategy_;
  std::vector<std::shared_ptr<const EdgeLoads>> base_loads_, edge_loads_;
  std::vector<int> base_carrier_, carrier_;  // per edge: the edge that transfers its tensor
  std::shared_ptr<const StepOrder> base_order_, order_;
  std::vector<int> changed_, changed_edges_;
  std::vector<int64_t> edge_proposal_;  // per edge: last proposal with a change
  int64_t proposals_ = 0;
  int64_t accepted_ = 0;
  std::vector<char> which_;  // per step
  Side sides_[2];
  State state_;
  std::vector<double> ready_s_;
  int first_step_ = 0;  // of the proposal
  int end_step_ = 0;
  double base_s_ = 0;
  double proposed_s_ = 0;
  bool fully_ = false;
  int64_t simulations_ = 0;
  int64_t steps_simulated_ = 0;
  int64_t full_steps_ = 0;
};

}  // namespace topoopt
