#include "plan/scatter_plan.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "plan/breadth_first.h"
#include "plan/cut_bound.h"
#include "plan/integer_links.h"
#include "plan/sink_flow.h"

namespace topoopt {
namespace {

constexpr int64_t kMostUnits = 5040;  // of a block

// Flows of blocks from all servers to the root.
class RootFlow {
 public:
  RootFlow(const IntegerLinks& links, int root)
      : links_(links), root_(root), flows_(links), supply_(links.servers, 1) {
    supply_[root] = 0;
    std::vector<char> inside(links.servers, 1);
    inside[root] = 0;
    take(inside);
    while (route(slowest_.rate) > 0) {
      for (int v = 0; v < links.servers; ++v) inside[v] = !flows_.onSinkSide(v);
      take(inside);
    }
  }

  const SlowestCut& slowest() const { return slowest_; }

  // Units on every link, for blocks of so many units.
  const std::vector<int64_t>& inUnits(int64_t units) {
    route(units);
    return flow_.link;
  }

 private:
  // Sends blocks of so many units at the rate of the slowest cut; returns the units that find no
  // path. Capacities are rounded up, so that a path exists.
  int64_t route(int64_t units) {
    std::vector<int64_t> capacity;
    for (const int64_t rate : links_.rate) {
      capacity.push_back((units * slowest_.shards * rate + slowest_.rate - 1) / slowest_.rate);
    }
    std::vector<int64_t> supply = supply_;
    for (int64_t& number : supply) number *= units;
    flow_ = {std::vector<int64_t>(links_.count(), 0), std::vector<int64_t>(supply.size(), 0)};
    return flows_.update(flow_, root_, capacity, supply);
  }

  void take(const std::vector<char>& inside) {
    slowest_ = {0, 0, {}};
    for (int v = 0; v < links_.servers; ++v) {
      if (inside[v]) slowest_.shards += supply_[v];
    }
    for (size_t e = 0; e < links_.count(); ++e) {
      if (inside[links_.source[e]] && !inside[links_.target[e]]) slowest_.rate += links_.rate[e];
    }
    const int64_t divisor = std::gcd(slowest_.shards, slowest_.rate);
    slowest_.shards /= divisor;
    slowest_.rate /= divisor;
  }

  const IntegerLinks& links_;
  const int root_;
  FlowUpdater flows_;
  std::vector<int64_t> supply_;
  SlowestCut slowest_;
  SinkFlow flow_;
};

// Links from the root; throws if it does not reach a server.
std::vector<int> depths(int servers, const LinkSet& links, int root) {
  std::vector<int> depth(static_cast<size_t>(servers), -1);
  depth[root] = 0;
  std::vector<int> found{root};
  for (size_t i = 0; i < found.size(); ++i) {
    for (const RatedLink& link : links) {
      if (link.source != found[i] || depth[link.target] >= 0) continue;
      depth[link.target] = depth[link.source] + 1;
      found.push_back(link.target);
    }
  }
  const auto lost = std::find(depth.begin(), depth.end(), -1);
  if (lost != depth.end()) {
    throw std::invalid_argument("links: no path from server " + std::to_string(root) +
                                " to server " + std::to_string(lost - depth.begin()));
  }
  return depth;
}

struct BlockPart {
  int origin;
  int32_t first;
  int32_t end;
};

}  // namespace

GatherPlan scatterPlan(int servers, const LinkSet& links, int root) {
  LinkSet nearer = reversed(links);
  const IntegerLinks checked(servers, nearer);
  const std::vector<int> depth = depths(servers, links, root);
  std::erase_if(
      nearer, [&](const RatedLink& link) { return depth[link.target] != depth[link.source] - 1; });
  GatherPlan plan;
  plan.received.resize(static_cast<size_t>(servers));
  if (servers == 1) return plan;
  const IntegerLinks towards(servers, nearer);
  RootFlow flow(towards, root);
  plan.units = static_cast<int32_t>(std::min(flow.slowest().rate, kMostUnits));
  plan.steps = *std::max_element(depth.begin(), depth.end());
  const std::vector<int64_t>& units = flow.inUnits(plan.units);
  std::vector<int> order(static_cast<size_t>(servers));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return depth[a] > depth[b]; });
  order.pop_back();  // the root
  std::vector<std::vector<BlockPart>> held(static_cast<size_t>(servers));
  for (const int v : order) {
    held[v].push_back({v, 0, plan.units});
    auto next = held[v].begin();
    for (int i = towards.first_out[v]; i < towards.first_out[v + 1]; ++i) {
      const int e = towards.out[i];
      for (int64_t left = units[e]; left > 0;) {
        const auto part = static_cast<int32_t>(std::min<int64_t>(left, next->end - next->first));
        const BlockPart block{next->origin, next->first, next->first + part};
        const int step = plan.steps - 1 - (depth[block.origin] - depth[v]);
        plan.received[v].push_back({block.origin, towards.target[e], block.first, block.end, step});
        held[towards.target[e]].push_back(block);
        next->first += part;
        left -= part;
        if (next->first == next->end) ++next;
      }
    }
    std::sort(plan.received[v].begin(), plan.received[v].end(), [](const Piece& a, const Piece& b) {
      return std::tuple(a.step, a.origin, a.first) < std::tuple(b.step, b.origin, b.first);
    });
  }
  return plan;
}

double scatterBound(int servers, const LinkSet& links, int root) {
  const IntegerLinks towards(servers, reversed(links));
  depths(servers, links, root);
  if (servers == 1) return 0;
  const RootFlow flow(towards, root);
  return static_cast<double>(flow.slowest().shards) / static_cast<double>(flow.slowest().rate) /
         towards.unit;
}

}  // namespace topoopt
