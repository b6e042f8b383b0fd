// Trees over the members of a group. Edges between servers connect their leaders; the other members
// of a server are children of its leader. So a tree sends over the links what it would with one
// member per server.

#pragma once

#include <array>
#include <vector>

#include "plan/group_layout.h"

namespace topoopt {

struct Tree {
  std::vector<int> parent;  // -1 for the root

  int root() const;
  std::vector<int> childrenOf(int member) const;   // ascending
  std::vector<std::vector<int>> children() const;  // of every member
};

// The direction of a chain's data: along the ring away from its root, or along it to the root.
enum class ChainDirection { kFromRoot, kToRoot };

// The servers one after the other as the ring visits them; with `both_ways`, half of them in the
// ring's order and half against it.
Tree chainTree(const GroupLayout& layout, const plan::Ring& ring, int root, ChainDirection flow,
               bool both_ways);

// Two balanced binary trees over the servers, of which each server is a leaf in one and an inner
// node in the other (but one server if their number is odd). Servers are numbered by steps of a
// coprime stride along a ring, whichever (of at most 128 strides) makes the longest path from a
// leaf to its root shortest in links (TopoOpt, appendix A: any permutation of the servers gives
// trees of the same speed).
std::array<Tree, 2> doubleBinaryTree(const GroupLayout& layout);

// The tree on which a small message from `root` reaches all members soon: of all servers that have
// it and those that do not, the two between which it arrives first are connected next. A message
// takes its sender `alpha_s`, and `per_hop_latency_s` per link.
Tree quickTree(const GroupLayout& layout, int root, double alpha_s, double per_hop_latency_s);

}  // namespace topoopt
