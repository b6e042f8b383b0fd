// Circuits that move while flows wait for them, at both levels.

#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "sim/core/flow_program.h"
#include "sim/core/network.h"

namespace topoopt {

// Every window the bytes that wait are measured and new circuits chosen. If they differ, senders
// are held, what is in the network drains, then the circuits that go are taken away, and after the
// delay the new ones are there and all goes on. So nothing is lost to a move.
class Reconfigurer {
 public:
  using Pair = std::pair<int, int>;                     // source, target
  using Demand = std::vector<std::pair<Pair, double>>;  // bytes, in ascending order of pairs
  struct CircuitMove {
    std::vector<std::pair<int, double>> rates;  // link, bits per second; 0: no circuit any more
    std::vector<PairPath> paths;                // of the pairs whose flows take others from now on
  };
  using Choose = std::function<std::optional<CircuitMove>(double now_s, const Demand&)>;

  // The pairs are those of the routes of `program`, which may be gone afterwards.
  Reconfigurer(ReconfigurableNetwork& network, const FlowProgram& program, double window_s,
               double delay_s, Choose choose);

  // The function for RunOptions::control, first called at time 0. The first choice, without demand,
  // is of the circuits that are there to begin with. Throws std::invalid_argument for a link that
  // is unknown, a rate that makes no sense, and as reroute().
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
