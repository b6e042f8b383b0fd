#include "topology/shortest_path_loads.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace topoopt {

namespace {

constexpr double kAlike = 1e-12;  // of a length

bool isBad(double value) {
  return !(value >= 0 && value < std::numeric_limits<double>::infinity());
}

std::invalid_argument noPath(int source, int target) {
  return std::invalid_argument("pairs: node " + std::to_string(source) + " has no path to node " +
                               std::to_string(target));
}

// Groups edges by one end: those of node v are list[begin[v]]..list[begin[v + 1]].
void group(int nodes, const std::vector<RatedEdge>& edges, int RatedEdge::* end,
           std::vector<int>* begin, std::vector<int>* list) {
  begin->assign(nodes + 1, 0);
  for (const RatedEdge& edge : edges) ++(*begin)[edge.*end + 1];
  for (int v = 0; v < nodes; ++v) (*begin)[v + 1] += (*begin)[v];
  std::vector<int> next(begin->begin(), begin->end() - 1);
  list->resize(edges.size());
  for (size_t e = 0; e < edges.size(); ++e) (*list)[next[edges[e].*end]++] = static_cast<int>(e);
}

}  // namespace

// One search from a target, and the flows down its levels.
class ShortestPathLoads::Search {
 public:
  Search(const ShortestPathLoads& graph, const std::vector<double>& sent,
         const std::vector<double>& lengths)
      : graph_(graph),
        sent_(sent),
        lengths_(lengths),
        hops_(graph.nodes_, -1),
        carried_(graph.nodes_),
        length_(graph.nodes_) {}

  void add(int target, double weight, PathLoads* result) {
    findHops(target, -1);
    for (int v = 0; v < graph_.nodes_; ++v) {
      if (sent_[v] == 0) continue;
      if (hops_[v] < 0) {
        throw std::invalid_argument("sent: node " + std::to_string(v) + " has no path to node " +
                                    std::to_string(target));
      }
      result->farthest = std::max(result->farthest, hops_[v]);
    }
    findLengths();
    spread(weight, result);
  }

  // Adds one pair; returns its hops, -1 without a path. `sent` is not used.
  int addPair(const PairBytes& pair, PathLoads* result) {
    findHops(pair.target, pair.source);
    if (hops_[pair.source] <= 0) return hops_[pair.source];
    for (const int v : order_) carried_[v] = 0;
    carried_[pair.source] = pair.bytes;
    for (size_t next = order_.size() - 1; next > 0; --next) pass(order_[next], result);
    return hops_[pair.source];
  }

  void aim(int target) { findHops(target, -1); }

  // Routes a byte from `source` to the search's target; returns false without a path.
  bool share(int source, const std::vector<double>& latency_s, PairShares* result) {
    if (hops_[source] < 0) return false;
    shares_.clear();
    reached_.assign(1, source);
    carried_[source] = 1;
    length_[source] = 0;  // of the longest-latency path to the node
    for (size_t next = 0; next < reached_.size() && hops_[reached_[next]] > 0; ++next) {
      const int v = reached_[next];
      forward(v, [&](int e, double part) {
        const int to = graph_.edges_[e].to;
        if (carried_[to] == 0) {
          reached_.push_back(to);
          length_[to] = 0;
        }
        carried_[to] += part;
        length_[to] = std::max(length_[to], length_[v] + latency_s[e]);
        shares_.emplace_back(e, part);
      });
    }
    std::ranges::sort(shares_);
    for (const auto& [e, part] : shares_) {
      result->edge.push_back(e);
      result->load.push_back(part);
    }
    result->begin.push_back(static_cast<int64_t>(result->edge.size()));
    result->latency_s.push_back(length_[order_.front()]);
    for (const int v : reached_) carried_[v] = length_[v] = 0;
    return true;
  }

