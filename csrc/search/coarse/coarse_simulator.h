// One training iteration under a strategy, coarser than at flow level, for searches that price
// thousands of strategies a second.
//
// A task per operator and pass, one per edge whose ends are on different servers, one per
// AllReduce. Tasks are issued in one order: operators forward, those of equal depth in the graph
// side by side, then backward in reverse, each with the transfers of its results and its AllReduce
// behind it. A server computes in this order. A
// transfer starts when all senders have their part, and keeps every link of its routes busy for
// the bytes it carries there, one transfer after the other; it arrives everywhere when its last
// link is done. AllReduces take what transfers leave of a link; on up to 32 servers, they hold each
// other up where they share links (link_sharing.h). The flow level
// (sim/iteration/iteration.h) shares links between all flows at hand instead, lets every pair of
// servers start by itself, and has a shard compute as soon as it can. Buckets of gradients are
// those of a placement, and not of each of its groups. Readers that need the same of a tensor share
// a transfer, and the last of them to come back returns the gradient.
//
// With micro-batches, every server works in the order of 1F1B (one forward, one backward), as
// PlacementCosts::inFlight says. Where servers share processors (Job::servers_at_once), everything
// takes as long as if all of them computed at once.

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

// Prices strategies of one job on one network. A strategy that differs from the one before in few
// operators is simulated from the first task on that changes, and no further than the first state
// that is the same again; the result is the same number, bit for bit.
class CoarseSimulator {
 public:
  static constexpr ChainRules kChain{
      .draws_limit = true, .return_after = 20000, .returns_from_equal = false};

  // Throws std::invalid_argument if job and network disagree on the number of servers.
  CoarseSimulator(std::shared_ptr<const Job> job, const RoutedNetwork& network);

  PlacementCosts& costs() { return costs_; }

  // Seconds of one iteration with operator i on placement `strategy[i]`, all of it simulated. This
  // strategy is the base of proposals from now on.
  double run(const std::vector<int>& strategy);

  // The same for a strategy that differs from the base in the operators `changed`; only what that
  // changes is simulated. Ends early, with some time above `limit_s`, once it is above that;
  // nothing is simulated where a server or a link is busy for longer.
  double propose(const std::vector<int>& strategy, const std::vector<int>& changed, double limit_s);

  // From now on, proposals are simulated from start to end: what is saved otherwise can be
  // measured.
  void simulateFully() { fully_ = true; }

  // The strategy last proposed, at most its `limit_s` slow, is the base from now on.
  void accept();

  // Proposals that were simulated. Of all runs and proposals: tasks simulated, and those that a
  // full simulation of every one would have had.
  int64_t simulations() const { return simulations_; }
  int64_t stepsSimulated() const { return steps_simulated_; }
  int64_t stepsAsked() const { return steps_asked_; }

 private:
  struct Edge {
    int producer, consumer;
    double size_bytes, gradient_bytes;
    int out_slot, in_slot;  // among the producer's and the consumer's edges
    int tensor;
  };
  // Gradients of a placement that wait for the others of their bucket; `ready_s` is when those that
  // came so far were there, and no bucket starts before the one that started at `before_s`.
  struct Bucket {
    int placement;
    double size_bytes = 0;
    double ready_s = 0;
    double before_s = 0;
    bool is_first = true;
  };
  // What has to be known between two steps. `end_s` is when the last AllReduce so far is over.
  struct State {
    std::vector<double> server_s;    // the accelerators of a server are free
    std::vector<double> transfer_s;  // a link is free of transfers
    std::vector<double> link_s;      // a link is free of everything
    ReducingLinks reducing;          // where sharing_ is
    std::vector<Bucket> buckets;     // by the order in which they came first
    double end_s = 0;
  };
  // What proposals may change comes twice: `which_` says for every step which is the base's.
  struct Side {
    std::vector<double> finish_s;  // step x servers
    std::vector<double> arrive_s;  // step x slots: what it sends is with its receivers
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
  double stretch_;                    // of what servers compute
  size_t slots_ = 1;                  // most edges into or out of an operator
  std::vector<Edge> edges_;
  std::vector<std::vector<int>> in_edges_, out_edges_;  // per operator
  std::vector<int> by_depth_;                           // operators
  std::vector<std::vector<int>> readers_;  // per tensor: edges, the last to send back first
  std::vector<int> base_, strategy_;
  std::vector<std::shared_ptr<const EdgeLoads>> base_loads_, edge_loads_;
  std::vector<int> base_carrier_, carrier_;  // per edge: the one that moves the tensor for it
  std::shared_ptr<const StepOrder> base_order_, order_;
  std::vector<int> changed_, changed_edges_;
  std::vector<int64_t> edge_proposal_;  // per edge: the last proposal that changed it
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
  int64_t steps_asked_ = 0;
};

}  // namespace topoopt
