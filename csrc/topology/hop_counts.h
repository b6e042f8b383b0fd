// Least hops between servers, for all pairs at once: breadth-first search on sets of sources.

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace topoopt {

// Over ordered pairs of a source and another server.
struct HopSummary {
  int64_t sum = 0;          // of the shortest distances of connected pairs
  int diameter = 0;         // largest of them
  int64_t unreachable = 0;  // number of unconnected pairs
};

// The in-links of all servers as rows of equal length. Shorter rows are padded with the server
// itself, which changes no distance.
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

// Every server has the bit set of sources within k hops. A round ORs the sets of its in-neighbours
// into it, so one pass over the links advances 64 searches by a hop. This is the multi-source
// search of Then et al., VLDB 2014, with growing sets. Buffers are kept between calls.
class HopCounter {
 public:
  // From the servers in `sources` (distinct) to all.
  HopSummary summary(const InLinks& links, const std::vector<int>& sources);

  // With a cost per pair: the sum of weights[i * servers + t] times the hops from sources[i] to t.
  // An unconnected pair costs as much as one hop of all pairs, so a connected network is always
  // cheaper.
  int64_t weightedSum(const InLinks& links, const std::vector<int>& sources,
                      const std::vector<int64_t>& weights);

  // Hops from every server to every server, [source * servers + target]; -1 without a path.
  // `servers` is at most 32767.
  std::vector<int16_t> matrix(const InLinks& links);

  // Word operations in all calls, counted by rounds and links for a result independent of time.
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
