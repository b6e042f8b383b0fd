#include "topology/rerouting.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace topoopt {

namespace {

constexpr double kFirstAlpha = 10;
constexpr double kAlphaGrowth = 1.1;
// Alpha grows once the bound of a sweep is within this many times ln(edges) / alpha of the maximum.
// Growing earlier makes sweeps stall on the edges of the maximum; growing later wastes sweeps.
constexpr double kSettled = 0.5;
constexpr double kEqual = 0.01;  // relative difference of lengths considered equal
constexpr int kHalvings = 20;
constexpr double kLeastFraction = 1e-3;  // of a commodity; a path with less is removed
constexpr double kFloor = 1e-7;          // relative length of idle edges, to keep paths short

void checkPositive(const char* where, size_t index, const char* what, double value) {
  if (value > 0 && std::isfinite(value)) return;
  throw std::invalid_argument(std::string(where) + "[" + std::to_string(index) + "]." + what +
                              ": " + std::to_string(value) + " is not above 0 and finite");
}

void checkServers(const char* where, size_t index, int source, int target, int servers) {
  for (int server : {source, target}) {
    if (server >= 0 && server < servers) continue;
    throw std::invalid_argument(std::string(where) + "[" + std::to_string(index) + "]: server " +
                                std::to_string(server) + " is not in 0.." +
                                std::to_string(servers - 1));
  }
  if (source == target) {
    throw std::invalid_argument(std::string(where) + "[" + std::to_string(index) +
                                "]: from server " + std::to_string(source) + " to itself");
  }
}

}  // namespace

Rerouting::Rerouting(int servers, std::vector<Edge> edges, std::vector<Commodity> commodities)
    : servers_(servers),
      edges_(std::move(edges)),
      commodities_(std::move(commodities)),
      edges_of_(std::max(servers, 0)),
      commodities_of_(std::max(servers, 0)),
      flows_(commodities_.size()),
      load_(edges_.size(), 0.0),
      length_(edges_.size(), 0.0),
      mark_(edges_.size(), 0) {
  for (size_t e = 0; e < edges_.size(); ++e) {
    checkServers("edges", e, edges_[e].source, edges_[e].target, servers);
    checkPositive("edges", e, "capacity", edges_[e].capacity);
    edges_of_[edges_[e].source].push_back(static_cast<int>(e));
  }
  for (size_t c = 0; c < commodities_.size(); ++c) {
    checkServers("commodities", c, commodities_[c].source, commodities_[c].target, servers);
    checkPositive("commodities", c, "bytes", commodities_[c].bytes);
    commodities_of_[commodities_[c].source].push_back(c);
  }
  start();
}

double Rerouting::length(int edge) const {
  const double u = load_[edge] / edges_[edge].capacity;
  return (std::exp(alpha_ * (u / scale_ - 1)) + kFloor) / edges_[edge].capacity;
}

double Rerouting::utilisation() const {
  double most = 0;
  for (size_t e = 0; e < edges_.size(); ++e) most = std::max(most, load_[e] / edges_[e].capacity);
  return most;
}

// Dijkstra's algorithm over `length_`.
void Rerouting::shortestPaths(int source, Tree& tree) const {
  using Entry = std::pair<double, int>;
  tree.distance.assign(servers_, std::numeric_limits<double>::infinity());
  tree.edge_into.assign(servers_, -1);
  tree.distance[source] = 0;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  queue.push({0.0, source});
  while (!queue.empty()) {
    const auto [distance, server] = queue.top();
    queue.pop();
    if (distance > tree.distance[server]) continue;
    for (int e : edges_of_[server]) {
      const int next = edges_[e].target;
      const double through = distance + length_[e];
      if (through < tree.distance[next]) {
        tree.distance[next] = through;
        tree.edge_into[next] = e;
        queue.push({through, next});
      }
    }
  }
}

std::vector<int> Rerouting::pathOf(const Tree& tree, int target) const {
  std::vector<int> path;
  for (int e = tree.edge_into[target]; e >= 0; e = tree.edge_into[edges_[e].source]) {
    path.push_back(e);
  }
  std::reverse(path.begin(), path.end());
  return path;
}

