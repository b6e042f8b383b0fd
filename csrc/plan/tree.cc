#include "plan/tree.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

namespace topoopt {
namespace {

// The parent of every member is its leader, that of the root's leader the root. Leaders come later.
Tree localEdges(const GroupLayout& layout, int root) {
  Tree tree{std::vector<int>(static_cast<size_t>(layout.size()), -1)};
  for (int member = 0; member < layout.size(); ++member) {
    if (layout.leaderOf(member) != member) tree.parent[member] = layout.leaderOf(member);
  }
  const int leader = layout.leaderOf(root);
  tree.parent[root] = -1;
  if (leader != root) tree.parent[leader] = root;
  return tree;
}

// Links two positions of a balanced binary tree in in-order numbering: even positions are leaves.
void addBinarySubtree(std::vector<int>& parent, int first, int count, int above) {
  if (count == 0) return;
  const int left = static_cast<int>(std::bit_floor(static_cast<unsigned>(count))) - 1;
  const int top = first + left;
  parent[top] = above;
  addBinarySubtree(parent, first, left, top);
  addBinarySubtree(parent, top + 1, count - left - 1, top);
}

// The tree in which position i is held by numbered[i].
Tree placeTree(const GroupLayout& layout, const std::vector<int>& parent,
               const std::vector<int>& numbered) {
  const auto top = std::find(parent.begin(), parent.end(), -1) - parent.begin();
  Tree tree = localEdges(layout, numbered[top]);
  for (size_t i = 0; i < parent.size(); ++i) {
    if (parent[i] >= 0) tree.parent[numbered[i]] = numbered[parent[i]];
  }
  return tree;
}

// Links on the longest path of the tree, and on all its edges, there and back.
std::pair<int, int> linksOf(const GroupLayout& layout, const Tree& tree) {
  int longest = 0;
  int all = 0;
  for (const int leader : layout.leaders()) {
    int path = 0;
    for (int at = leader; tree.parent[at] >= 0; at = tree.parent[at]) {
      path += layout.hops(at, tree.parent[at]) + layout.hops(tree.parent[at], at);
    }
    longest = std::max(longest, path);
    const int above = tree.parent[leader];
    if (above >= 0) all += layout.hops(leader, above) + layout.hops(above, leader);
  }
  return {longest, all};
}

std::array<Tree, 2> placedPair(const GroupLayout& layout, const std::vector<int>& order,
                               size_t stride) {
  const size_t count = order.size();
  std::vector<int> parent(count);
  addBinarySubtree(parent, 0, static_cast<int>(count), -1);
  std::vector<int> numbered(count);
  std::vector<int> flipped(count);  // a rank at an even position there is at an odd one here
  for (size_t i = 0; i < count; ++i) numbered[i] = order[i * stride % count];
  for (size_t i = 0; i < count; ++i) {
    flipped[i] = numbered[count % 2 == 0 ? count - 1 - i : (i + count - 1) % count];
  }
  return {placeTree(layout, parent, numbered), placeTree(layout, parent, flipped)};
}

}  // namespace

int Tree::root() const {
  return static_cast<int>(std::find(parent.begin(), parent.end(), -1) - parent.begin());
}

std::vector<int> Tree::childrenOf(int member) const {
  std::vector<int> children;
  for (size_t i = 0; i < parent.size(); ++i) {
    if (parent[i] == member) children.push_back(static_cast<int>(i));
  }
  return children;
}

Tree chainTree(const GroupLayout& layout, const plan::Ring& ring, int root, Flow flow,
               bool both_ways) {
  Tree tree = localEdges(layout, root);
  const int size = static_cast<int>(ring.servers.size());
  const auto start = std::find(ring.servers.begin(), ring.servers.end(), layout.leaderOf(root));
  const int first = static_cast<int>(start - ring.servers.begin());
  // at(i) is i places from the root's server, in the direction in which the data leaves it, or
  // against the direction in which the data comes.
  const auto at = [&](int i) {
    return ring.servers[(flow == Flow::kFromRoot ? first + i : first + size - i) % size];
  };
  const int forward = both_ways ? size / 2 : size - 1;
  for (int i = 1; i <= forward; ++i) tree.parent[at(i)] = at(i - 1);
  for (int i = forward + 1; i < size; ++i) tree.parent[at(i)] = at((i + 1) % size);
  return tree;
}

std::array<Tree, 2> doubleBinaryTree(const GroupLayout& layout) {
  const size_t count = layout.leaders().size();
  std::array<Tree, 2> best;
  std::pair<int, int> least{INT32_MAX, INT32_MAX};
  for (const plan::Ring& ring : layout.rings()) {
    for (size_t stride = 1; stride == 1 || stride < count; ++stride) {
      if (std::gcd(stride, count) != 1) continue;
      std::array<Tree, 2> pair = placedPair(layout, ring.servers, stride);
      const auto one = linksOf(layout, pair[0]);
      const auto other = linksOf(layout, pair[1]);
      const std::pair<int, int> links{std::max(one.first, other.first), one.second + other.second};
      if (links >= least) continue;
      least = links;
      best = std::move(pair);
    }
  }
  return best;
}

Tree quickTree(const GroupLayout& layout, int root, double alpha_s, double per_hop_latency_s) {
  Tree tree = localEdges(layout, root);
  struct Sender {
    int member;
    double ready_s;  // when it can have handed over its next message
  };
  const int top = layout.leaderOf(root);
  std::vector<Sender> senders = {{top, alpha_s}};
  std::vector<int> left = layout.leaders();
  std::erase(left, top);
  while (!left.empty()) {
    // Of equally early arrivals the one over the fewest links, then the lowest numbers.
    std::tuple<double, int, size_t, size_t> next{std::numeric_limits<double>::infinity(), 0, 0, 0};
    for (size_t i = 0; i < senders.size(); ++i) {
      for (size_t j = 0; j < left.size(); ++j) {
        const int hops = layout.hops(senders[i].member, left[j]);
        next = std::min(next, {senders[i].ready_s + per_hop_latency_s * hops, hops, i, j});
      }
    }
    const auto [arrival_s, hops, sender, target] = next;
    tree.parent[left[target]] = senders[sender].member;
    senders[sender].ready_s += alpha_s;
    senders.push_back({left[target], arrival_s + alpha_s});
    left.erase(left.begin() + static_cast<ptrdiff_t>(target));
  }
  return tree;
}

}  // namespace topoopt
