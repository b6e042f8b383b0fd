#include "plan/tree_packing.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "plan/cut_bound.h"
#include "plan/integer_links.h"
#include "plan/sink_flow.h"

namespace topoopt {
namespace {

// A tree that carries `weight` units of the shards of its root.
struct WeightedTree {
  int root;
  int64_t weight;
  std::vector<int> parent;  // by server; -1 at the root
  std::vector<int> depth;
};

// Builds trees one after the other. The capacities that are left always suffice for the trees that
// are still to be built: by Edmonds' theorem, if every server can receive a flow of all their units
// from their roots.
class TreeBuilder {
 public:
  TreeBuilder(const IntegerLinks& links, std::vector<int64_t> capacity, std::vector<int64_t> units)
      : links_(links),
        capacity_(std::move(capacity)),
        units_(std::move(units)),
        updater_(links),
        flows_(links.servers, {std::vector<int64_t>(links.count(), 0),
                               std::vector<int64_t>(links.servers, 0)}),
        allowed_(links.count()) {
    for (int v = 0; v < links.servers; ++v) {
      if (updater_.update(flows_[v], v, capacity_, units_) > 0) {
        throw std::logic_error("no packing of trees within these capacities");
      }
    }
  }

  std::vector<WeightedTree> all() {
    std::vector<WeightedTree> trees;
    for (int root = 0; root < links_.servers; ++root) {
      while (units_[root] > 0) trees.push_back(next(root));
    }
    return trees;
  }
  long tests_ = 0, instant_ = 0, fails_ = 0, splits_ = 0;

 private:
  static constexpr int kOutside = -1;

  WeightedTree next(int root) {
    tree_ = {root, units_[root], std::vector<int>(links_.servers, -1),
             std::vector<int>(links_.servers, kOutside)};
    units_[root] = 0;
    tree_.depth[root] = 0;
    missing_ = links_.servers - 1;
    allow(tree_.weight);
    while (missing_ > 0) {
      for (int level = 0; growFrom(level); ++level) {
      }
      if (missing_ > 0) split();
    }
    return std::move(tree_);
  }

  void allow(int64_t units) {
    for (size_t e = 0; e < allowed_.size(); ++e) allowed_[e] = std::min(capacity_[e], units);
  }

  bool enters(int link) const {
    return tree_.depth[links_.source[link]] != kOutside &&
           tree_.depth[links_.target[link]] == kOutside;
  }

  // Adds servers below those of this depth. Returns whether any are.
  bool growFrom(int level) {
    candidates_.clear();
    bool any = false;
    for (int v = 0; v < links_.servers; ++v) {
      if (tree_.depth[v] == level + 1) any = true;
      if (tree_.depth[v] != level) continue;
      for (int i = links_.first_out[v]; i < links_.first_out[v + 1]; ++i) {
        const int e = links_.out[i];
        if (tree_.depth[links_.target[e]] == kOutside && allowed_[e] >= tree_.weight) {
          candidates_.push_back(e);
        }
      }
    }
    std::sort(candidates_.begin(), candidates_.end(), [&](int a, int b) {
      return std::pair(-capacity_[a], a) < std::pair(-capacity_[b], b);
    });
    for (const int e : candidates_) {
      if (!enters(e) || allowed_[e] < tree_.weight || test(e) < tree_.weight) continue;
      add(e);
      any = true;
    }
    return any;
  }

  // Returns how many units of the tree `link` can take, at most its weight, so that the rest can be
  // completed.
  int64_t test(int link) {
    ++tests_;
    const int64_t units = std::min(tree_.weight, capacity_[link]);
    const int sink = links_.target[link];
    capacity_[link] -= units;
    const int64_t missing = updater_.update(flows_[sink], sink, capacity_, units_);
    capacity_[link] += units;
    if (missing == 0) return units;
    ++fails_;
    const int64_t left = units - missing;
    for (size_t e = 0; e < allowed_.size(); ++e) {
      if (allowed_[e] > left && updater_.onSinkSide(links_.target[e]) &&
          !updater_.onSinkSide(links_.source[e])) {
        allowed_[e] = left;
      }
    }
    updater_.finish(flows_[sink], capacity_);
    return left;
  }

  void add(int link) {
    capacity_[link] -= tree_.weight;
    const int from = links_.source[link];
    const int to = links_.target[link];
    tree_.parent[to] = from;
    tree_.depth[to] = tree_.depth[from] + 1;
    links_of_tree_[to] = link;
    --missing_;
  }

