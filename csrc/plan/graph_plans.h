// The plans over a group's links, built on first use.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "plan/breadth_first.h"
#include "plan/gather_plan.h"

namespace topoopt {

// A breadth-first plan this close to the bound is not worth a packing.
inline constexpr double kCloseToBound = 1.005;

// kForward: from origins to all others. kBackward: from all to the origins, on the reversed links.
enum class Direction : uint8_t { kForward, kBackward };

// A plan and its loads on the links.
struct LoadedPlan {
  GatherPlan plan;
  PlanLoad load;
  int hops = 0;  // of the longest message of each step, added up
};

// One thread at a time.
class GraphPlans {
 public:
  static constexpr int kAllOrigins = -1;

  // Cables from one server to another, over relays.
  using Hops = std::function<int(int, int)>;

  // `links` as GroupLayout::links().
  GraphPlans(int servers, LinkSet links, Hops hops = [](int, int) { return 1; });

  // Every server's shard to all, or that of one `origin`.
  const LoadedPlan& breadthFirst(Direction direction, int origin = kAllOrigins);
  // The plan with the best throughput.
  const LoadedPlan& packed(Direction direction, int origin = kAllOrigins);
  // The least time of the busiest link that any plan can have.
  double boundSeconds(Direction direction, int origin = kAllOrigins);
  // The blocks of all servers from `root`, or to it.
  const LoadedPlan& scattered(Direction direction, int root);
  double scatterBoundSeconds(Direction direction, int root);
  // Direct messages.
  const GatherPlan& oneShot();

 private:
  using Key = std::pair<Direction, int>;

  Key keyOf(Direction direction, int origin) const;
  const LinkSet& linksOf(Direction direction) const;
  LoadedPlan loaded(GatherPlan plan, Direction direction) const;

  const int servers_;
  const Hops hops_;
  const LinkSet forward_;
  const LinkSet backward_;
  const bool symmetric_;  // both directions have equal plans
  std::map<Key, LoadedPlan> breadth_first_;
  std::map<Key, LoadedPlan> packed_;
  std::map<Key, LoadedPlan> scattered_;
  std::map<Key, double> bounds_;
  GatherPlan one_shot_;
};

}  // namespace topoopt
