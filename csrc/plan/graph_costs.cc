#include "plan/graph_costs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "plan/schedule.h"

namespace topoopt {
namespace {

constexpr double kMostMessageBytes = 512 << 10;  // larger ones are not faster
constexpr double kLeastRoundBytes = 4 << 10;     // of a shard: smaller ones are mostly headers
constexpr size_t kMostRounds = 4096;
// More rounds at nearly equal cost: links that run late then delay less of what follows.
constexpr double kEvenly = 1.005;
constexpr double kEvenRoundBytes = 64 << 10;

}  // namespace

GraphCosts::GraphCosts(const GroupLayout& layout, const CostModel& model)
    : layout_(layout),
      model_(model),
      plans_(static_cast<int>(layout.leaders().size()), layout.links()),
      servers_(static_cast<double>(layout.leaders().size())) {
  for (const int source : layout.leaders()) {
    for (const int target : layout.leaders()) {
      const double hops = layout.hops(source, target);
      longest_route_ = std::max(longest_route_, hops);
      all_hops_ += hops;
    }
  }
  degree_ = static_cast<double>(layout.links().size()) / servers_;
}

std::vector<GraphCosts::Pass> GraphCosts::passesOf(const Request& request) const {
  switch (request.collective) {
    case Collective::kAllGather:
      return {{Direction::kForward, GraphPlans::kAllOrigins}};
    case Collective::kReduceScatter:
      return {{Direction::kBackward, GraphPlans::kAllOrigins}};
    case Collective::kAllReduce:
      return {{Direction::kBackward, GraphPlans::kAllOrigins},
              {Direction::kForward, GraphPlans::kAllOrigins}};
    case Collective::kBroadcast:
      return {{Direction::kForward, layout_.placeOf(request.root)}};
    case Collective::kReduce:
      return {{Direction::kBackward, layout_.placeOf(request.root)}};
    case Collective::kExchange:
    case Collective::kBarrier:
      break;
  }
  return {};
}

double GraphCosts::shardBytes(const Request& request) const {
  const bool rooted =
      request.collective == Collective::kBroadcast || request.collective == Collective::kReduce;
  return static_cast<double>(request.bytes) / (rooted ? 1.0 : servers_);
}

// As on rings, every step of an AllReduce counts.
double GraphCosts::reduction(const Request& request) const {
  const double bytes = static_cast<double>(request.bytes);
  const double around = (servers_ - 1) / servers_;
  switch (request.collective) {
    case Collective::kAllReduce:
      return 2 * around * bytes * model_.gamma_s_per_byte;
    case Collective::kReduceScatter:
      return around * bytes * model_.gamma_s_per_byte;
    case Collective::kReduce:
      return bytes * model_.gamma_s_per_byte;
    default:
      return 0;
  }
}

const LoadedPlan& GraphCosts::planOf(const Pass& pass, Algorithm algorithm) {
  return algorithm == Algorithm::kPacking ? plans_.packed(pass.direction, pass.origin)
                                          : plans_.breadthFirst(pass.direction, pass.origin);
}

PlanLoad GraphCosts::loadOf(const Request& request, Algorithm algorithm) {
  PlanLoad load;
  for (const Pass& pass : passesOf(request)) {
    const LoadedPlan& loaded = planOf(pass, algorithm);
    load.steps_s += loaded.load.steps_s;
    load.busiest_s += loaded.load.busiest_s;
  }
  return load;
}

size_t GraphCosts::stepsOf(const Request& request, Algorithm algorithm) {
  if (algorithm == Algorithm::kOneShot) return 1;
  if (algorithm == Algorithm::kFlooding) {
    return static_cast<size_t>(plans_.breadthFirst(Direction::kForward).plan.steps);
  }
  size_t steps = 0;
  for (const Pass& pass : passesOf(request)) {
    steps += static_cast<size_t>(planOf(pass, algorithm).plan.steps);
  }
  return steps;
}

double GraphCosts::boundSeconds(const Request& request) {
  double bound_s = 0;
  for (const Pass& pass : passesOf(request)) {
    bound_s += plans_.boundSeconds(pass.direction, pass.origin);
  }
  return bound_s * shardBytes(request) * model_.beta_s_per_byte;
}

// Rounds follow each other through the steps: in one round, the busiest link of each step decides;
// with many, the busiest link of all steps together does.
GraphCost GraphCosts::inRounds(const Request& request, Algorithm algorithm) {
  const double shard = shardBytes(request);
  const auto steps = static_cast<double>(stepsOf(request, algorithm));
  const PlanLoad load = loadOf(request, algorithm);
  double least = std::ceil(shard / kMostMessageBytes);
  // Sums that may not change the input wait in scratch memory until their round is through all
  // steps.
  const double scratch = static_cast<double>(request.bytes) / kScratchLimitBytes;
  if (scratch > 1 && (request.collective == Collective::kReduceScatter ||
                      request.collective == Collective::kReduce)) {
    least = std::max(least, std::ceil(scratch * (steps + 2)));
  }
  GraphCost best{std::numeric_limits<double>::infinity(), 1};
  const double links_s = shard * model_.beta_s_per_byte;
  for (size_t rounds = 1; rounds <= kMostRounds; rounds *= 2) {
    const double all = static_cast<double>(rounds);
    if (all < least && rounds < kMostRounds) continue;
    if (rounds > 1 && all > least && shard / all < kLeastRoundBytes) break;
    const double seconds = (steps + all - 1) * model_.alpha_s + steps * model_.per_hop_latency_s +
                           links_s * (load.steps_s / all + load.busiest_s * (1 - 1 / all));
    const bool even = seconds < kEvenly * best.seconds && shard / all >= kEvenRoundBytes;
    if (seconds < best.seconds || even) {
      best = {std::min(seconds, best.seconds), rounds};
    }
  }
  best.seconds += reduction(request);
  return best;
}

double GraphCosts::flooding(const Request& request) {
  const LoadedPlan& loaded = plans_.breadthFirst(Direction::kForward);
  const double bytes = static_cast<double>(request.bytes);
  return loaded.plan.steps * (model_.alpha_s + model_.per_hop_latency_s) +
         bytes * loaded.load.steps_s * model_.beta_s_per_byte +
         (servers_ - 1) * bytes * model_.gamma_s_per_byte;
}

// A server's messages leave its links one after the other; all links carry them evenly.
double GraphCosts::oneShot(const Request& request) const {
  const bool whole = request.collective == Collective::kAllReduce;
  const double bytes = static_cast<double>(request.bytes) / (whole ? 1.0 : servers_);
  const double messages = std::ceil((servers_ - 1) / degree_);
  const double reduced = request.collective == Collective::kAllGather ? 0 : (servers_ - 1) * bytes;
  return messages * model_.alpha_s + longest_route_ * model_.per_hop_latency_s +
         bytes * all_hops_ / (servers_ * degree_) * model_.beta_s_per_byte +
         reduced * model_.gamma_s_per_byte;
}

GraphCost GraphCosts::of(const Request& request, Algorithm algorithm) {
  if (algorithm == Algorithm::kFlooding) return {flooding(request), 1};
  if (algorithm == Algorithm::kOneShot) return {oneShot(request), 1};
  return inRounds(request, algorithm);
}

bool GraphCosts::mayGainFromPacking(const Request& request) {
  const PlanLoad load = loadOf(request, Algorithm::kBreadthFirst);
  const double shard_s = shardBytes(request) * model_.beta_s_per_byte;
  const double bound_s = boundSeconds(request);
  return load.busiest_s * shard_s > kCloseToBound * bound_s &&
         load.steps_s * shard_s - bound_s > model_.alpha_s + model_.per_hop_latency_s;
}

}  // namespace topoopt