// Routes all bytes over the path with the least sum of 1 / capacity.
void Rerouting::start() {
  for (size_t e = 0; e < edges_.size(); ++e) length_[e] = 1 / edges_[e].capacity;
  Tree tree;
  for (int source = 0; source < servers_; ++source) {
    if (commodities_of_[source].empty()) continue;
    shortestPaths(source, tree);
    for (size_t c : commodities_of_[source]) {
      const auto [from, to, bytes] = commodities_[c];
      if (tree.edge_into[to] < 0) {
        throw std::invalid_argument("commodities[" + std::to_string(c) + "]: no path from server " +
                                    std::to_string(from) + " to " + std::to_string(to));
      }
      flows_[c].push_back({pathOf(tree, to), bytes});
      for (int e : flows_[c][0].edges) load_[e] += bytes;
    }
  }
}

void Rerouting::run(double gap, int sweeps) {
  if (commodities_.empty()) return;
  const double smoothing = std::log(static_cast<double>(edges_.size()));
  alpha_ = kFirstAlpha;
  for (int i = 0; i < sweeps; ++i) {
    sweep();
    const double most = utilisation();
    if (most <= (1 + gap) * bound_) return;
    if (sweep_bound_ >= most * (1 - kSettled * smoothing / alpha_)) alpha_ *= kAlphaGrowth;
  }
}

void Rerouting::sweep() {
  ++sweeps_;
  scale_ = utilisation();
  double capacity_length = 0;
  for (size_t e = 0; e < edges_.size(); ++e) {
    length_[e] = length(static_cast<int>(e));
    capacity_length += edges_[e].capacity * length_[e];
  }
  // The bound requires all trees to use equal lengths; shifts use current ones.
  const std::vector<double> at_start = length_;
  std::vector<double> now = length_;
  double bytes_distance = 0;
  Tree tree;
  for (int source = 0; source < servers_; ++source) {
    if (commodities_of_[source].empty()) continue;
    length_ = at_start;
    shortestPaths(source, tree);
    length_ = now;
    for (size_t c : commodities_of_[source]) {
      bytes_distance += commodities_[c].bytes * tree.distance[commodities_[c].target];
    }
    // A second tree with current lengths, because the first one is outdated by now.
    shortestPaths(source, tree);
    for (size_t c : commodities_of_[source]) spread(c, tree);
    now = length_;
  }
  sweep_bound_ = bytes_distance / capacity_length;
  bound_ = std::max(bound_, sweep_bound_);
}

double Rerouting::pathLength(const PathFlow& path) const {
  double sum = 0;
  for (int e : path.edges) sum += length_[e];
  return sum;
}

// Moves bytes of a commodity to its current shortest path; `tree` may have a new one.
void Rerouting::spread(size_t commodity, const Tree& tree) {
  auto& own = flows_[commodity];
  const int target = commodities_[commodity].target;
  double best_length = std::numeric_limits<double>::infinity();
  size_t best = 0;
  for (size_t i = 0; i < own.size(); ++i) {
    const double length = pathLength(own[i]);
    if (length < best_length) {
      best_length = length;
      best = i;
    }
  }
  if (tree.distance[target] < (1 - kEqual) * best_length) {
    best = own.size();
    own.push_back({pathOf(tree, target), 0.0});
  }
  if (own.size() == 1) return;
  std::swap(own.front(), own[best]);
  for (size_t i = 1; i < own.size(); ++i) shift(own[i], own.front());
  std::erase_if(own, [](const PathFlow& path) { return path.bytes == 0; });
}

// Lengths of both paths, without common edges, after moving `moved` bytes to the second.
std::pair<double, double> Rerouting::lengthsAfter(double moved) const {
  const auto term = [&](int e, double bytes) {
    const double u = (load_[e] + bytes) / edges_[e].capacity;
    return (std::exp(alpha_ * (u / scale_ - 1)) + kFloor) / edges_[e].capacity;
  };
  double from = 0, to = 0;
  for (int e : only_from_) from += term(e, -moved);
  for (int e : only_to_) to += term(e, moved);
  return {from, to};
}

