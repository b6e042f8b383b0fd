#include "sim/core/reconfigurer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>

namespace topoopt {

namespace {

constexpr double kPollInterval = 1e-6;  // between checks for an empty network

}  // namespace

Reconfigurer::Reconfigurer(ReconfigurableNetwork& network, const FlowProgram& program,
                           double window_s, double delay_s, Choose choose)
    : network_(network),
      links_(static_cast<int>(program.links().size())),
      window_s_(window_s),
      delay_s_(delay_s),
      choose_(std::move(choose)) {
  std::vector<Pair> ends;
  for (int route = 0; route < program.routeCount(); ++route) {
    const auto links = program.route(route);
    ends.emplace_back(program.links()[links.front()].source, program.links()[links.back()].target);
  }
  pairs_ = ends;
  std::sort(pairs_.begin(), pairs_.end());
  pairs_.erase(std::unique(pairs_.begin(), pairs_.end()), pairs_.end());
  for (const Pair& pair : ends) {
    const auto at = std::lower_bound(pairs_.begin(), pairs_.end(), pair);
    pair_of_route_.push_back(static_cast<int>(at - pairs_.begin()));
  }
}

double Reconfigurer::operator()(double now_s) {
  switch (state_) {
    case State::kBegin:
      return begin(now_s);
    case State::kMeasure:
      return measure(now_s);
    case State::kDrain:
      return takeAway(now_s);
    case State::kMove:
      break;
  }
  return resume(now_s);
}

// Returns whether circuits must move.
bool Reconfigurer::choose(double now_s, const Demand& demand) {
  std::optional<CircuitMove> move = choose_(now_s, demand);
  if (!move) return false;
  for (const auto& [link, bits_per_s] : move->rates) {
    if (link >= 0 && link < links_ && std::isfinite(bits_per_s) && bits_per_s >= 0) continue;
    throw std::invalid_argument("rates: " + std::to_string(bits_per_s) + " for link " +
                                std::to_string(link) + " of " + std::to_string(links_));
  }
  move_ = std::move(*move);
  return true;
}

double Reconfigurer::begin(double now_s) {
  choose(now_s, {});
  for (const auto& [link, bits_per_s] : move_.rates) network_.changeLink(link, bits_per_s, now_s);
  return resume(now_s);
}

Reconfigurer::Demand Reconfigurer::waiting() const {
  const std::vector<double> of_route = network_.waitingBytes();
  std::vector<double> of_pair(pairs_.size(), 0.0);
  for (size_t route = 0; route < pair_of_route_.size(); ++route) {
    of_pair[pair_of_route_[route]] += std::max(0.0, of_route[route]);
  }
  Demand demand;
  for (size_t pair = 0; pair < pairs_.size(); ++pair) {
    if (of_pair[pair] > 0) demand.emplace_back(pairs_[pair], of_pair[pair]);
  }
  return demand;
}

double Reconfigurer::measure(double now_s) {
  const Demand demand = waiting();
  if (demand.empty() || !choose(now_s, demand)) return now_s + window_s_;
  network_.hold(true);
  state_ = State::kDrain;
  return takeAway(now_s);
}

double Reconfigurer::takeAway(double now_s) {
  if (!network_.drained()) return now_s + kPollInterval;
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
  std::map<Pair, const PairPath*> paths;
  for (const PairPath& path : move_.paths) paths[{path.source, path.target}] = &path;
  std::vector<std::pair<int, const PairPath*>> routes;
  for (size_t route = 0; route < pair_of_route_.size(); ++route) {
    const auto path = paths.find(pairs_[pair_of_route_[route]]);
    if (path != paths.end()) routes.emplace_back(static_cast<int>(route), path->second);
  }
  if (!routes.empty()) network_.reroute(routes);
  network_.hold(false);
  state_ = State::kMeasure;
  return now_s + window_s_;
}

}  // namespace topoopt
