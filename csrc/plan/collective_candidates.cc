#include "plan/collective_candidates.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "plan/direct_schedules.h"
#include "plan/graph_costs.h"
#include "plan/remaining_rings.h"
#include "plan/schedule_cache.h"
#include "plan/shortest_paths.h"

namespace topoopt {
namespace {

constexpr size_t kCountedBytes = 16 << 10;

ScheduleKey keyOf(Collective collective, size_t bytes, int servers) {
  ScheduleKey key;
  key.collective = collective;
  key.commutative = true;
  if (collective == Collective::kAllGather || collective == Collective::kReduceScatter) {
    for (int i = 0; i < servers; ++i) key.counts.push_back(divide({0, bytes}, servers, i).count);
  } else {
    key.counts = {bytes};
  }
  return key;
}

size_t depthOf(const std::vector<TreeShare>& trees) {
  size_t most = 0;
  for (const TreeShare& share : trees) {
    for (size_t member = 0; member < share.tree.parent.size(); ++member) {
      size_t depth = 0;
      for (int at = static_cast<int>(member); share.tree.parent[at] >= 0;
           at = share.tree.parent[at]) {
        ++depth;
      }
      most = std::max(most, depth);
    }
  }
  return most;
}

size_t stepsOf(const Request& request, Algorithm algorithm, const GroupLayout& layout,
               const CostEstimate& estimate) {
  const size_t servers = layout.leaders().size();
  const bool twice = request.collective == Collective::kAllReduce;
  switch (algorithm) {
    case Algorithm::kDirect:
    case Algorithm::kOneShot:
      return 1;
    case Algorithm::kDoubling: {
      const size_t rounds = doublingRounds(servers);
      return (size_t{1} << rounds) < servers ? rounds + 2 : rounds;
    }
    case Algorithm::kSwing:
      return doublingRounds(servers);
    case Algorithm::kTorus:
      return 2 * (layout.grid().size() + layout.grid().front().size() - 2);
    case Algorithm::kTree:
    case Algorithm::kBothWays:
      return (twice ? 2 : 1) * depthOf(estimate.trees(request, algorithm));
    case Algorithm::kRing:
    case Algorithm::kMultiRing:
      return (twice ? 2 : 1) * (servers - 1);
    case Algorithm::kBreadthFirst:
    case Algorithm::kPacking:
    case Algorithm::kFlooding:
      return estimate.graph()->stepsOf(request, algorithm);
  }
  return 0;
}

}  // namespace

GraphGroup::GraphGroup(int servers, std::vector<RatedLink> links, std::vector<plan::Ring> rings,
                       CostModel cost)
    : slowest_(0), links_(std::move(links)) {
  if (servers < 2) throw std::invalid_argument("servers: a collective needs 2");
  checkLinks(servers, links_);
  for (const RatedLink& link : links_) {
    slowest_ = slowest_ == 0 ? link.rate : std::min(slowest_, link.rate);
  }
  ShortestPaths paths(servers, links_);
  paths.checkJoined();
  next_hop_ = std::move(paths.next);
  std::vector<LinkLeft> left;
  std::vector<RatedLink> relative = links_;
  for (RatedLink& link : relative) {
    link.rate /= slowest_;
    left.push_back({link.source, link.target, link.rate, link.rate});
  }
  const auto hops = std::make_shared<HopTable>(servers, std::move(paths.hops));
  if (rings.empty()) {
    std::vector<int> order(static_cast<size_t>(servers));
    std::iota(order.begin(), order.end(), 0);
    rings = remainingRings({{order, 1.0}}, [&](int a, int b) { return hops->at(a, b); }, left);
  }
  layout_ = std::make_unique<GroupLayout>(servers, std::move(rings), std::vector<int>(), hops);
  layout_->setLinks(std::move(relative));
  cost.beta_s_per_byte = 1 / slowest_;
  estimate_ = std::make_unique<CostEstimate>(*layout_, cost);
}

GraphGroup::~GraphGroup() = default;

CollectiveCandidates GraphGroup::candidates(Collective collective, size_t bytes) const {
  const Request request{collective, bytes, 0, true};
  CollectiveCandidates found;
  for (const Algorithm algorithm : estimate_->candidates(request)) {
    found.list.push_back({nameOf(algorithm), stepsOf(request, algorithm, *layout_, *estimate_),
                          estimate_->seconds(request, algorithm),
                          busiestLinkBytes(collective, bytes, algorithm)});
  }
  found.chosen = nameOf(estimate_->choose(request, std::nullopt));
  found.bound_seconds = estimate_->graph()->boundSeconds(request);
  found.bound_bytes = found.bound_seconds * slowest_;
  return found;
}

const GatherPlan& GraphGroup::plan(const std::string& algorithm, Direction direction,
                                   int origin) const {
  GraphPlans& plans = estimate_->graph()->plans(0);
  const auto named = algorithmNamed(algorithm);
  if (named == Algorithm::kPacking) return plans.packed(direction, origin).plan;
  if (named == Algorithm::kOneShot) return plans.oneShot();
  if (named == Algorithm::kBreadthFirst || named == Algorithm::kFlooding) {
    return plans.breadthFirst(direction, origin).plan;
  }
  throw std::invalid_argument("algorithm: '" + algorithm + "' does not move shards over links");
}

// Sums the sends of all members' schedules; each takes one shortest path.
double GraphGroup::busiestLinkBytes(Collective collective, size_t bytes,
                                    Algorithm algorithm) const {
  std::map<std::pair<int, int>, double> rates;
  for (const RatedLink& link : links_) rates[{link.source, link.target}] += link.rate / slowest_;
  std::map<std::pair<int, int>, double> carried;
  // Loads are proportional to bytes; few bytes are one chunk each.
  const size_t counted = std::min(bytes, kCountedBytes * static_cast<size_t>(layout_->size()));
  const ScheduleKey key = keyOf(collective, counted, layout_->size());
  for (int rank = 0; rank < layout_->size(); ++rank) {
    const Schedule schedule = scheduleFor(key, algorithm, rank, *layout_, *estimate_);
    for (const Lane& lane : schedule.lanes) {
      for (const Send& send : lane.sends) {
        for (int at = rank; at != send.peer;) {
          const int next = next_hop_[at][send.peer];
          carried[{at, next}] += static_cast<double>(send.from.bytes);
          at = next;
        }
      }
    }
  }
  double most = 0;
  for (const auto& [link, sent] : carried) most = std::max(most, sent / rates.at(link));
  return counted == 0 ? 0 : most * static_cast<double>(bytes) / static_cast<double>(counted);
}

}  // namespace topoopt