 private:
  // Finds hops from all nodes, or from those up to the distance of `last`.
  void findHops(int target, int last) {
    for (const int v : order_) hops_[v] = -1;
    order_.clear();
    hops_[target] = 0;
    order_.push_back(target);
    for (size_t next = 0; next < order_.size(); ++next) {
      const int v = order_[next];
      if (last >= 0 && hops_[last] >= 0 && hops_[v] >= hops_[last]) break;
      for (int i = graph_.in_begin_[v]; i < graph_.in_begin_[v + 1]; ++i) {
        const int u = graph_.edges_[graph_.in_[i]].from;
        if (hops_[u] < 0) {
          hops_[u] = hops_[v] + 1;
          order_.push_back(u);
        }
      }
    }
  }

  // Finds the shortest length among fewest-hop paths from every node found.
  void findLengths() {
    length_[order_.front()] = 0;
    for (size_t next = 1; next < order_.size(); ++next) {
      const int v = order_[next];
      double least = std::numeric_limits<double>::infinity();
      for (int i = graph_.out_begin_[v]; i < graph_.out_begin_[v + 1]; ++i) {
        const int e = graph_.out_[i];
        if (nearer(e)) least = std::min(least, over(e));
      }
      length_[v] = least;
    }
  }

  void spread(double weight, PathLoads* result) {
    for (const int v : order_) carried_[v] = sent_[v] * weight;
    for (size_t next = order_.size() - 1; next > 0; --next) {  // the target keeps its arrivals
      const int v = order_[next];
      result->length += sent_[v] * weight * length_[v];
      pass(v, result);
    }
  }

  // Passes node v's flow to its next nodes, and adds it to the sums.
  void pass(int v, PathLoads* result) {
    if (carried_[v] == 0) return;
    forward(v, [&](int e, double part) {
      result->load[e] += part;
      carried_[graph_.edges_[e].to] += part;
    });
  }

  // Calls onPart(edge, part) for each part of node v's flow.
  template <typename OnPart>
  void forward(int v, OnPart onPart) {
    const double most = length_[v] * (1 + kAlike);
    const auto leads_on = [&](int e) { return nearer(e) && (lengths_.empty() || over(e) <= most); };
    double rates = 0;
    for (int i = graph_.out_begin_[v]; i < graph_.out_begin_[v + 1]; ++i) {
      if (leads_on(graph_.out_[i])) rates += graph_.edges_[graph_.out_[i]].rate;
    }
    for (int i = graph_.out_begin_[v]; i < graph_.out_begin_[v + 1]; ++i) {
      const int e = graph_.out_[i];
      if (!leads_on(e)) continue;
      onPart(e, carried_[v] * graph_.edges_[e].rate / rates);
    }
  }

  bool nearer(int e) const {
    return hops_[graph_.edges_[e].to] == hops_[graph_.edges_[e].from] - 1;
  }

  // The shortest length of a path that begins with the edge.
  double over(int e) const {
    return (lengths_.empty() ? 1.0 : lengths_[e]) + length_[graph_.edges_[e].to];
  }

  const ShortestPathLoads& graph_;
  const std::vector<double>& sent_;
  const std::vector<double>& lengths_;
  std::vector<int> hops_, order_, reached_;
  std::vector<std::pair<int, double>> shares_;
  std::vector<double> carried_, length_;
};

ShortestPathLoads::ShortestPathLoads(int nodes, std::vector<RatedEdge> edges)
    : nodes_(nodes), edges_(std::move(edges)) {
  if (nodes < 1) {
    throw std::invalid_argument("nodes: " + std::to_string(nodes) + " is not at least 1");
  }
  for (size_t e = 0; e < edges_.size(); ++e) {
    const std::string where = "edges[" + std::to_string(e) + "]: ";
    const RatedEdge& edge = edges_[e];
    for (const int node : {edge.from, edge.to}) {
      if (node < 0 || node >= nodes) {
        throw std::invalid_argument(where + "node " + std::to_string(node) + " is not in 0.." +
                                    std::to_string(nodes - 1));
      }
    }
    if (edge.from == edge.to) {
      throw std::invalid_argument(where + "joins node " + std::to_string(edge.to) + " to itself");
    }
    if (!(edge.rate > 0 && edge.rate < std::numeric_limits<double>::infinity())) {
      throw std::invalid_argument(where + "rate " + std::to_string(edge.rate) +
                                  " is not a finite number above 0");
    }
  }
  group(nodes, edges_, &RatedEdge::from, &out_begin_, &out_);
  group(nodes, edges_, &RatedEdge::to, &in_begin_, &in_);
}