  // Reduces the weight of the tree to what some link can take, and adds it.
  void split() {
    ++splits_;
    while (true) {
      int best = -1;
      for (size_t e = 0; e < allowed_.size(); ++e) {
        if (!enters(static_cast<int>(e)) || allowed_[e] < 1) continue;
        if (best < 0 || better(static_cast<int>(e), best)) best = static_cast<int>(e);
      }
      if (best < 0) throw std::logic_error("a tree that cannot be completed");
      const int64_t expected = allowed_[best];
      const int64_t left = test(best);
      if (left < expected) continue;
      reduce(left);
      add(best);
      return;
    }
  }

  bool better(int a, int b) const {
    const auto key = [&](int e) {
      return std::tuple(-allowed_[e], tree_.depth[links_.source[e]], -capacity_[e], e);
    };
    return key(a) < key(b);
  }

  void reduce(int64_t weight) {
    const int64_t back = tree_.weight - weight;
    for (int v = 0; v < links_.servers; ++v) {
      if (tree_.parent[v] >= 0) capacity_[links_of_tree_[v]] += back;
    }
    units_[tree_.root] += back;
    tree_.weight = weight;
    allow(weight);
  }

  const IntegerLinks& links_;
  std::vector<int64_t> capacity_;
  std::vector<int64_t> units_;  // by root, without those of trees that are built
  FlowUpdater updater_;
  std::vector<SinkFlow> flows_;  // of `units_` to each server
  WeightedTree tree_{};
  std::vector<int> links_of_tree_ = std::vector<int>(links_.servers);
  int missing_ = 0;
  std::vector<int64_t> allowed_;  // by link: a bound of what it can take of the tree
  std::vector<int> candidates_;
};

}  // namespace

std::string g_info;

GatherPlan packTrees(int servers, const std::vector<RatedLink>& links,
                     const std::vector<int>& shards) {
  const IntegerLinks exact(servers, links);
  const SlowestCut cut = slowestCut(exact, shards);
  const int64_t k = cut.rate;
  std::vector<int64_t> capacity, units;
  int64_t g = 0;
  for (auto r : exact.rate) g = std::gcd(g, r);
  const int64_t div = std::gcd(k, g);
  for (auto r : exact.rate) capacity.push_back(cut.shards * r / div);
  for (int s : shards) units.push_back(k / div * s);
  TreeBuilder b(exact, capacity, units);
  auto trees = b.all();
  GatherPlan plan;
  plan.units = k / div;
  plan.received.resize(servers);
  std::vector<int32_t> next(servers, 0);
  double mean = 0;
  std::vector<int> histogram(64);
  for (auto& t : trees) {
    int deep = 0;
    for (int v = 0; v < servers; ++v) {
      if (t.parent[v] < 0) continue;
      plan.received[v].push_back({t.root, t.parent[v], next[t.root], (int32_t)(next[t.root] + t.weight), t.depth[v] - 1});
      deep = std::max(deep, t.depth[v]);
    }
    histogram[std::min(deep, 63)] += t.weight;
    plan.steps = std::max(plan.steps, deep);
    next[t.root] += t.weight;
  }
  g_info = "k " + std::to_string(plan.units) + " trees " + std::to_string(trees.size()) + " tests " + std::to_string(b.tests_) + " fails " + std::to_string(b.fails_) + " splits " + std::to_string(b.splits_) + " depths";
  for (int i = 0; i < 64; ++i) if (histogram[i]) g_info += " " + std::to_string(i) + ":" + std::to_string(histogram[i]);
  return plan;
}

}  // namespace topoopt

namespace topoopt {

double busiestLink(const GatherPlan& plan, const std::vector<RatedLink>& links,
                   const std::vector<int>& shards) {
  const IntegerLinks sum(static_cast<int>(plan.received.size()), links);
  std::vector<double> load(sum.count(), 0);
  for (int to = 0; to < sum.servers; ++to) {
    for (const Piece& piece : plan.received[to]) {
      int e = sum.first_in[to];
      while (e < sum.first_in[to + 1] && sum.source[e] != piece.sender) ++e;
      load[e] += static_cast<double>(piece.end - piece.first) / plan.units * shards[piece.origin];
    }
  }
  double most = 0;
  for (size_t e = 0; e < load.size(); ++e) {
    most = std::max(most, load[e] / (static_cast<double>(sum.rate[e]) * sum.unit));
  }
  return most;
}

}  // namespace topoopt
