#include "route_control/annealing.h"

#include <algorithm>
#include <cmath>

#include "common/random.h"

namespace topoopt {

namespace {

constexpr double kWorst = 0.05;  // initially, a step this much worse has a probability of 1 / e

}  // namespace

// The energy is the sum of squared congestions, dominated by the most congested links; a step
// changes a few terms.
void annealPaths(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows, int64_t steps,
                 uint64_t seed, PathChoice& choice) {
  if (flows.empty()) return;
  Random random(seed);
  SwitchedPathLoads loads(table);
  for (size_t flow = 0; flow < flows.size(); ++flow) loads.add(choice[flow], flows[flow].demand);
  const auto energyOf = [&](int path) {
    double sum = 0;
    for (int i = table.first_link[path]; i < table.first_link[path + 1]; ++i) {
      const double congestion = loads.congestion(table.links[i]);
      sum += congestion * congestion;
    }
    return sum;
  };
  PathChoice best = choice;
  double least = loads.most();
  double heat = kWorst * least * least;
  for (int64_t step = 0; step < steps; ++step, heat *= 1 - 4.0 / static_cast<double>(steps)) {
    const int flow = random.below(static_cast<int>(flows.size()));
    const auto& [pair, demand] = flows[flow];
    const int from = choice[flow];
    const int to = table.first_path[pair] + random.below(table.pathCount(pair));
    if (to == from) continue;
    const double before = energyOf(from) + energyOf(to);
    loads.add(from, -demand);
    loads.add(to, demand);
    const double change = energyOf(from) + energyOf(to) - before;
    if (change > 0 && random.unit() >= std::exp(-change / heat)) {
      loads.add(to, -demand);
      loads.add(from, demand);
      continue;
    }
    choice[flow] = to;
    if (step % 64 != 0) continue;  // scanning all links costs more than a step
    if (const double most = loads.most(); most < least) {
      least = most;
      best = choice;
    }
  }
  if (loads.most() > least) choice = best;
}

}  // namespace topoopt
