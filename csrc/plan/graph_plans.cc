#include "plan/graph_plans.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "plan/cut_bound.h"
#include "plan/scatter_plan.h"
#include "plan/tree_packing.h"

namespace topoopt {
namespace {

LinkSet sorted(LinkSet links) {
  std::sort(links.begin(), links.end(), [](const RatedLink& a, const RatedLink& b) {
    return std::tie(a.source, a.target, a.rate) < std::tie(b.source, b.target, b.rate);
  });
  return links;
}

std::vector<int> shardsOf(int servers, int origin) {
  std::vector<int> shards(static_cast<size_t>(servers), origin == GraphPlans::kAllOrigins ? 1 : 0);
  if (origin != GraphPlans::kAllOrigins) shards[origin] = 1;
  return shards;
}

}  // namespace

GraphPlans::GraphPlans(int servers, LinkSet links, Hops hops)
    : servers_(servers),
      hops_(std::move(hops)),
      forward_(sorted(std::move(links))),
      backward_(sorted(reversed(forward_))),
      symmetric_(forward_ == backward_) {}

GraphPlans::Key GraphPlans::keyOf(Direction direction, int origin) const {
  return {symmetric_ ? Direction::kForward : direction, origin};
}

const LinkSet& GraphPlans::linksOf(Direction direction) const {
  return direction == Direction::kForward ? forward_ : backward_;
}

LoadedPlan GraphPlans::loaded(GatherPlan plan, Direction direction) const {
  const PlanLoad load = loadOf(plan, linksOf(direction));
  std::vector<int> longest(static_cast<size_t>(plan.steps), 0);
  for (size_t server = 0; server < plan.received.size(); ++server) {
    const int receiver = static_cast<int>(server);
    for (const Piece& piece : plan.received[server]) {
      const bool forward = direction == Direction::kForward;
      const int hops = forward ? hops_(piece.sender, receiver) : hops_(receiver, piece.sender);
      longest[piece.step] = std::max(longest[piece.step], hops);
    }
  }
  return {std::move(plan), load, std::accumulate(longest.begin(), longest.end(), 0)};
}

const LoadedPlan& GraphPlans::breadthFirst(Direction direction, int origin) {
  const auto [entry, added] = breadth_first_.try_emplace(keyOf(direction, origin));
  if (added) {
    std::vector<int> origins;
    if (origin != kAllOrigins) origins.push_back(origin);
    entry->second = loaded(topoopt::breadthFirst(servers_, linksOf(direction), origins), direction);
  }
  return entry->second;
}

const LoadedPlan& GraphPlans::packed(Direction direction, int origin) {
  const auto [entry, added] = packed_.try_emplace(keyOf(direction, origin));
  if (added) {
    entry->second =
        loaded(packTrees(servers_, linksOf(direction), shardsOf(servers_, origin)), direction);
  }
  return entry->second;
}

double GraphPlans::boundSeconds(Direction direction, int origin) {
  const auto [entry, added] = bounds_.try_emplace(keyOf(direction, origin), 0.0);
  if (added) {
    entry->second = cutBound(servers_, linksOf(direction), shardsOf(servers_, origin)).seconds;
  }
  return entry->second;
}

const LoadedPlan& GraphPlans::scattered(Direction direction, int root) {
  const auto [entry, added] = scattered_.try_emplace(keyOf(direction, root));
  if (added) {
    entry->second = loaded(scatterPlan(servers_, linksOf(direction), root), direction);
  }
  return entry->second;
}

double GraphPlans::scatterBoundSeconds(Direction direction, int root) {
  return scatterBound(servers_, linksOf(direction), root);
}

const GatherPlan& GraphPlans::oneShot() {
  if (one_shot_.received.empty()) one_shot_ = topoopt::oneShot(servers_);
  return one_shot_;
}

}  // namespace topoopt
