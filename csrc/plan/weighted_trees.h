// Out-trees over all servers, which carry parts of the shards of their roots.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/integer_links.h"

namespace topoopt {

// A tree that carries `weight` units of the shards of its root.
struct WeightedTree {
  int root = -1;
  int64_t weight = 0;
  std::vector<int> via{};    // by server: the link that it receives over; -1 at the root
  std::vector<int> depth{};  // by server: links from the root
  size_t number = 0;         // equal in trees that were one tree

  int height() const;
};

// Builds trees with `units` of each root, one after the other, within `capacity` (units by link),
// which it reduces to what is left. Throws std::logic_error if they do not fit.
std::vector<WeightedTree> builtTrees(const IntegerLinks& links, std::vector<int64_t>& capacity,
                                     std::vector<int64_t> units);

// Reduces the height of trees to one more than the network needs, as far as it finds exchanges of
// links between two trees. No link carries more than it has `left`. May split trees.
void makeShallow(const IntegerLinks& links, std::vector<int64_t>& left,
                 std::vector<WeightedTree>& trees);

}  // namespace topoopt
