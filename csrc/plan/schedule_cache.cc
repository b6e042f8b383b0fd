#include "plan/schedule_cache.h"

#include <algorithm>
#include <numeric>

#include "plan/block_schedules.h"
#include "plan/direct_schedules.h"
#include "plan/flooding_schedules.h"
#include "plan/graph_costs.h"
#include "plan/graph_schedules.h"
#include "plan/ring_schedules.h"
#include "plan/torus_schedules.h"
#include "plan/tree_schedules.h"

namespace topoopt {
namespace {

constexpr size_t kMaxEntries = 64;
// Limit over all entries at about a hundred bytes per step. It must hold a training loop's sizes
// even for large rings.
constexpr size_t kLeastMaxSteps = 64 << 10;
constexpr size_t kMaxStepsPerMember = 256;

void addWaiting(PreparedSchedule& prepared, const StepRef& on, int lane) {
  if (on.none() || on.lane == lane) return;
  std::vector<int>& waiting = prepared.waiting[on.lane];
  if (std::find(waiting.begin(), waiting.end(), lane) == waiting.end()) waiting.push_back(lane);
}

Schedule graphSchedule(const ScheduleKey& key, Algorithm algorithm, int rank,
                       const GroupLayout& layout, const CostEstimate& estimate) {
  GraphCosts& costs = *estimate.graph();
  const Request request = requestOf(key);
  const int part = partsOf(layout).graph;
  const bool direct = algorithm == Algorithm::kOneShot;
  const GraphCost cost = costs.of(request, algorithm);
  GraphPlans& plans = costs.plans(cost.set);
  const GraphRun run{cost.rounds, part};
  const auto plan = [&](Direction direction, int origin = GraphPlans::kAllOrigins) -> const auto& {
    if (direct) return plans.oneShot();
    return algorithm == Algorithm::kPacking ? plans.packed(direction, origin).plan
                                            : plans.breadthFirst(direction, origin).plan;
  };
  switch (key.collective) {
    case Collective::kAllReduce:
      if (direct || algorithm == Algorithm::kFlooding) {
        return floodingAllReduceSchedule(layout, plan(Direction::kForward), rank, key.counts[0],
                                         key.element_bytes, part);
      }
      return graphAllReduceSchedule(layout, plan(Direction::kBackward), plan(Direction::kForward),
                                    rank, key.counts[0], key.element_bytes, run);
    case Collective::kBroadcast:
      return graphBroadcastSchedule(layout, plan(Direction::kForward, layout.placeOf(key.root)),
                                    rank, key.root, key.counts[0], key.element_bytes, run);
    case Collective::kReduce:
      return graphReduceSchedule(layout, plan(Direction::kBackward, layout.placeOf(key.root)), rank,
                                 key.root, key.counts[0], key.element_bytes, run);
    case Collective::kAllGather:
      return graphAllGatherSchedule(layout, plan(Direction::kForward), rank, key.counts,
                                    key.element_bytes, run);
    case Collective::kReduceScatter:
      return graphReduceScatterSchedule(layout, plan(Direction::kBackward), rank, key.counts,
                                        key.element_bytes, run);
    case Collective::kScatter:
      return graphScatterSchedule(
          layout, plans.scattered(Direction::kForward, layout.placeOf(key.root)).plan, rank,
          key.root, key.counts, key.element_bytes, run);
    case Collective::kGather:
      return graphGatherSchedule(
          layout, plans.scattered(Direction::kBackward, layout.placeOf(key.root)).plan, rank,
          key.root, key.counts, key.element_bytes, run);
    case Collective::kExchange:
    case Collective::kBarrier:
      break;
  }
  return {};
}

}  // namespace

ExchangedCounts exchangedCounts(const ScheduleKey& key, int rank) {
  if (key.collective == Collective::kExchange) return {key.counts, key.received};
  std::vector<size_t> own(key.counts.size(), 0);
  own[key.root] = key.counts[rank];
  const bool gathers = key.collective == Collective::kGather;
  if (rank != key.root) {
    std::vector<size_t> none(own.size(), 0);
    return gathers ? ExchangedCounts{own, none} : ExchangedCounts{none, own};
  }
  return gathers ? ExchangedCounts{own, key.counts} : ExchangedCounts{key.counts, own};
}

PreparedSchedule prepare(Algorithm algorithm, Schedule schedule) {
  PreparedSchedule prepared{algorithm, std::move(schedule), 0, {}, {}, {}};
  const std::vector<Lane>& lanes = prepared.schedule.lanes;
  prepared.waiting.resize(lanes.size());
  for (size_t i = 0; i < lanes.size(); ++i) {
    const Lane& lane = lanes[i];
    const size_t steps = lane.receives.size() + lane.sends.size();
    prepared.steps += steps;
    for (const Receive& receive : lane.receives) {
      addWaiting(prepared, receive.after, static_cast<int>(i));
      addWaiting(prepared, receive.after_send, static_cast<int>(i));
    }
    size_t bytes = 0;
    for (const Send& send : lane.sends) {
      addWaiting(prepared, send.after, static_cast<int>(i));
      bytes += send.from.bytes;
    }
    if (lane.part == kInsideServer) continue;
    const size_t part = static_cast<size_t>(lane.part);
    if (prepared.part_steps.size() <= part) {
      prepared.part_steps.resize(part + 1, 0);
      prepared.part_bytes.resize(part + 1, 0);
    }
    prepared.part_steps[part] += steps;
    prepared.part_bytes[part] += bytes;
  }
  return prepared;
}

ScheduleCache::ScheduleCache(GroupLayout layout, int rank, const CostModel& model,
                             std::optional<Algorithm> forced)
    : layout_(std::move(layout)), rank_(rank), estimate_(layout_, model), forced_(forced) {}

Request requestOf(const ScheduleKey& key) {
  const size_t count = std::accumulate(key.counts.begin(), key.counts.end(), size_t{0});
  return {key.collective, count * key.element_bytes, key.root, key.commutative};
}

std::shared_ptr<const PreparedSchedule> ScheduleCache::get(const ScheduleKey& key) {
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->key != key) continue;
    entries_.splice(entries_.begin(), entries_, entry);
    return entry->prepared;
  }
  auto prepared = build(key, estimate_.choose(requestOf(key), forced_));
  kept_steps_ += prepared->steps;
  entries_.push_front({key, prepared});
  const size_t max_steps =
      std::max(kLeastMaxSteps, kMaxStepsPerMember * static_cast<size_t>(layout_.size()));
  while (entries_.size() > 1 && (entries_.size() > kMaxEntries || kept_steps_ > max_steps)) {
    kept_steps_ -= entries_.back().prepared->steps;
    entries_.pop_back();
  }
  return prepared;
}

