// Routes that nearly minimise the maximum link utilisation, by moving bytes between paths.

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace topoopt {

// A directed link, or parallel links combined.
struct Edge {
  int source;
  int target;
  double capacity;
};

// The bytes from one server to another.
struct Commodity {
  int source;
  int target;
  double bytes;
};

// A loop-free path (edge indices in order) and its bytes.
struct PathFlow {
  std::vector<int> edges;
  double bytes;
};

// Multi-commodity flow of least maximum utilisation, u = max over edges of bytes / capacity.
//
// Every edge has the length exp(alpha (u_e / u - 1)) / capacity, the gradient of a smooth
// approximation of the maximum. A sweep moves bytes of each commodity from longer paths to the
// current shortest one until both are equally long. Alpha grows, so the approximation tightens.
//
// Each sweep also proves a bound: for any lengths, no routing has a utilisation below (sum of bytes
// times shortest distance) / (sum of capacity times length). This is the dual of the linear
// program, and the bound that ends the algorithm of Garg and Koenemann (SIAM J. Comput. 37(2),
// section 2).
class Rerouting {
 public:
  // Throws std::invalid_argument for a server outside 0..servers-1, a capacity or size that is not
  // positive and finite, or a commodity without a path.
  Rerouting(int servers, std::vector<Edge> edges, std::vector<Commodity> commodities);

  // Sweeps until u <= (1 + gap) times the bound, at most `sweeps` times.
  void run(double gap, int sweeps);

  // Moves bytes to paths of fewer edges while no edge exceeds the maximum utilisation.
  void shorten();

  double utilisation() const;
  double bound() const { return bound_; }
  int64_t sweeps() const { return sweeps_; }
  const std::vector<std::vector<PathFlow>>& flows() const { return flows_; }

 private:
  struct Tree {  // of shortest paths from one server
    std::vector<double> distance;
    std::vector<int> edge_into;
  };
  double length(int edge) const;
  void shortestPaths(int source, Tree& tree) const;
  std::vector<int> pathOf(const Tree& tree, int target) const;
  void start();
  void sweep();
  double pathLength(const PathFlow& path) const;
  void spread(size_t commodity, const Tree& tree);
  void shift(PathFlow& from, PathFlow& to);
  double bytesToMove(double most) const;
  std::pair<double, double> lengthsAfter(double moved) const;
  bool shortenOnce(PathFlow& from, int source, int target, double most, std::vector<PathFlow>& own);

  int servers_;
  std::vector<Edge> edges_;
  std::vector<Commodity> commodities_;
  std::vector<std::vector<int>> edges_of_;           // by source server
  std::vector<std::vector<size_t>> commodities_of_;  // by source server
  std::vector<std::vector<PathFlow>> flows_;         // by commodity
  std::vector<double> load_;
  std::vector<double> length_;  // at the current loads
  double alpha_ = 0;
  double scale_ = 1;  // the utilisation in the lengths
  double bound_ = 0;
  double sweep_bound_ = 0;  // of the last sweep
  int64_t sweeps_ = 0;
  std::vector<int> only_from_, only_to_;  // edges of the two paths of a shift, without common ones
  std::vector<char> mark_;                // by edge, of `shift`
};

}  // namespace topoopt
