#include "plan/tree.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

namespace topoopt {
namespace {

// The leader is the parent of its server's members, the root that of its own leader. Leaders are
// added later.
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

// Returns the tree with numbered[i] at position i.
Tree placeTree(const GroupLayout& layout, const std::vector<int>& parent,
               const std::vector<int>& numbered) {
  const auto top = std::find(parent.begin(), parent.end(), -1) - parent.begin();
  Tree tree = localEdges(layout, numbered[top]);
  for (size_t i = 0; i < parent.size(); ++i) {
    if (parent[i] >= 0) tree.parent[numbered[i]] = numbered[parent[i]];
  }
  return tree;
}

// Links on the longest path of the tree, and on all edges in both directions. Paths extend the
// parent's path, so each edge is visited once.
std::pair<int, int> linksOf(const GroupLayout& layout, const std::vector<int>& parent,
                            const std::vector<int>& numbered) {
  constexpr int kUnknown = -1;
  std::vector<int> path(parent.size(), kUnknown);
  std::vector<int> above;
  int longest = 0;
  int all = 0;
  for (size_t i = 0; i < parent.size(); ++i) {
    int at = static_cast<int>(i);
    for (; at >= 0 && path[at] == kUnknown; at = parent[at]) above.push_back(at);
    int links = at < 0 ? 0 : path[at];
    for (; !above.empty(); above.pop_back()) {
      const int child = above.back();
      if (parent[child] >= 0) {
        const int one = numbered[child];
        const int other = numbered[parent[child]];
        const int edge = layout.hops(one, other) + layout.hops(other, one);
        links += edge;
        all += edge;
      }
      path[child] = links;
    }
    longest = std::max(longest, path[i]);
  }
  return {longest, all};
}

// The servers by position, for both trees.
using Numberings = std::array<std::vector<int>, 2>;

Numberings numberings(const std::vector<int>& order, size_t stride) {
  const size_t count = order.size();
  Numberings pair{std::vector<int>(count), std::vector<int>(count)};
  auto& [numbered, flipped] = pair;  // even positions of one tree are odd in the other
  for (size_t i = 0; i < count; ++i) numbered[i] = order[i * stride % count];
  for (size_t i = 0; i < count; ++i) {
    flipped[i] = numbered[count % 2 == 0 ? count - 1 - i : (i + count - 1) % count];
  }
  return pair;
}

// Strides coprime to `count`: all, or kMostStrides evenly spread ones, so that the time grows
// linearly with the members.
std::vector<size_t> triedStrides(size_t count) {
  constexpr size_t kMostStrides = 128;
  std::vector<size_t> all{1};
  for (size_t stride = 2; stride < count; ++stride) {
    if (std::gcd(stride, count) == 1) all.push_back(stride);
  }
  if (all.size() <= kMostStrides) return all;
  std::vector<size_t> some;
  for (size_t i = 0; i < kMostStrides; ++i) some.push_back(all[i * all.size() / kMostStrides]);
  return some;
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

std::vector<std::vector<int>> Tree::children() const {
  std::vector<std::vector<int>> children(parent.size());
  for (size_t i = 0; i < parent.size(); ++i) {
    if (parent[i] >= 0) children[parent[i]].push_back(static_cast<int>(i));
  }
  return children;
}

Tree chainTree(const GroupLayout& layout, const plan::Ring& ring, int root, ChainDirection flow,
               bool both_ways) {
  Tree tree = localEdges(layout, root);
  const int size = static_cast<int>(ring.servers.size());
  const auto start = std::find(ring.servers.begin(), ring.servers.end(), layout.leaderOf(root));
  const int first = static_cast<int>(start - ring.servers.begin());
  // at(i) is i places from the root's server, along the data leaving it or against the data
  // arriving.
  const auto at = [&](int i) {
    return ring.servers[(flow == ChainDirection::kFromRoot ? first + i : first + size - i) % size];
  };
  const int forward = both_ways ? size / 2 : size - 1;
  for (int i = 1; i <= forward; ++i) tree.parent[at(i)] = at(i - 1);
  for (int i = forward + 1; i < size; ++i) tree.parent[at(i)] = at((i + 1) % size);
  return tree;
}

std::array<Tree, 2> doubleBinaryTree(const GroupLayout& layout) {
  const size_t count = layout.leaders().size();
  std::vector<int> parent(count);
  addBinarySubtree(parent, 0, static_cast<int>(count), -1);
  const std::vector<size_t> strides = triedStrides(count);
  Numberings best;
  std::pair<int, int> least{INT32_MAX, INT32_MAX};
  for (const plan::Ring& ring : layout.plannedRings()) {
    for (const size_t stride : strides) {
      Numberings pair = numberings(ring.servers, stride);
      const auto one = linksOf(layout, parent, pair[0]);
      if (one.first > least.first) continue;
      const auto other = linksOf(layout, parent, pair[1]);
      const std::pair<int, int> links{std::max(one.first, other.first), one.second + other.second};
      if (links >= least) continue;
      least = links;
      best = std::move(pair);
    }
  }
  return {placeTree(layout, parent, best[0]), placeTree(layout, parent, best[1])};
}

namespace {

// A server with the message and its possible targets, by distance and then number.
struct Sender {
  int member;
  double ready_s;  // time of its next message
  std::vector<int> targets{};
  size_t next = 0;  // index into `targets`; earlier ones have the message
};

// Sorts `leaders` by distance from `source` (counting sort).
std::vector<int> byDistance(const GroupLayout& layout, int source,
                            const std::vector<int>& leaders) {
  std::vector<size_t> starts;
  for (const int leader : leaders) {
    const auto hops = static_cast<size_t>(layout.hops(source, leader));
    if (starts.size() <= hops + 1) starts.resize(hops + 2, 0);
    ++starts[hops + 1];
  }
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  std::vector<int> sorted(leaders.size());
  for (const int leader : leaders) {
    sorted[starts[static_cast<size_t>(layout.hops(source, leader))]++] = leader;
  }
  return sorted;
}

}  // namespace

// Each sender offers its nearest remaining target; the offer that arrives first is accepted. Every
// sender scans every target once, so the time grows with the square of the servers.
Tree quickTree(const GroupLayout& layout, int root, double alpha_s, double per_hop_latency_s) {
  Tree tree = localEdges(layout, root);
  const std::vector<int>& leaders = layout.leaders();
  std::vector<bool> reached(static_cast<size_t>(layout.size()), false);
  std::vector<Sender> senders;
  // Ties: fewest links, then the earliest sender, then the lowest number.
  using Offer = std::tuple<double, int, size_t, int>;  // arrival, links, sender, target
  std::priority_queue<Offer, std::vector<Offer>, std::greater<>> offers;
  const auto offer = [&](size_t index) {
    Sender& sender = senders[index];
    while (sender.next < sender.targets.size() && reached[sender.targets[sender.next]]) {
      ++sender.next;
    }
    if (sender.next == sender.targets.size()) return std::vector<int>().swap(sender.targets);
    const int target = sender.targets[sender.next];
    const int hops = layout.hops(sender.member, target);
    offers.emplace(sender.ready_s + per_hop_latency_s * hops, hops, index, target);
  };
  const auto add = [&](int member, double ready_s) {
    reached[member] = true;
    senders.push_back({member, ready_s, byDistance(layout, member, leaders)});
    offer(senders.size() - 1);
  };
  add(layout.leaderOf(root), alpha_s);
  while (!offers.empty()) {
    const auto [arrival_s, hops, index, target] = offers.top();
    offers.pop();
    if (!reached[target]) {
      tree.parent[target] = senders[index].member;
      senders[index].ready_s += alpha_s;
      add(target, arrival_s + alpha_s);
    }
    offer(index);
  }
  return tree;
}

}  // namespace topoopt
