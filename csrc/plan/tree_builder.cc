// Packs trees by Edmonds' theorem: capacities suffice for trees with given units of every root if
// and only if every server can receive a flow of all these units.

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "plan/sink_flow.h"
#include "plan/weighted_trees.h"

namespace topoopt {
namespace {

constexpr int kOutside = -1;  // depth of a server that is not in the tree yet

// A link is added to a tree only if the condition of the theorem still holds. A link that can take
// part of the weight only reduces the tree to that part; the rest is built as another tree.
class TreeBuilder {
 public:
  TreeBuilder(const IntegerLinks& links, std::vector<int64_t>& capacity, std::vector<int64_t> units)
      : links_(links),
        capacity_(capacity),
        units_(std::move(units)),
        updater_(links),
        flows_(links.servers,
               {std::vector<int64_t>(links.count(), 0), std::vector<int64_t>(links.servers, 0)}),
        allowed_(links.count()) {}

  std::vector<WeightedTree> all() {
    std::vector<WeightedTree> trees;
    for (int root = 0; root < links_.servers; ++root) {
      while (units_[root] > 0) {
        build(root);
        tree_.number = trees.size();
        trees.push_back(tree_);
      }
    }
    return trees;
  }

 private:
  void build(int root) {
    tree_ = {root, units_[root], std::vector<int>(links_.servers, -1),
             std::vector<int>(links_.servers, kOutside)};
    units_[root] = 0;
    tree_.depth[root] = 0;
    missing_ = links_.servers - 1;
    allow(tree_.weight);
    while (missing_ > 0) {
      for (int depth = 0; growFrom(depth); ++depth) {
      }
      if (missing_ > 0) addPart();
    }
  }

  void allow(int64_t units) {
    for (size_t e = 0; e < allowed_.size(); ++e) allowed_[e] = std::min(capacity_[e], units);
  }

  bool leavesTree(int link) const {
    return tree_.depth[links_.source[link]] != kOutside &&
           tree_.depth[links_.target[link]] == kOutside;
  }

  // Adds servers below those of a depth, over the links with the most capacity first. Returns
  // whether any server is below them.
  bool growFrom(int depth) {
    candidates_.clear();
    bool any = false;
    for (int v = 0; v < links_.servers; ++v) {
      any = any || tree_.depth[v] == depth + 1;
      if (tree_.depth[v] != depth) continue;
      for (int i = links_.first_out[v]; i < links_.first_out[v + 1]; ++i) {
        const int e = links_.out[i];
        if (leavesTree(e) && allowed_[e] == tree_.weight) candidates_.push_back(e);
      }
    }
    std::sort(candidates_.begin(), candidates_.end(), [&](int a, int b) {
      return std::pair(-capacity_[a], a) < std::pair(-capacity_[b], b);
    });
    for (const int e : candidates_) {
      if (!leavesTree(e) || allowed_[e] < tree_.weight || unitsOver(e) < tree_.weight) continue;
      add(e);
      any = true;
    }
    return any;
  }

  // The units that a link can take so that all trees can still be completed, up to its `allowed_`,
  // which becomes that number. So does that of other links across the same cut.
  int64_t unitsOver(int link) {
    const int64_t units = allowed_[link];
    const int sink = links_.target[link];
    capacity_[link] -= units;
    const int64_t missing = updater_.update(flows_[sink], sink, capacity_, units_);
    capacity_[link] += units;
    if (missing == 0) return units;
    for (size_t e = 0; e < allowed_.size(); ++e) {
      if (updater_.onSinkSide(links_.target[e]) && !updater_.onSinkSide(links_.source[e])) {
        allowed_[e] = std::min(allowed_[e], units - missing);
      }
    }
    if (updater_.finish(flows_[sink], capacity_) > 0) {
      throw std::logic_error("trees: the capacities do not suffice");
    }
    return units - missing;
  }

  void add(int link) {
    const int to = links_.target[link];
    capacity_[link] -= tree_.weight;
    tree_.via[to] = link;
    tree_.depth[to] = tree_.depth[links_.source[link]] + 1;
    --missing_;
  }

  // Adds the link that can take the most, and reduces the weight of the tree to that.
  void addPart() {
    while (true) {
      int best = -1;
      for (int e = 0; e < static_cast<int>(allowed_.size()); ++e) {
        if (allowed_[e] > 0 && leavesTree(e) && (best < 0 || isBetter(e, best))) best = e;
      }
      if (best < 0) throw std::logic_error("trees: one cannot be completed");
      const int64_t expected = allowed_[best];
      if (unitsOver(best) < expected) continue;
      reduce(expected);
      add(best);
      return;
    }
  }

  bool isBetter(int a, int b) const {
    const auto key = [&](int e) {
      return std::tuple(-allowed_[e], tree_.depth[links_.source[e]], -capacity_[e], e);
    };
    return key(a) < key(b);
  }

  void reduce(int64_t weight) {
    const int64_t rest = tree_.weight - weight;
    for (const int link : tree_.via) {
      if (link >= 0) capacity_[link] += rest;
    }
    units_[tree_.root] += rest;
    tree_.weight = weight;
    allow(weight);
  }

  const IntegerLinks& links_;
  std::vector<int64_t>& capacity_;
  std::vector<int64_t> units_;  // by root: of trees that are not built yet
  FlowUpdater updater_;
  std::vector<SinkFlow> flows_;   // of `units_`, to each server; updated before use
  std::vector<int64_t> allowed_;  // by link: an upper bound of what it can take of the tree
  std::vector<int> candidates_;
  WeightedTree tree_;
  int missing_ = 0;  // servers outside the tree
};

}  // namespace

int WeightedTree::height() const { return *std::max_element(depth.begin(), depth.end()); }

std::vector<WeightedTree> builtTrees(const IntegerLinks& links, std::vector<int64_t>& capacity,
                                     std::vector<int64_t> units) {
  return TreeBuilder(links, capacity, std::move(units)).all();
}

}  // namespace topoopt
