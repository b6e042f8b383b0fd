#include "nccl/costs.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "nccl/collnet.h"

namespace topoopt::nccl {

namespace {

constexpr double kUnknownGbps = 10;  // default rate of cables
// Latency of a message between ranks over a cable, and of each relay, including the plugin, TCP and
// two processes; measured by benchmarks/nccl_net.py.
constexpr double kMessageS = 150e-6;
constexpr double kRelayS = 30e-6;
// Throughput of one rank's plugin thread: sent, received and relayed.
constexpr double kThreadGbps = 12;

double partOf(NcclCollective collective, double ranks) {
  switch (collective) {
    case NcclCollective::kAllReduce:
      return 2 * (ranks - 1) / ranks;
    case NcclCollective::kAllGather:
    case NcclCollective::kReduceScatter:
      return (ranks - 1) / ranks;
    default:
      return 1;  // a chain from or to the root
  }
}

GroupLayout layoutOver(const GroupConfig& group, std::vector<RatedLink> links) {
  GroupLayout layout(static_cast<int>(group.ranks.size()), group.rings, group.servers, group.hops);
  layout.setLinks(std::move(links));
  return layout;
}

}  // namespace

std::vector<int> treeParents(int count) {
  std::vector<int> parents{-1};
  for (int place = 1; place < count; ++place) {
    const int lowest = place & -place;
    const int beside = (place ^ lowest) | lowest << 1;
    parents.push_back(beside < count ? beside : place ^ lowest);
  }
  return parents;
}

std::vector<int> secondTreeParents(int count) {
  const std::vector<int> first = treeParents(count);
  const bool moved = count % 2 == 1;
  const auto to = [&](int place) { return moved ? (place + 1) % count : count - 1 - place; };
  std::vector<int> parents(first.size());
  for (int place = 0; place < count; ++place) {
    const int parent = first[static_cast<size_t>(place)];
    parents[static_cast<size_t>(to(place))] = parent < 0 ? -1 : to(parent);
  }
  return parents;
}

FabricCosts::CollNetModel::CollNetModel(const GroupConfig& group, std::vector<RatedLink> links)
    : layout(layoutOver(group, std::move(links))), estimate(layout, group.cost) {}

// As the engine's groups have them.
std::vector<RatedLink> FabricCosts::ratedLinks() const {
  const auto placeOf = [&](int rank) {
    return static_cast<int>(std::find(order_.begin(), order_.end(), rank) - order_.begin());
  };
  double slowest = std::numeric_limits<double>::infinity();
  for (const auto& [ends, gbps] : gbps_) slowest = std::min(slowest, gbps);
  std::vector<RatedLink> links;
  for (const auto& [ends, gbps] : gbps_) {
    links.push_back({placeOf(ends.first), placeOf(ends.second), gbps / slowest});
  }
  return links;
}

FabricCosts::FabricCosts(const Wiring& wiring) {
  for (int rank = 0; rank < wiring.ranks(); ++rank) {
    if (wiring.leaders[static_cast<size_t>(wiring.serverOf(rank))] == rank) order_.push_back(rank);
  }
  for (const Cable& cable : wiring.cables) {
    const double gbps = cable.gbps > 0 ? cable.gbps : kUnknownGbps;
    const int source = wiring.dialler(cable), target = wiring.listener(cable);
    gbps_[{source, target}] += gbps;
    if (cable.duplex) gbps_[{target, source}] += gbps;
  }
  for (const plan::Route& route : wiring.routes) {
    routes_[{route.servers.front(), route.servers.back()}].push_back(route);
  }
  collnet_ = std::make_shared<CollNetModel>(collNetGroup(wiring, order_, 0, 0), ratedLinks());
}

std::vector<plan::Route> FabricCosts::routesOf(const Traffic& traffic) const {
  const int source = order_[static_cast<size_t>(traffic.source)];
  const int target = order_[static_cast<size_t>(traffic.target)];
  const auto found = routes_.find({source, target});
  std::vector<plan::Route> routes =
      found == routes_.end() ? std::vector{plan::Route{{source, target}, 1.0}} : found->second;
  double all = 0;
  for (const plan::Route& route : routes) all += route.weight;
  for (plan::Route& route : routes) route.weight *= traffic.part / all;
  return routes;
}

double FabricCosts::cables(const std::vector<Traffic>& traffic) const {
  std::map<std::pair<int, int>, double> loads;
  for (const Traffic& one : traffic) {
    for (const auto& [servers, part] : routesOf(one)) {
      for (size_t i = 0; i + 1 < servers.size(); ++i) loads[{servers[i], servers[i + 1]}] += part;
    }
  }
  double most = 0;
  for (const auto& [link, part] : loads) {
    const auto found = gbps_.find(link);
    const double gbps = found == gbps_.end() ? kUnknownGbps : found->second;
    most = std::max(most, part / (gbps * kBytesPerGbps));
  }
  return most;
}

double FabricCosts::threads(const std::vector<Traffic>& traffic) const {
  std::map<int, double> loads;  // both directions
  for (const Traffic& one : traffic) {
    for (const auto& [servers, part] : routesOf(one)) {
      for (const int rank : servers) loads[rank] += 2 * part;
      loads[servers.front()] -= part;
      loads[servers.back()] -= part;
    }
  }
  double most = 0;
  for (const auto& [rank, part] : loads) {
    most = std::max(most, part / (kThreadGbps * kBytesPerGbps));
  }
  return most;
}

double FabricCosts::perByte(const std::vector<Traffic>& traffic) const {
  return std::max(cables(traffic), threads(traffic));
}

double FabricCosts::latency(int source, int target) const {
  const auto found =
      routes_.find({order_[static_cast<size_t>(source)], order_[static_cast<size_t>(target)]});
  size_t links = 1;
  if (found != routes_.end()) {
    for (const plan::Route& route : found->second) {
      links = std::max(links, route.servers.size() - 1);
    }
  }
  return kMessageS + static_cast<double>(links - 1) * kRelayS;
}

double FabricCosts::latencyAround() const {
  double all = 0;
  for (int place = 0; place < servers(); ++place) all += latency(place, (place + 1) % servers());
  return all;
}

std::vector<FabricCosts::Traffic> FabricCosts::around(double part) const {
  std::vector<Traffic> traffic;
  for (int place = 0; place < servers(); ++place) {
    traffic.push_back({place, (place + 1) % servers(), part});
  }
  return traffic;
}

Cost FabricCosts::ring(NcclCollective collective, size_t ranks) const {
  const double part = partOf(collective, static_cast<double>(ranks));
  return {latencyAround() * part, perByte(around(part))};
}

Cost FabricCosts::trees() const {
  std::vector<Traffic> traffic;
  double deepest = 0;
  for (const auto& parents : {treeParents(servers()), secondTreeParents(servers())}) {
    for (int place = 0; place < servers(); ++place) {
      double depth = 0;
      for (int at = place, up; (up = parents[static_cast<size_t>(at)]) >= 0; at = up) {
        depth += latency(at, up) + latency(up, at);
      }
      deepest = std::max(deepest, depth);
      const int up = parents[static_cast<size_t>(place)];
      if (up < 0) continue;
      traffic.push_back({place, up, 0.5});
      traffic.push_back({up, place, 0.5});
    }
  }
  return {deepest, perByte(traffic)};
}

// For each bit of `o`, lowest last, one message brings the block of the server `o` behind. So
// messages of distance d carry the blocks whose lowest bit is d.
Cost FabricCosts::pat() const {
  const int count = servers();
  std::vector<Traffic> traffic;
  double latency_s = 0;
  for (int distance = 1; distance < count; distance *= 2) {
    const int blocks = (count - 1 - distance) / (2 * distance) + 1;
    double slowest = 0;
    for (int place = 0; place < count; ++place) {
      const int target = (place + distance) % count;
      traffic.push_back({place, target, static_cast<double>(blocks) / count});
      slowest = std::max(slowest, latency(place, target));
    }
    latency_s += slowest;
  }
  return {latency_s, perByte(traffic)};
}

// NCCL's proxy starts and tests an operation, as it does a message. The plugin's thread also
// reduces.
double FabricCosts::collNetSeconds(NcclCollective collective, size_t bytes) const {
  Request request{.collective = Collective::kAllReduce, .bytes = bytes, .commutative = true};
  if (collective == NcclCollective::kAllGather) request.collective = Collective::kAllGather;
  if (collective == NcclCollective::kReduceScatter) request.collective = Collective::kReduceScatter;
  const CostEstimate& estimate = collnet_->estimate;
  const double engine_s = estimate.seconds(request, estimate.choose(request, std::nullopt));
  const auto all = static_cast<double>(bytes);
  const double moved = 2 * partOf(collective, servers()) * all;
  const double reduced = collective == NcclCollective::kAllGather ? 0 : all;
  const double thread_s =
      moved / (kThreadGbps * kBytesPerGbps) + reduced * CostModel{}.gamma_s_per_byte;
  return kMessageS + std::max(engine_s, thread_s);
}

double FabricCosts::ringGbps() const { return 1 / cables(around(1)) / kBytesPerGbps; }

}  // namespace topoopt::nccl
