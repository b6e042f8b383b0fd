// Paths: the load of a flow on the links.

#pragma once

#include <span>
#include <vector>

namespace topoopt {

// `load` bytes cross `link` per byte of the flow: 1 on a plain path, a fraction over several
// routes, more than 1 if a ring crosses a link several times.
struct LinkUse {
  int link;
  double load;
};

// The transfers of a pair: load per byte, and latency.
struct PairPath {
  int source;
  int target;
  std::vector<LinkUse> uses;
  double latency_s;
};

// Append-only list of paths, each a set of LinkUse with distinct links in ascending order.
class PathTable {
 public:
  PathTable() : begin_{0} {}

  // Adds a path and returns its index; repeated links are merged. Throws std::invalid_argument for
  // an empty path or a load that is not positive and finite.
  int add(std::vector<LinkUse> uses);

  int size() const { return static_cast<int>(begin_.size()) - 1; }
  int useCount() const { return begin_.back(); }
  int firstUse(int path) const { return begin_[path]; }
  std::span<const LinkUse> uses(int path) const {
    return {uses_.data() + begin_[path], static_cast<size_t>(begin_[path + 1] - begin_[path])};
  }

 private:
  std::vector<LinkUse> uses_;
  std::vector<int> begin_;
};

}  // namespace topoopt
