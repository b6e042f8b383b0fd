// The possible paths of flows in a switched network, and the loads of a choice.

#pragma once

#include <algorithm>
#include <vector>

namespace topoopt {

inline constexpr double kSame = 1e-9;  // relative difference of congestions considered equal

// Equally short paths of every pair of ends. Pair p has the paths from `first_path[p]` up to
// `first_path[p + 1]`; path i has `links[first_link[i]]` up to `links[first_link[i + 1]]`.
struct SwitchedPaths {
  std::vector<double> capacity;  // of each link
  std::vector<int> first_path, first_link, links;

  // Throws std::invalid_argument for a capacity that is not positive, or numbers out of range.
  void check() const;

  int pairs() const { return static_cast<int>(first_path.size()) - 1; }
  int pathCount(int pair) const { return first_path[pair + 1] - first_path[pair]; }
};

struct RoutedFlow {
  int pair;
  double demand;
};

// Throws std::invalid_argument for an unknown pair, one without a path, or a demand that is not
// positive and finite.
void checkFlows(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows);

// Path index per flow.
using PathChoice = std::vector<int>;

// Loads of all links. Congestion is load over capacity.
class SwitchedPathLoads {
 public:
  explicit SwitchedPathLoads(const SwitchedPaths& table)
      : table_(table), load_(table.capacity.size(), 0.0) {}

  void add(int path, double demand) {
    for (int i = table_.first_link[path]; i < table_.first_link[path + 1]; ++i) {
      load_[table_.links[i]] += demand;
    }
  }

  // The maximum congestion on `path` with `demand` added.
  double after(int path, double demand) const {
    double most = 0;
    for (int i = table_.first_link[path]; i < table_.first_link[path + 1]; ++i) {
      const int link = table_.links[i];
      most = std::max(most, (load_[link] + demand) / table_.capacity[link]);
    }
    return most;
  }

  double congestion(int link) const { return load_[link] / table_.capacity[link]; }
  double most() const;
  const std::vector<double>& loads() const { return load_; }

 private:
  const SwitchedPaths& table_;
  std::vector<double> load_;
};

}  // namespace topoopt
