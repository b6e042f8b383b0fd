// What every edge of a network carries if servers send to each other over shortest paths.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace topoopt {

struct RatedEdge {
  int from;
  int to;
  double rate;  // what parallel paths are weighed by
};

struct PairBytes {
  int source;
  int target;
  double bytes;
};

struct PathLoads {
  std::vector<double> load;  // by edge
  double length = 0;         // of all that was sent, under the lengths given; hops without any
  int farthest = 0;          // hops from a node that sends to a target
};

// Row i: a byte of pair i puts load[u] bytes on edge[u], ascending, for u in begin[i]..begin[i +
// 1], and takes at most latency_s[i].
struct PairShares {
  std::vector<int64_t> begin{0};
  std::vector<int64_t> edge;
  std::vector<double> load;
  std::vector<double> latency_s;
};

// Sends over all paths of the fewest hops, target by target: the search runs from the target, and
// what is sent runs down its levels (the accumulation of Brandes' betweenness).
class ShortestPathLoads {
 public:
  // Throws std::invalid_argument for an edge that leaves 0..nodes-1, joins a node to itself, or has
  // a rate that is not above 0.
  ShortestPathLoads(int nodes, std::vector<RatedEdge> edges);

  // Every node u sends sent[u] * weights[i] to targets[i] (but not to itself). Without `lengths`
  // a node splits it in proportion to the rates of the edges that lead on along paths of the fewest
  // hops; with them, among those only on edges of the least total length (equal up to 1e-12 of it).
  // Throws std::invalid_argument for arrays of other sizes, or a node that sends and has no path.
  PathLoads loads(const std::vector<int>& targets, const std::vector<double>& weights,
                  const std::vector<double>& sent, const std::vector<double>& lengths) const;

  // What single pairs send, split as above; and the hops of each pair. Throws std::invalid_argument
  // for a node that does not exist, bytes that are not finite or below 0, or a pair without a path.
  std::pair<std::vector<double>, std::vector<int>> ofPairs(
      const std::vector<PairBytes>& pairs) const;

  // What a byte of each pair loads, split as in ofPairs, where edge e takes latency_s[e]. Pairs
  // with the same target cost least in a row. Throws as ofPairs, and for latencies that are not as
  // many as the edges, or no finite numbers from 0 on.
  PairShares ofEachPair(const std::vector<std::pair<int, int>>& pairs,
                        const std::vector<double>& latency_s) const;

 private:
  class Search;

  void checkNode(int node, const char* field) const;
  void check(const std::vector<int>& targets, const std::vector<double>& weights,
             const std::vector<double>& sent, const std::vector<double>& lengths) const;

  int nodes_;
  std::vector<RatedEdge> edges_;
  std::vector<int> out_begin_, out_, in_begin_, in_;  // edges by their ends
};

}  // namespace topoopt
