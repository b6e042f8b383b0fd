#include "sim/iteration/group_schedules.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "plan/graph_plans.h"
#include "plan/group_layout.h"

namespace topoopt {

namespace {

// Servers that exchange data in one step, if their number can be divided so.
constexpr int kMostInStep = 16;

LinkPass passOf(const GatherPlan& plan, bool is_backward, const std::vector<int>& servers) {
  std::map<std::pair<int, int>, double> shards;  // by source and target
  for (int receiver = 0; receiver < static_cast<int>(plan.received.size()); ++receiver) {
    for (const Piece& piece : plan.received[receiver]) {
      const auto ends =
          is_backward ? std::pair(receiver, piece.sender) : std::pair(piece.sender, receiver);
      shards[ends] += static_cast<double>(piece.end - piece.first) / plan.units;
    }
  }
  LinkPass pass{{}, plan.steps};
  const double count = static_cast<double>(servers.size());
  for (const auto& [ends, sent] : shards) {
    pass.sends.push_back({servers[ends.first], servers[ends.second], sent / count});
  }
  return pass;
}

LinkSchedule scheduleOf(const GatherPlan& backward, const GatherPlan& forward,
                        const std::vector<int>& servers) {
  return {{passOf(backward, true, servers), passOf(forward, false, servers)}};
}

// The sizes of a grid of `count` servers: as few as possible up to kMostInStep, or prime.
std::vector<int> dimensionsOf(int count) {
  std::vector<int> sizes;
  for (int factor = 2; count > 1; ++factor) {
    for (; count % factor == 0; count /= factor) {
      if (sizes.empty() || sizes.back() * factor > kMostInStep) {
        sizes.push_back(factor);
      } else {
        sizes.back() *= factor;
      }
    }
  }
  return sizes;
}

// Links between `servers`, numbered by their places there.
std::vector<RatedLink> linksAmong(const std::vector<RatedLink>& links,
                                  const std::vector<int>& servers) {
  const auto place = [&](int server) {
    const auto found = std::ranges::lower_bound(servers, server);
    return found != servers.end() && *found == server ? static_cast<int>(found - servers.begin())
                                                      : -1;
  };
  std::vector<RatedLink> among;
  double slowest = std::numeric_limits<double>::infinity();
  for (const RatedLink& link : links) {
    const int source = place(link.source);
    const int target = place(link.target);
    if (source < 0 || target < 0) continue;
    among.push_back({source, target, link.rate});
    slowest = std::min(slowest, link.rate);
  }
  for (RatedLink& link : among) link.rate /= slowest;
  return among;
}

}  // namespace

LinkSchedule exchangeAmong(const std::vector<int>& servers) {
  const int count = static_cast<int>(servers.size());
  LinkPass pass{{}, 0};
  double held = 1;  // of each server's data before a step
  int stride = 1;
  for (const int size : dimensionsOf(count)) {
    held /= size;
    ++pass.steps;
    for (int server = 0; server < count; ++server) {
      const int place = server / stride % size;
      for (int other = 0; other < size; ++other) {
        if (other == place) continue;
        pass.sends.push_back({servers[server], servers[server + (other - place) * stride], held});
      }
    }
    stride *= size;
  }
  return {{pass, pass}, true};
}

std::shared_ptr<const std::vector<LinkSchedule>> GroupSchedules::of(
    const std::vector<int>& servers) {
  const std::lock_guard lock(mutex_);
  auto& schedules = known_[servers];
  if (schedules == nullptr) {
    schedules = std::make_shared<const std::vector<LinkSchedule>>(make(servers));
  }
  return schedules;
}

std::vector<LinkSchedule> GroupSchedules::make(const std::vector<int>& servers) const {
  if (links_.empty()) return {exchangeAmong(servers)};
  const int count = static_cast<int>(servers.size());
  std::vector<int> order(servers.size());
  std::iota(order.begin(), order.end(), 0);
  GroupLayout layout(count, {{std::move(order), 1.0}});
  layout.setLinks(linksAmong(links_, servers));
  if (layout.links().empty()) return {};
  GraphPlans plans(count, layout.links());
  const LoadedPlan& backward = plans.breadthFirst(Direction::kBackward);
  const LoadedPlan& forward = plans.breadthFirst(Direction::kForward);
  std::vector<LinkSchedule> schedules{scheduleOf(backward.plan, forward.plan, servers)};
  const double bound =
      plans.boundSeconds(Direction::kBackward) + plans.boundSeconds(Direction::kForward);
  if (backward.load.busiest_s + forward.load.busiest_s > kCloseToBound * bound) {
    schedules.push_back(scheduleOf(plans.packed(Direction::kBackward).plan,
                                   plans.packed(Direction::kForward).plan, servers));
  }
  return schedules;
}

}  // namespace topoopt
