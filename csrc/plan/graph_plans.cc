#include "plan/graph_plans.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "plan/cut_bound.h"
#include "plan/tree_packing.h"

namespace topoopt {
namespace {

std::vector<RatedLink> sorted(std::vector<RatedLink> links) {
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

GraphPlans::GraphPlans(int servers, std::vector<RatedLink> links)
    : servers_(servers),
      forward_(sorted(std::move(links))),
      backward_(sorted(reversed(forward_))),
      symmetric_(forward_ == backward_) {}

GraphPlans::Key GraphPlans::keyOf(Direction direction, int origin) const {
  return {symmetric_ ? Direction::kForward : direction, origin};
}

const std::vector<RatedLink>& GraphPlans::linksOf(Direction direction) const {
  return direction == Direction::kForward ? forward_ : backward_;
}

const LoadedPlan& GraphPlans::breadthFirst(Direction direction, int origin) {
  const auto [entry, added] = breadth_first_.try_emplace(keyOf(direction, origin));
  if (added) {
    std::vector<int> origins;
    if (origin != kAllOrigins) origins.push_back(origin);
    entry->second.plan = topoopt::breadthFirst(servers_, linksOf(direction), origins);
    entry->second.load = loadOf(entry->second.plan, linksOf(direction));
  }
  return entry->second;
}

const LoadedPlan& GraphPlans::packed(Direction direction, int origin) {
  const auto [entry, added] = packed_.try_emplace(keyOf(direction, origin));
  if (added) {
    entry->second.plan = packTrees(servers_, linksOf(direction), shardsOf(servers_, origin));
    entry->second.load = loadOf(entry->second.plan, linksOf(direction));
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

const GatherPlan& GraphPlans::oneShot() {
  if (one_shot_.received.empty()) one_shot_ = topoopt::oneShot(servers_);
  return one_shot_;
}

}  // namespace topoopt
