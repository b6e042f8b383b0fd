// AllReduces of groups besides those on planned rings. On direct networks, those that the backend
// chooses by its cost model (plan/cost_model.h). Over switches: exchanges.

#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "plan/cost_model.h"
#include "plan/gather_plan.h"
#include "plan/group_layout.h"
#include "plan/network.h"
#include "plan/shortest_paths.h"

namespace topoopt {

struct ScheduleKey;

// A message of a schedule: `share` bytes per byte of the AllReduce.
struct LinkShare {
  int source;
  int target;
  double share;
};

// Messages that are sent at once, with those between the same two servers added up. Data is sent in
// chunks, and arrives after the latency of `steps` messages.
struct LinkPass {
  std::vector<LinkShare> sends;
  int steps;
};

// An AllReduce: one pass after the other. Messages are sent over the links between two servers, or
// over their routes.
struct LinkSchedule {
  std::vector<LinkPass> passes;
  bool over_routes = false;
};

// Servers exchange data along one dimension of a grid after the other, in one step each.
LinkSchedule exchangeAmong(const std::vector<int>& servers);

// The AllReduce with the least time of the busiest link, among `servers` (ascending) that `links`
// join. Throws std::invalid_argument for other links.
LinkSchedule packedAllReduce(const std::vector<int>& servers, const std::vector<RatedLink>& links);

// The algorithm for AllReduces of at most `up_to_bytes` that are larger than those of the choice
// before, and a line through its predicted times.
struct ScheduleChoice {
  Algorithm algorithm;
  size_t rounds;  // of breadth-first and packed plans
  double up_to_bytes;
  double first_bytes;
  double first_s;
  double last_bytes;
  double last_s;
};

// The backend's choices for one group on a direct network. For any number of threads.
class GroupChoices {
 public:
  // Member i of `layout` is on server `members[i]` (ascending).
  GroupChoices(std::vector<int> members, GroupLayout layout, const CostModel& cost,
               std::optional<Algorithm> forced);

  // Of AllReduces, ascending; the last has no limit.
  const std::vector<ScheduleChoice>& choices() const { return choices_; }
  // Of any algorithm but rings and rows and columns; cached.
  std::shared_ptr<const LinkSchedule> schedule(Algorithm algorithm);
  // The messages between servers of a collective on `bytes` bytes of all blocks together, in one
  // pass; of a broadcast or reduce, `root` is a member.
  LinkSchedule collective(Collective collective, size_t bytes, int root);

 private:
  struct Taken {
    Algorithm algorithm;
    size_t rounds;
    bool operator==(const Taken&) const = default;
  };

  Taken take(size_t bytes) const;
  void addChoice(const Taken& taken, double up_to_bytes);
  void choose();
  ScheduleKey keyOf(Collective collective, size_t bytes, int root) const;
  LinkSchedule scattered(Algorithm algorithm) const;
  LinkSchedule messages(const ScheduleKey& key, Algorithm algorithm) const;

  const std::vector<int> members_;
  const GroupLayout layout_;
  const CostEstimate estimate_;
  const std::optional<Algorithm> forced_;
  std::vector<ScheduleChoice> choices_;
  std::mutex mutex_;
  std::map<Algorithm, std::shared_ptr<const LinkSchedule>> schedules_;
};

// For any number of threads.
class GroupSchedules {
 public:
  // At most one link from one server to another; without links that join all `servers`, some are on
  // switches. Measured times of `cost` are of all servers.
  GroupSchedules(int servers, std::vector<RatedLink> links, const CostModel& cost,
                 std::optional<Algorithm> forced);

  bool isOverSwitches() const { return links_.empty(); }
  // Whether links join all servers.
  bool isDirect() const { return hops_ != nullptr; }
  // The next server on a shortest path, on direct networks.
  int nextHop(int source, int target) const { return paths_.next[source][target]; }

  // The choices of a group with members on these servers (ascending), and these rings and rows of
  // servers, on direct networks.
  std::shared_ptr<GroupChoices> of(const std::vector<int>& members,
                                   const std::vector<plan::Ring>& rings, const plan::Grid& grid);

 private:
  const std::vector<RatedLink> links_;
  const ShortestPaths paths_;
  const CostModel cost_;
  const std::optional<Algorithm> forced_;
  std::shared_ptr<const HopTable> hops_;  // nullptr unless direct
  std::mutex mutex_;
  std::map<std::vector<int>, std::shared_ptr<GroupChoices>> known_;
};

}  // namespace topoopt