std::shared_ptr<const PreparedSchedule> ScheduleCache::build(const ScheduleKey& key,
                                                             Algorithm algorithm) const {
  return std::make_shared<const PreparedSchedule>(
      prepare(algorithm, scheduleFor(key, algorithm, rank_, layout_, estimate_)));
}

Schedule scheduleFor(const ScheduleKey& key, Algorithm algorithm, int rank,
                     const GroupLayout& layout, const CostEstimate& estimate) {
  const Rings rings = algorithm == Algorithm::kRing ? Rings::kFirst : Rings::kAll;
  const std::vector<int>& order = layout.plannedRings()[0].servers;
  const Request request = requestOf(key);
  const int direct = partsOf(layout).direct;
  if (algorithm >= Algorithm::kBreadthFirst) {
    return graphSchedule(key, algorithm, rank, layout, estimate);
  }
  switch (key.collective) {
    case Collective::kAllReduce:
      if (algorithm == Algorithm::kDoubling) {
        return doublingAllReduceSchedule(order, rank, key.counts[0], key.element_bytes, direct);
      }
      if (algorithm == Algorithm::kTorus) {
        return torusAllReduceSchedule(layout, rank, key.counts[0], key.element_bytes,
                                      partsOf(layout).torus);
      }
      if (algorithm == Algorithm::kSwing) {
        return swingAllReduceSchedule(layout.grid(), rank, key.counts[0], key.element_bytes,
                                      direct);
      }
      if (algorithm == Algorithm::kTree) {
        return treeAllReduceSchedule(estimate.trees(request, algorithm), rank, key.counts[0],
                                     key.element_bytes);
      }
      return allReduceSchedule(layout, rings, rank, key.counts[0], key.element_bytes);
    case Collective::kBroadcast:
      return treeBroadcastSchedule(estimate.trees(request, algorithm), rank, key.counts[0],
                                   key.element_bytes);
    case Collective::kReduce:
      return treeReduceSchedule(estimate.trees(request, algorithm), rank, key.counts[0],
                                key.element_bytes);
    case Collective::kAllGather:
      return allGatherSchedule(layout, rings, rank, key.counts, key.element_bytes);
    case Collective::kReduceScatter:
      return reduceScatterSchedule(layout, rings, rank, key.counts, key.element_bytes);
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kExchange: {
      const ExchangedCounts counts = exchangedCounts(key, rank);
      return exchangeSchedule(rank, counts.sent, counts.received, direct);
    }
    case Collective::kBarrier:
      if (algorithm == Algorithm::kDoubling) return disseminationSchedule(order, rank, direct);
      return treeAllReduceSchedule(estimate.trees(request, algorithm), rank, 1, 1);
  }
  return {};
}

}  // namespace topoopt
