// Least hops between servers, for all pairs at once: breadth-first search on sets of sources.

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace topoopt {

// Over the ordered pairs of a source and any other server.
struct HopSummary {
  int64_t sum = 0;          // of the least hops, pairs without a path left out
  int diameter = 0;         // the largest of the least hops
  int64_t unreachable = 0;  // pairs without a path
};

// The links into every server, as rows of equal length: a server with fewer links than the busiest
// one is listed in its own row, which changes no distance.
class InLinks {
 public:
  InLinks(int servers, int degree);
  // Throws std::invalid_argument for a server outside 0..servers-1 or a link to itself.
  InLinks(int servers, const std::vector<std::pair<int, int>>& links);

  int servers() const { return servers_; }
  int degree() const { return degree_; }
  int* row(int server) { return sources_.data() + static_cast<size_t>(server) * degree_; }
  const int* row(int server) const {
    return sources_.data() + static_cast<size_t>(server) * degree_;
  }

 private:
  int servers_;
  int degree_;
  std::vector<int> sources_;
};

// Every server holds the set of sources that reach it within k hops, one bit each; a round ORs the
// sets of its in-neighbours into it, so that one pass over the links moves 64 searches by a hop
// (the multi-source search of Then et al., VLDB 2014, with sets that only grow). Holds its buffers
// between calls.
class HopCounter {
 public:
  // From the servers in `sources` (distinct) to all.
  HopSummary summary(const InLinks& links, const std::vector<int>& sources);

  // The same, with a cost for every pair: sum of weights[i * servers + t] times the hops from
  // sources[i] to t. A pair without a path costs as much as a hop of all pairs together, so that a
  // network that reaches all servers always costs less than one that does not.
  int64_t weightedSum(const InLinks& links, const std::vector<int>& sources,
                      const std::vector<int64_t>& weights);

  // Hops from every server to every server, [source * servers + target]; -1 without a path.
  // `servers` is at most 32767.
  std::vector<int16_t> matrix(const InLinks& links);

  // Operations on words in all calls so far, counted by rounds and links: no clock is read.
  int64_t operations() const { return operations_; }

 private:
  template <typename Visit>
  void search(const InLinks& links, const std::vector<int>& sources, Visit visit);
  void start(const InLinks& links, const std::vector<int>& sources);
  int64_t advance(const InLinks& links);

  int words_ = 0;
  int64_t operations_ = 0;
  std::vector<uint64_t> reached_, next_;
};

}  // namespace topoopt
