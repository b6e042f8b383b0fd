#include "sim/packet/reconfigurer.h"

#include <map>

namespace topoopt::packet {

namespace {

constexpr double kPollInterval = 1e-6;  // between two looks at whether the network is empty

}  // namespace

Reconfigurer::Reconfigurer(PacketNetwork& network, int routes, double window_s, double delay_s,
                           Choose choose)
    : network_(network),
      routes_(routes),
      window_s_(window_s),
      delay_s_(delay_s),
      choose_(std::move(choose)) {}

double Reconfigurer::operator()(double now_s) {
  switch (state_) {
    case State::kMeasure:
      return measure(now_s);
    case State::kDrain:
      return takeAway(now_s);
    case State::kMove:
      break;
  }
  return resume(now_s);
}

double Reconfigurer::measure(double now_s) {
  const std::vector<double> waiting = network_.waitingBytes();
  std::map<std::pair<int, int>, double> of_pair;
  for (int route = 0; route < routes_; ++route) {
    if (waiting[route] == 0) continue;
    of_pair[{network_.sourceOf(route), network_.targetOf(route)}] += waiting[route];
  }
  std::vector<Demand> demand;
  for (const auto& [pair, bytes] : of_pair) demand.push_back({pair.first, pair.second, bytes});
  std::optional<Move> move;
  if (!demand.empty()) move = choose_(now_s, demand);
  if (!move) return now_s + window_s_;
  move_ = std::move(*move);
  network_.hold(true);
  state_ = State::kDrain;
  return takeAway(now_s);
}

double Reconfigurer::takeAway(double now_s) {
  if (network_.dataInside() > 0) return now_s + kPollInterval;
  for (const auto& [link, bits_per_s] : move_.rates) {
    if (bits_per_s == 0) network_.changeLink(link, 0, now_s);
  }
  state_ = State::kMove;
  return now_s + delay_s_;
}

double Reconfigurer::resume(double now_s) {
  for (const auto& [link, bits_per_s] : move_.rates) {
    if (bits_per_s > 0) network_.changeLink(link, bits_per_s, now_s);
  }
  const std::map<std::pair<int, int>, std::vector<int>> paths(move_.paths.begin(),
                                                              move_.paths.end());
  std::vector<std::pair<int, std::vector<int>>> routes;
  for (int route = 0; route < routes_; ++route) {
    const auto path = paths.find({network_.sourceOf(route), network_.targetOf(route)});
    if (path != paths.end()) routes.emplace_back(route, path->second);
  }
  if (!routes.empty()) network_.rerouteNow(routes);
  network_.hold(false);
  state_ = State::kMeasure;
  return now_s + window_s_;
}

}  // namespace topoopt::packet