void ShortestPathLoads::checkNode(int node, const char* field) const {
  if (node < 0 || node >= nodes_) {
    throw std::invalid_argument(std::string(field) + ": node " + std::to_string(node) +
                                " is not in 0.." + std::to_string(nodes_ - 1));
  }
}

void ShortestPathLoads::check(const std::vector<int>& targets, const std::vector<double>& weights,
                              const std::vector<double>& sent,
                              const std::vector<double>& lengths) const {
  if (weights.size() != targets.size()) {
    throw std::invalid_argument("weights: " + std::to_string(weights.size()) + " for " +
                                std::to_string(targets.size()) + " targets");
  }
  if (sent.size() != static_cast<size_t>(nodes_)) {
    throw std::invalid_argument("sent: " + std::to_string(sent.size()) + " for " +
                                std::to_string(nodes_) + " nodes");
  }
  if (!lengths.empty() && lengths.size() != edges_.size()) {
    throw std::invalid_argument("lengths: " + std::to_string(lengths.size()) + " for " +
                                std::to_string(edges_.size()) + " edges");
  }
  for (const int target : targets) checkNode(target, "targets");
  if (std::ranges::any_of(weights, isBad) || std::ranges::any_of(sent, isBad) ||
      std::ranges::any_of(lengths, isBad)) {
    throw std::invalid_argument("weights, sent, lengths: not all are finite numbers from 0 on");
  }
}

PathLoads ShortestPathLoads::loads(const std::vector<int>& targets,
                                   const std::vector<double>& weights,
                                   const std::vector<double>& sent,
                                   const std::vector<double>& lengths) const {
  check(targets, weights, sent, lengths);
  PathLoads result;
  result.load.assign(edges_.size(), 0.0);
  Search search(*this, sent, lengths);
  for (size_t i = 0; i < targets.size(); ++i) search.add(targets[i], weights[i], &result);
  return result;
}

std::pair<std::vector<double>, std::vector<int>> ShortestPathLoads::ofPairs(
    const std::vector<PairBytes>& pairs) const {
  PathLoads result;
  result.load.assign(edges_.size(), 0.0);
  std::vector<int> hops;
  const std::vector<double> none;
  Search search(*this, none, none);
  for (const PairBytes& pair : pairs) {
    checkNode(pair.source, "pairs");
    checkNode(pair.target, "pairs");
    if (isBad(pair.bytes)) throw std::invalid_argument("pairs: bytes are not finite, or below 0");
    hops.push_back(search.addPair(pair, &result));
    if (hops.back() < 0) throw noPath(pair.source, pair.target);
  }
  return {std::move(result.load), std::move(hops)};
}

PairShares ShortestPathLoads::ofEachPair(const std::vector<std::pair<int, int>>& pairs,
                                         const std::vector<double>& latency_s) const {
  if (latency_s.size() != edges_.size()) {
    throw std::invalid_argument("latency_s: " + std::to_string(latency_s.size()) + " for " +
                                std::to_string(edges_.size()) + " edges");
  }
  if (std::ranges::any_of(latency_s, isBad)) {
    throw std::invalid_argument("latency_s: not all are finite numbers from 0 on");
  }
  PairShares result;
  const std::vector<double> none;
  Search search(*this, none, none);
  int aim = -1;
  for (const auto& [source, target] : pairs) {
    checkNode(source, "pairs");
    checkNode(target, "pairs");
    if (target != aim) search.aim(target);
    aim = target;
    if (!search.share(source, latency_s, &result)) throw noPath(source, target);
  }
  return result;
}

}  // namespace topoopt
