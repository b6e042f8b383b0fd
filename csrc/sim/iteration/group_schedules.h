// AllReduces of groups besides rings. On direct networks, if links of the group join its servers:
// breadth-first, and over a packing of trees (plan/graph_plans.h). Over switches: exchanges.

#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "plan/gather_plan.h"

namespace topoopt {

// A message of a schedule: `share` bytes per byte of the AllReduce.
struct LinkShare {
  int source;
  int target;
  double share;
};

// All messages of a ReduceScatter or AllGather, with those between the same two servers added up,
// and the number of its steps. Data is sent in chunks, so that all links are busy at once.
struct LinkPass {
  std::vector<LinkShare> sends;
  int steps;
};

// An AllReduce: a ReduceScatter, then an AllGather. Messages are sent over the links between two
// servers, or over their routes.
struct LinkSchedule {
  std::array<LinkPass, 2> passes;
  bool over_routes = false;
};

// Servers exchange data along one dimension of a grid after the other, in one step each.
LinkSchedule exchangeAmong(const std::vector<int>& servers);

// For any number of threads.
class GroupSchedules {
 public:
  // At most one link from one server to another; none: servers are on switches.
  explicit GroupSchedules(std::vector<RatedLink> links) : links_(std::move(links)) {}

  // The schedules of `servers` (ascending). A direct network has none without links of the group
  // that join them.
  std::shared_ptr<const std::vector<LinkSchedule>> of(const std::vector<int>& servers);

 private:
  std::vector<LinkSchedule> make(const std::vector<int>& servers) const;

  const std::vector<RatedLink> links_;
  std::mutex mutex_;
  std::map<std::vector<int>, std::shared_ptr<const std::vector<LinkSchedule>>> known_;
};

}  // namespace topoopt
