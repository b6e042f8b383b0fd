// Moves circuits while flows wait, at both levels.

#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "sim/core/flow_program.h"
#include "sim/core/network.h"

namespace topoopt {

// Every window, it measures waiting bytes and chooses circuits. If they differ, it holds the
// senders until the network has drained, removes the old circuits, and resumes with the new ones
// after the delay. So no data is lost.
class Reconfigurer {
 public:
  using Pair = std::pair<int, int>;                     // source, target
  using Demand = std::vector<std::pair<Pair, double>>;  // bytes, in ascending order of pairs
  struct CircuitMove {
    std::vector<std::pair<int, double>> rates;  // link, bits per second; 0: no circuit
    std::vector<PairPath> paths;                // new paths of pairs
  };
  using Choose = std::function<std::optional<CircuitMove>(double now_s, const Demand&)>;

  // The pairs are those of the routes of `program`, which need not outlive this object.
  Reconfigurer(ReconfigurableNetwork& network, const FlowProgram& program, double window_s,
               double delay_s, Choose choose);

  // The function for RunOptions::control, first called at time 0. The first choice, without demand,
  // sets the initial circuits. Throws std::invalid_argument for an unknown link or invalid rate,
  // and as reroute().
  double operator()(double now_s);

 private:
  enum class State { kBegin, kMeasure, kDrain, kMove };

  Demand waiting() const;
  bool choose(double now_s, const Demand& demand);
  double begin(double now_s);
  double measure(double now_s);
  double takeAway(double now_s);
  double resume(double now_s);

  ReconfigurableNetwork& network_;
  std::vector<Pair> pairs_;         // ascending
  std::vector<int> pair_of_route_;  // index into pairs_
  int links_;
  double window_s_, delay_s_;
  Choose choose_;
  State state_ = State::kBegin;
  CircuitMove move_;
};

}  // namespace topoopt
