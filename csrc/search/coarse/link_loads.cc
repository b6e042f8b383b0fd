#include "search/coarse/link_loads.h"

#include <algorithm>

namespace topoopt {

namespace {

constexpr size_t kRememberedBytes = 16 << 20;  // of recent edges, and the same for older ones
constexpr size_t kListedShare = 8;             // use a list if fewer than 1 in 8 links are loaded

}  // namespace

LinkLoadTable::LinkLoadTable(RoutedNetwork network, PlacementCosts& costs)
    : network_(std::move(network)), costs_(costs) {
  for (double bytes_per_s : network_.capacity()) s_per_byte_.push_back(1 / bytes_per_s);
  sum_.assign(s_per_byte_.size(), 0);
  ring_.assign(s_per_byte_.size(), 0);
}

void LinkLoadTable::add(int path, double bytes) {
  if (bytes == 0) return;
  for (const LinkUse& use : network_.paths().uses(path)) {
    double& sum = sum_[use.link];
    if (sum == 0) loaded_.push_back(use.link);
    sum += bytes * use.load * s_per_byte_[use.link];
  }
}

// A link of several rings counts for the last one.
void LinkLoadTable::addRing(int path, double bytes, int ring) {
  add(path, bytes);
  for (const LinkUse& use : network_.paths().uses(path)) ring_[use.link] = ring;
}

// Moves the sums of `add` into a result.
LinkLoads LinkLoadTable::collect(double latency_s) {
  LinkLoads loads;
  loads.latency_s = latency_s;
  const bool listed = loaded_.size() * kListedShare < sum_.size();
  if (listed) {
    loads.link = loaded_;
    loads.s_per_byte.reserve(loaded_.size());
    for (int link : loaded_) loads.s_per_byte.push_back(sum_[link]);
  } else {
    loads.s_per_byte.reserve(padded(sum_.size()));
    loads.s_per_byte = sum_;
    loads.s_per_byte.resize(padded(sum_.size()), 0);
  }
  for (int link : loaded_) sum_[link] = 0;
  loaded_.clear();
  return loads;
}

std::shared_ptr<const EdgeLoads> LinkLoadTable::edge(int op, int producer, int consumer) {
  const int need = costs_.need(op, consumer);
  const uint64_t key = static_cast<uint64_t>(producer) << 32 | static_cast<uint64_t>(need);
  const auto known = recent_edges_.find(key);
  if (known != recent_edges_.end()) return known->second;
  const auto older = older_edges_.find(key);
  const Placements& placements = costs_.placements();
  std::shared_ptr<const EdgeLoads> edge =
      older != older_edges_.end()
          ? older->second
          : makeEdge(transfersBetween(placements[producer], placements.needNumber(need)));
  remember(key, edge);
  return edge;
}

// When full, evicts edges that were not used since the previous eviction.
void LinkLoadTable::remember(uint64_t key, const std::shared_ptr<const EdgeLoads>& edge) {
  if (recent_bytes_ > kRememberedBytes) {
    older_edges_ = std::move(recent_edges_);
    recent_edges_.clear();
    recent_bytes_ = 0;
  }
  recent_bytes_ += edge == nullptr ? sizeof key : edge->bytes();
  recent_edges_.emplace(key, edge);
}

std::shared_ptr<const EdgeLoads> LinkLoadTable::makeEdge(const std::vector<Transfer>& transfers) {
  bool moves = false;
  for (const Transfer& transfer : transfers) moves |= transfer.source != transfer.target;
  if (!moves) return nullptr;
  auto edge = std::make_shared<EdgeLoads>();
  const size_t servers = padded(network_.servers());
  edge->sends.assign(servers, 0);
  edge->receives.assign(servers, 0);
  double forward_s = 0;
  double backward_s = 0;
  double largest = 0;
  for (const Transfer& transfer : transfers) {
    if (transfer.source == transfer.target) continue;
    edge->sends[transfer.source] = kInfinity;
    edge->receives[transfer.target] = kInfinity;
    const FlowPath& path = network_.pair(transfer.source, transfer.target);
    add(path.path, transfer.fraction);
    largest = std::max(largest, transfer.fraction);
    forward_s = std::max(forward_s, path.latency_s);
  }
  edge->forward = collect(forward_s);
  for (const Transfer& transfer : transfers) {
    if (transfer.source == transfer.target) continue;
    const FlowPath& path = network_.pair(transfer.target, transfer.source);
    add(path.path, transfer.fraction);
    backward_s = std::max(backward_s, path.latency_s);
  }
  edge->backward = collect(backward_s);
  edge->forward.largest_flow = edge->backward.largest_flow = largest;
  return edge;
}

const LinkLoads& LinkLoadTable::reductions(int id, double size_bytes) {
  Reductions& of_id = reductionsOf(id);
  const auto above = std::ranges::lower_bound(of_id.crossings, size_bytes);
  const size_t place = above - of_id.crossings.begin();
  std::unique_ptr<LinkLoads>& loads = of_id.loads[place];
  if (loads == nullptr) {
    const double low = place > 0 ? of_id.crossings[place - 1] : 0;
    const double high = place < of_id.crossings.size() ? of_id.crossings[place] : 2 * low + 2;
    loads = std::make_unique<LinkLoads>(makeReductions(id, (low + high) / 2));
  }
  return *loads;
}

LinkLoadTable::Reductions& LinkLoadTable::reductionsOf(int id) {
  if (id >= static_cast<int>(reductions_.size())) reductions_.resize(costs_.placements().size());
  Reductions& of_id = reductions_[id];
  if (of_id.is_known) return of_id;
  of_id.is_known = true;
  for (const std::vector<int>& servers : costs_.placements().groups(id)) {
    if (servers.size() < 2) continue;
    const std::vector<double> bytes = network_.group(servers).crossings();
    of_id.crossings.insert(of_id.crossings.end(), bytes.begin(), bytes.end());
  }
  std::ranges::sort(of_id.crossings);
  of_id.loads.resize(of_id.crossings.size() + 1);
  return of_id;
}

LinkLoads LinkLoadTable::makeReductions(int id, double size_bytes) {
  double latency_s = 0;
  double latency_s_per_byte = 0;
  for (const std::vector<int>& servers : costs_.placements().groups(id)) {
    if (servers.size() < 2) continue;
    const AllReduceFlows& chosen = network_.allReduce(servers, size_bytes);
    for (const TorusPart& part : chosen.parts) {
      addRing(part.first.path, 2 * part.first.share, part.first.path);
      addRing(part.second.path, part.second.share, part.first.path);
    }
    for (const FlowPath& flow : chosen.flows) {
      const int first = chosen.flows.front().path;
      addRing(flow.path, flow.share, chosen.schedule != nullptr ? first : flow.path);
    }
    latency_s = std::max(latency_s, chosen.latency_s + chosen.wait_s);
    latency_s_per_byte = std::max(latency_s_per_byte, chosen.wait_s_per_byte);
  }
  LinkLoads loads = collect(latency_s);
  loads.latency_s_per_byte = latency_s_per_byte;
  nameRings(loads);
  return loads;
}

void LinkLoadTable::nameRings(LinkLoads& loads) {
  std::unordered_map<int, double> busiest;
  for (size_t i = 0; i < loads.s_per_byte.size(); ++i) {
    const size_t link = loads.link.empty() ? i : loads.link[i];
    loads.ring.push_back(link < ring_.size() ? ring_[link] : 0);  // 0 for padding
    double& most = busiest[loads.ring[i]];
    most = std::max(most, loads.s_per_byte[i]);
  }
  for (size_t i = 0; i < loads.s_per_byte.size(); ++i) {
    const double most = busiest[loads.ring[i]];
    loads.part.push_back(most > 0 ? loads.s_per_byte[i] / most : 0);
  }
}

const std::vector<double>& LinkLoadTable::members(int id) {
  if (id >= static_cast<int>(members_.size())) members_.resize(costs_.placements().size());
  std::vector<double>& mask = members_[id];
  if (mask.empty()) {
    mask.assign(padded(network_.servers()), 0);
    for (int server : costs_.placements()[id].servers) mask[server] = kInfinity;
  }
  return mask;
}

}  // namespace topoopt