// Returns the bytes, up to `most`, that make both paths about equally long.
double Rerouting::bytesToMove(double most) const {
  auto [from, to] = lengthsAfter(0);
  if (from <= (1 + kEqual) * to) return 0;
  std::tie(from, to) = lengthsAfter(most);
  if (from >= to) return most;
  double low = 0, high = most;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    std::tie(from, to) = lengthsAfter(middle);
    if (std::abs(from - to) <= kEqual * to) return middle;
    (from > to ? low : high) = middle;
  }
  return low;
}

// Moves bytes until both paths are equally long or `from` is empty.
void Rerouting::shift(PathFlow& from, PathFlow& to) {
  only_from_.clear();
  only_to_.clear();
  for (int e : to.edges) mark_[e] = 1;
  for (int e : from.edges) {
    if (!mark_[e]) only_from_.push_back(e);
    mark_[e] = 0;
  }
  for (int e : to.edges) {
    if (mark_[e]) only_to_.push_back(e);
    mark_[e] = 0;
  }
  const double moved_most = bytesToMove(from.bytes);
  if (moved_most == 0) return;
  const double total = from.bytes + to.bytes;
  const bool all = from.bytes - moved_most < kLeastFraction * total;
  const double moved = all ? from.bytes : moved_most;
  from.bytes = all ? 0 : from.bytes - moved;
  to.bytes += moved;
  for (int e : only_from_) load_[e] -= moved;
  for (int e : only_to_) load_[e] += moved;
  for (int e : only_from_) length_[e] = length(e);
  for (int e : only_to_) length_[e] = length(e);
}

void Rerouting::shorten() {
  const double most = utilisation();
  for (size_t c = 0; c < commodities_.size(); ++c) {
    auto& own = flows_[c];
    std::sort(own.begin(), own.end(), [](const auto& a, const auto& b) {
      return std::pair(a.edges.size(), a.edges) < std::pair(b.edges.size(), b.edges);
    });
    for (size_t i = own.size(); i-- > 0;) {
      while (own[i].bytes > 0) {
        PathFlow from = own[i];
        if (!shortenOnce(from, commodities_[c].source, commodities_[c].target, most, own)) break;
        own[i].bytes = from.bytes;
      }
    }
    std::erase_if(own, [](const PathFlow& path) { return path.bytes == 0; });
  }
}

// Moves bytes of `from` to a path of the fewest edges with room; returns false if it is not
// shorter. Breadth-first search; edges of the old path count its bytes as room.
bool Rerouting::shortenOnce(PathFlow& from, int source, int target, double most,
                            std::vector<PathFlow>& own) {
  const double least = std::max(kLeastFraction * from.bytes, 1e-9 * most);
  const auto room = [&](int e) { return most * edges_[e].capacity - load_[e]; };
  for (int e : from.edges) load_[e] -= from.bytes;
  std::vector<int> edge_into(servers_, -1);
  std::vector<int> frontier{source};
  bool found = false;
  for (size_t hops = 1; hops < from.edges.size() && !frontier.empty() && !found; ++hops) {
    std::vector<int> reached;
    for (int server : frontier) {
      for (int e : edges_of_[server]) {
        const int next = edges_[e].target;
        if (next == source || edge_into[next] >= 0 || room(e) < least) continue;
        edge_into[next] = e;
        reached.push_back(next);
        found = found || next == target;
      }
    }
    frontier = std::move(reached);
  }
  double moved = 0;
  if (found) {
    PathFlow shorter{{}, 0};
    moved = from.bytes;
    for (int e = edge_into[target]; e >= 0; e = edge_into[edges_[e].source]) {
      shorter.edges.push_back(e);
      moved = std::min(moved, room(e));
    }
    std::reverse(shorter.edges.begin(), shorter.edges.end());
    from.bytes = from.bytes - moved < kLeastFraction * from.bytes ? 0 : from.bytes - moved;
    for (int e : shorter.edges) load_[e] += moved;
    const auto same = std::find_if(own.begin(), own.end(),
                                   [&](const auto& p) { return p.edges == shorter.edges; });
    if (same != own.end()) {
      same->bytes += moved;
    } else {
      shorter.bytes = moved;
      own.push_back(std::move(shorter));
    }
  }
  for (int e : from.edges) load_[e] += from.bytes;
  return found;
}

}  // namespace topoopt
