// Reduces the height of trees. The last trees of a packing get the links that others left, so they
// are deep, but most servers are leaves, and a leaf can change its sender for another tree's sake.

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>

#include "plan/weighted_trees.h"

namespace topoopt {
namespace {

// The most links from a root to the farthest server.
int neededHeight(const IntegerLinks& links, const std::vector<WeightedTree>& trees) {
  int height = 0;
  std::vector<int> distance(links.servers);
  for (size_t t = 0; t < trees.size(); ++t) {
    if (t > 0 && trees[t].root == trees[t - 1].root) continue;
    std::fill(distance.begin(), distance.end(), -1);
    distance[trees[t].root] = 0;
    std::vector<int> queue{trees[t].root};
    for (size_t i = 0; i < queue.size(); ++i) {
      const int v = queue[i];
      for (int j = links.first_out[v]; j < links.first_out[v + 1]; ++j) {
        const int to = links.target[links.out[j]];
        if (distance[to] >= 0) continue;
        distance[to] = distance[v] + 1;
        queue.push_back(to);
      }
    }
    height = std::max(height, distance[queue.back()]);
  }
  return height;
}

class DepthReducer {
 public:
  DepthReducer(const IntegerLinks& links, std::vector<int64_t>& left,
               std::vector<WeightedTree>& trees)
      : links_(links),
        left_(left),
        trees_(trees),
        limit_(neededHeight(links, trees) + 1),
        most_trees_(2 * trees.size()) {}

  void run() {
    constexpr int kPasses = 3;
    for (int pass = 0; pass < kPasses && onePass(); ++pass) {
    }
  }

 private:
  bool onePass() {
    std::vector<size_t> deepest_first(trees_.size());
    std::iota(deepest_first.begin(), deepest_first.end(), 0);
    std::stable_sort(deepest_first.begin(), deepest_first.end(),
                     [&](size_t a, size_t b) { return trees_[a].height() > trees_[b].height(); });
    bool any = false;
    for (const size_t tree : deepest_first) {
      while (trees_[tree].height() > limit_ && raiseOne(tree)) any = true;
    }
    return any;
  }

  int senderOf(const WeightedTree& tree, int server) const {
    return links_.source[tree.via[server]];
  }

  // Raises one server above those that are too deep, the highest one that can be.
  bool raiseOne(size_t tree) {
    const WeightedTree& deep = trees_[tree];
    std::vector<int> deepest_first(links_.servers);
    std::iota(deepest_first.begin(), deepest_first.end(), 0);
    std::stable_sort(deepest_first.begin(), deepest_first.end(),
                     [&](int a, int b) { return deep.depth[a] > deep.depth[b]; });
    std::vector<int> lowest = deep.depth;  // by server, in the subtree below it
    for (const int server : deepest_first) {
      if (server == deep.root) continue;
      int& above = lowest[senderOf(deep, server)];
      above = std::max(above, lowest[server]);
    }
    for (auto server = deepest_first.rbegin(); server != deepest_first.rend(); ++server) {
      if (deep.depth[*server] > 1 && lowest[*server] > limit_ && raise(tree, *server)) return true;
    }
    return false;
  }

  bool raise(size_t tree, int server) {
    const std::vector<int>& depth = trees_[tree].depth;
    std::vector<int> higher;
    for (int e = links_.first_in[server]; e < links_.first_in[server + 1]; ++e) {
      if (depth[links_.source[e]] + 1 < depth[server]) higher.push_back(e);
    }
    std::stable_sort(higher.begin(), higher.end(), [&](int a, int b) {
      return depth[links_.source[a]] < depth[links_.source[b]];
    });
    for (const int link : higher) {
      const int old = trees_[tree].via[server];
      if (left_[link] >= trees_[tree].weight) {
        left_[link] -= trees_[tree].weight;
        left_[old] += trees_[tree].weight;
      } else {
        const std::optional<size_t> other = partner(tree, server, link);
        if (!other) continue;
        const int64_t weight = std::min(trees_[tree].weight, trees_[*other].weight);
        keep(tree, weight);
        keep(*other, weight);
        move(trees_[*other], server, old);
      }
      move(trees_[tree], server, link);
      return true;
    }
    return false;
  }

  // A tree in which the server receives over `link` and can receive over the link of `tree`: best
  // of the same weight.
  std::optional<size_t> partner(size_t tree, int server, int link) const {
    const int sender = senderOf(trees_[tree], server);
    std::optional<size_t> best;
    std::tuple<int, int64_t, int> least;
    for (size_t t = 0; t < trees_.size(); ++t) {
      const WeightedTree& other = trees_[t];
      if (other.via[server] != link) continue;
      const int depth = other.depth[sender] + 1;
      if (depth > other.depth[server] && (depth > limit_ || !isLeaf(other, server))) continue;
      const int64_t more = other.weight - trees_[tree].weight;
      if (more != 0 && trees_.size() >= most_trees_) continue;
      const std::tuple key(more == 0 ? 0 : more > 0 ? 1 : 2, -other.weight, depth);
      if (best && key >= least) continue;
      best = t;
      least = key;
    }
    return best;
  }

  bool isLeaf(const WeightedTree& tree, int server) const {
    return std::none_of(tree.via.begin(), tree.via.end(),
                        [&](int link) { return link >= 0 && links_.source[link] == server; });
  }

  // Splits what is more than `weight` off a tree.
  void keep(size_t tree, int64_t weight) {
    if (trees_[tree].weight == weight) return;
    WeightedTree rest = trees_[tree];
    rest.weight -= weight;
    trees_[tree].weight = weight;
    trees_.push_back(std::move(rest));
  }

  // The new sender is no deeper than the old one, or the server is a leaf.
  void move(WeightedTree& tree, int server, int link) {
    tree.via[server] = link;
    std::vector<int> order(links_.servers);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return tree.depth[a] < tree.depth[b]; });
    for (const int v : order) {
      if (v != tree.root) tree.depth[v] = tree.depth[senderOf(tree, v)] + 1;
    }
    tree.depth[server] = tree.depth[links_.source[link]] + 1;
  }

  const IntegerLinks& links_;
  std::vector<int64_t>& left_;
  std::vector<WeightedTree>& trees_;
  int limit_;
  size_t most_trees_;
};

}  // namespace

void makeShallow(const IntegerLinks& links, std::vector<int64_t>& left,
                 std::vector<WeightedTree>& trees) {
  DepthReducer(links, left, trees).run();
}

}  // namespace topoopt
