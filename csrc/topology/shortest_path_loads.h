// Link loads of traffic over shortest paths.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace topoopt {

struct RatedEdge {
  int from;
  int to;
  double rate;  // weight among parallel paths
};

struct PairBytes {
  int source;
  int target;
  double bytes;
};

struct PathLoads {
  std::vector<double> load;  // by edge
  double length = 0;         // total of all traffic, by the given lengths, else hops
  int farthest = 0;          // hops from any sender to its target
};

// Row i: a byte of pair i puts load[u] bytes on edge[u], ascending, for u in begin[i]..begin[i +
// 1], with a latency of at most latency_s[i].
struct PairShares {
  std::vector<int64_t> begin{0};
  std::vector<int64_t> edge;
  std::vector<double> load;
  std::vector<double> latency_s;
};

// Sends over all fewest-hop paths, target by target: the search starts at the target, and the
// traffic flows down its levels (the accumulation of Brandes' betweenness).
class ShortestPathLoads {
 public:
  // Throws std::invalid_argument for an edge outside 0..nodes-1, a self-loop, or a rate that is not
  // positive.
  ShortestPathLoads(int nodes, std::vector<RatedEdge> edges);

  // Every node u sends sent[u] * weights[i] to targets[i] (but not to itself). A node splits
  // traffic by the rates of its edges on fewest-hop paths. With `lengths`, only edges of the least
  // total length (within 1e-12) count. Throws std::invalid_argument for arrays of wrong size, or a
  // sender without a path.
  PathLoads loads(const std::vector<int>& targets, const std::vector<double>& weights,
                  const std::vector<double>& sent, const std::vector<double>& lengths) const;

  // Loads of single pairs, split as above, and the hops of each pair. Throws std::invalid_argument
  // for an unknown node, bytes that are negative or not finite, or a pair without a path.
  std::pair<std::vector<double>, std::vector<int>> ofPairs(
      const std::vector<PairBytes>& pairs) const;

  // Loads of a byte of each pair, split as in ofPairs, where edge e takes latency_s[e]. Group pairs
  // by target for speed. Throws as ofPairs, and unless there is a finite latency from 0 on per
  // edge.
  PairShares ofEachPair(const std::vector<std::pair<int, int>>& pairs,
                        const std::vector<double>& latency_s) const;

 private:
  class Search;

  void checkNode(int node, const char* field) const;
  void check(const std::vector<int>& targets, const std::vector<double>& weights,
             const std::vector<double>& sent, const std::vector<double>& lengths) const;

  int nodes_;
  std::vector<RatedEdge> edges_;
  std::vector<int> out_begin_, out_, in_begin_, in_;  // edges by source and target
};

}  // namespace topoopt
