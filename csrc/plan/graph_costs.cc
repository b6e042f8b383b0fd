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
// Load of the root's busiest link if all servers take their routes to it, over the mean of its
// links: 1.00 to 1.34 on planned networks of 8 to 64 servers.
constexpr double kUnevenRoutes = 1.1;

}  // namespace

GraphCosts::GraphCosts(const GroupLayout& layout, const CostModel& model)
    : layout_(layout), model_(model), servers_(static_cast<double>(layout.leaders().size())) {
  const std::vector<int>& leaders = layout.leaders();
  for (const int source : leaders) {
    for (const int target : leaders) {
      const double hops = layout.hops(source, target);
      longest_route_ = std::max(longest_route_, hops);
      all_hops_ += hops;
    }
  }
  const auto hops = [&layout](int source, int target) {
    return layout.hops(layout.leaders()[source], layout.leaders()[target]);
  };
  size_t relayed_sets = 0;
  for (const LinkSet& links : layout.linkSets()) {
    plans_.emplace_back(static_cast<int>(leaders.size()), links, hops);
    double rates = 0;
    double capacity = 0;
    for (const RatedLink& link : links) {
      rates += link.rate;
      capacity += link.rate * hops(link.source, link.target);
      // The first set with relays has fair rates.
      if (hops(link.source, link.target) > 1 && relayed_sets == 0) {
        slowest_pair_ = std::max(slowest_pair_, 1 / link.rate);
      }
    }
    if (slowest_pair_ > 0) ++relayed_sets;
    degree_ = std::max(degree_, rates / servers_);
    capacity_ = std::max(capacity_, capacity);
  }
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
    case Collective::kScatter:
      return {{Direction::kForward, layout_.placeOf(request.root), true}};
    case Collective::kGather:
      return {{Direction::kBackward, layout_.placeOf(request.root), true}};
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

const LoadedPlan& GraphCosts::planOf(const Pass& pass, Algorithm algorithm, size_t set) {
  GraphPlans& plans = plans_[set];
  if (pass.scatters) return plans.scattered(pass.direction, pass.origin);
  return algorithm == Algorithm::kPacking ? plans.packed(pass.direction, pass.origin)
                                          : plans.breadthFirst(pass.direction, pass.origin);
}

GraphCosts::Passes GraphCosts::planned(const Request& request, Algorithm algorithm, size_t set) {
  Passes passes;
  for (const Pass& pass : passesOf(request)) {
    const LoadedPlan& loaded = planOf(pass, algorithm, set);
    passes.load.steps_s += loaded.load.steps_s;
    passes.load.busiest_s += loaded.load.busiest_s;
    passes.steps += loaded.plan.steps;
    passes.hops += loaded.hops;
  }
  return passes;
}

size_t GraphCosts::stepsOf(const Request& request, Algorithm algorithm) {
  if (algorithm == Algorithm::kOneShot) return 1;
  const size_t set = of(request, algorithm).set;
  if (algorithm == Algorithm::kFlooding) {
    return static_cast<size_t>(plans_[set].breadthFirst(Direction::kForward).plan.steps);
  }
  return static_cast<size_t>(planned(request, algorithm, set).steps);
}

std::pair<size_t, double> GraphCosts::bestSet(const Request& request) {
  std::pair<size_t, double> best{0, std::numeric_limits<double>::infinity()};
  for (size_t set = 0; set < plans_.size(); ++set) {
    double bound_s = 0;
    for (const Pass& pass : passesOf(request)) {
      bound_s += pass.scatters ? plans_[set].scatterBoundSeconds(pass.direction, pass.origin)
                               : plans_[set].boundSeconds(pass.direction, pass.origin);
    }
    if (bound_s < best.second) best = {set, bound_s};
  }
  return best;
}

double GraphCosts::boundSeconds(const Request& request) {
  return bestSet(request).second * shardBytes(request) * model_.beta_s_per_byte;
}

// Rounds follow each other through the steps: in one round, the busiest link of each step decides;
// with many, the busiest link of all steps together does.
GraphCost GraphCosts::inRounds(const Request& request, Algorithm algorithm, size_t set) {
  const double shard = shardBytes(request);
  const Passes passes = planned(request, algorithm, set);
  const double steps = passes.steps;
  const PlanLoad& load = passes.load;
  double least = std::ceil(shard / kMostMessageBytes);
  // Sums that may not change the input, and blocks of others, wait in scratch memory until their
  // round is through all steps.
  const double scratch = static_cast<double>(request.bytes) / kScratchLimitBytes;
  if (scratch > 1 &&
      (request.collective == Collective::kReduceScatter ||
       request.collective == Collective::kReduce || request.collective == Collective::kScatter ||
       request.collective == Collective::kGather)) {
    least = std::max(least, std::ceil(scratch * (steps + 2)));
  }
  GraphCost best{std::numeric_limits<double>::infinity(), 1, set};
  const double links_s = shard * model_.beta_s_per_byte;
  for (size_t rounds = 1; rounds <= kMostRounds; rounds *= 2) {
    const double all = static_cast<double>(rounds);
    if (all < least && rounds < kMostRounds) continue;
    if (rounds > 1 && all > least && shard / all < kLeastRoundBytes) break;
    const double seconds = (steps + all - 1) * model_.alpha_s +
                           passes.hops * model_.per_hop_latency_s +
                           links_s * (load.steps_s / all + load.busiest_s * (1 - 1 / all));
    const bool even = seconds < kEvenly * best.seconds && shard / all >= kEvenRoundBytes;
    if (seconds < best.seconds || even) {
      best = {std::min(seconds, best.seconds), rounds, set};
    }
  }
  best.seconds += reduction(request);
  return best;
}

double GraphCosts::flooding(const Request& request, size_t set) {
  const LoadedPlan& loaded = plans_[set].breadthFirst(Direction::kForward);
  const double bytes = static_cast<double>(request.bytes);
  return loaded.plan.steps * model_.alpha_s + loaded.hops * model_.per_hop_latency_s +
         bytes * loaded.load.steps_s * model_.beta_s_per_byte +
         (servers_ - 1) * bytes * model_.gamma_s_per_byte;
}

// A server's messages leave its links one after the other. All links carry them evenly, unless the
// group knows better.
double GraphCosts::oneShot(const Request& request) const {
  const bool whole = request.collective == Collective::kAllReduce;
  const double bytes = static_cast<double>(request.bytes) / (whole ? 1.0 : servers_);
  const double messages = std::ceil((servers_ - 1) / degree_);
  const double reduced = request.collective == Collective::kAllGather ? 0 : (servers_ - 1) * bytes;
  return messages * model_.alpha_s + longest_route_ * model_.per_hop_latency_s +
         bytes * std::max(all_hops_ / capacity_, layout_.routeLoads().pairs) *
             model_.beta_s_per_byte +
         reduced * model_.gamma_s_per_byte;
}

// Messages over the plan's routes.
double GraphCosts::direct(const Request& request) const {
  return std::ceil((servers_ - 1) / degree_) * model_.alpha_s +
         longest_route_ * model_.per_hop_latency_s +
         kUnevenRoutes * shardBytes(request) * std::max((servers_ - 1) / degree_, slowest_pair_) *
             model_.beta_s_per_byte;
}

// A packing takes the set with the best bound; the other algorithms take the one with the least
// cost.
GraphCost GraphCosts::of(const Request& request, Algorithm algorithm) {
  if (algorithm == Algorithm::kOneShot) return {oneShot(request)};
  if (algorithm == Algorithm::kDirect) return {direct(request)};
  if (algorithm == Algorithm::kPacking) {
    return inRounds(request, algorithm, bestSet(request).first);
  }
  GraphCost best{std::numeric_limits<double>::infinity()};
  for (size_t set = 0; set < plans_.size(); ++set) {
    const GraphCost cost = algorithm == Algorithm::kFlooding
                               ? GraphCost{flooding(request, set), 1, set}
                               : inRounds(request, algorithm, set);
    if (cost.seconds < best.seconds) best = cost;
  }
  return best;
}

bool GraphCosts::mayGainFromPacking(const Request& request) {
  const double shard_s = shardBytes(request) * model_.beta_s_per_byte;
  const double bound_s = boundSeconds(request);
  for (size_t set = 0; set < plans_.size(); ++set) {
    const PlanLoad load = planned(request, Algorithm::kBreadthFirst, set).load;
    if (load.busiest_s * shard_s <= kCloseToBound * bound_s ||
        load.steps_s * shard_s - bound_s <= model_.alpha_s + model_.per_hop_latency_s) {
      return false;
    }
  }
  return true;
}

}  // namespace topoopt
