#include "route_control/switched_paths.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace topoopt {

void SwitchedPaths::check() const {
  for (double rate : capacity) {
    if (!(rate > 0) || !std::isfinite(rate)) {
      throw std::invalid_argument("capacity: " + std::to_string(rate) + " is not above 0");
    }
  }
  const auto ascending = [](const std::vector<int>& first, size_t end) {
    return !first.empty() && first.front() == 0 && std::is_sorted(first.begin(), first.end()) &&
           first.back() == static_cast<int>(end);
  };
  if (!ascending(first_link, links.size()) || !ascending(first_path, first_link.size() - 1)) {
    throw std::invalid_argument("paths: not a table of paths and their links");
  }
  for (int link : links) {
    if (link < 0 || link >= static_cast<int>(capacity.size())) {
      throw std::invalid_argument("links: " + std::to_string(link) + " is not one of them");
    }
  }
}

void checkFlows(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows) {
  for (size_t i = 0; i < flows.size(); ++i) {
    const RoutedFlow& flow = flows[i];
    const std::string name = "flow " + std::to_string(i) + ": ";
    if (flow.pair < 0 || flow.pair >= table.pairs()) {
      throw std::invalid_argument(name + "pair " + std::to_string(flow.pair) + " is not one");
    }
    if (table.pathCount(flow.pair) == 0) throw std::invalid_argument(name + "no path is left");
    if (!(flow.demand > 0) || !std::isfinite(flow.demand)) {
      throw std::invalid_argument(name + "demand " + std::to_string(flow.demand) +
                                  " is not above 0");
    }
  }
}

double SwitchedPathLoads::most() const {
  double most = 0;
  for (size_t link = 0; link < load_.size(); ++link) {
    most = std::max(most, congestion(static_cast<int>(link)));
  }
  return most;
}

}  // namespace topoopt
