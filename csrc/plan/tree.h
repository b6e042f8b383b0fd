// Trees over the members of a group. Edges between servers join their leaders; other members are
// children of their leader. So a link's load does not depend on the number of members per server.

#pragma once

#include <array>
#include <vector>

#include "plan/group_layout.h"

namespace topoopt {

struct Tree {
  std::vector<int> parent;  // -1 for the root

  int root() const;
  std::vector<int> childrenOf(int member) const;   // ascending
  std::vector<std::vector<int>> children() const;  // by member
};

// The direction of a chain's data: along the ring from its root, or along it to the root.
enum class ChainDirection { kFromRoot, kToRoot };

// The servers in ring order; with `both_ways`, half of them in ring order and half in reverse.
Tree chainTree(const GroupLayout& layout, const plan::Ring& ring, int root, ChainDirection flow,
               bool both_ways);

// Two balanced binary trees; every server is a leaf in one and an inner node in the other (except
// one if their number is odd). Servers are numbered along a ring by a coprime stride, chosen among
// at most 128 to minimise the longest root path in links. By TopoOpt, appendix A, any permutation
// gives trees of the same speed.
std::array<Tree, 2> doubleBinaryTree(const GroupLayout& layout);

// A tree that delivers a small message from `root` early: it repeatedly connects the pair of a
// server with and one without the message that delivers first. A message takes `alpha_s` at its
// sender and `per_hop_latency_s` per link.
Tree quickTree(const GroupLayout& layout, int root, double alpha_s, double per_hop_latency_s);

}  // namespace topoopt
