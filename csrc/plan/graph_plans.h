// The plans over a group's links, built on first use.

#pragma once

#include <map>
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
};

// One thread at a time.
class GraphPlans {
 public:
  static constexpr int kAllOrigins = -1;

  // `links` as GroupLayout::links().
  GraphPlans(int servers, std::vector<RatedLink> links);

  // Every server's shard to all, or that of one `origin`.
  const LoadedPlan& breadthFirst(Direction direction, int origin = kAllOrigins);
  // The plan with the best throughput.
  const LoadedPlan& packed(Direction direction, int origin = kAllOrigins);
  // The least time of the busiest link that any plan can have.
  double boundSeconds(Direction direction, int origin = kAllOrigins);
  // Direct messages.
  const GatherPlan& oneShot();

 private:
  using Key = std::pair<Direction, int>;

  Key keyOf(Direction direction, int origin) const;
  const std::vector<RatedLink>& linksOf(Direction direction) const;

  const int servers_;
  const std::vector<RatedLink> forward_;
  const std::vector<RatedLink> backward_;
  const bool symmetric_;  // both directions have equal plans
  std::map<Key, LoadedPlan> breadth_first_;
  std::map<Key, LoadedPlan> packed_;
  std::map<Key, double> bounds_;
  GatherPlan one_shot_;
};

}  // namespace topoopt
