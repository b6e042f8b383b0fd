// Circuits that move while flows wait for them.

#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "sim/packet/packet_network.h"

namespace topoopt::packet {

// Every window it has what waits measured and new circuits chosen. If they differ, senders are
// held, what is in the network drains, then the circuits that go are taken away, and after the
// delay the new ones are there and all goes on. So nothing is lost to a move.
class Reconfigurer {
 public:
  struct Demand {
    int source, target;
    double size_bytes;
  };
  struct Move {
    std::vector<std::pair<int, double>> rates;  // link, bits per second; 0: no circuit any more
    // For each pair (source, target) whose flows take other links from now on.
    std::vector<std::pair<std::pair<int, int>, std::vector<int>>> paths;
  };
  using Choose = std::function<std::optional<Move>(double now_s, const std::vector<Demand>&)>;

  Reconfigurer(PacketNetwork& network, int routes, double window_s, double delay_s, Choose choose);

  // What RunOptions::control is to call, first after the window.
  double operator()(double now_s);

 private:
  enum class State { kMeasure, kDrain, kMove };

  double measure(double now_s);
  double takeAway(double now_s);
  double resume(double now_s);

  PacketNetwork& network_;
  int routes_;
  double window_s_, delay_s_;
  Choose choose_;
  State state_ = State::kMeasure;
  Move move_;
};

}  // namespace topoopt::packet
