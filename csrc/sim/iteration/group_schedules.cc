#include "sim/iteration/group_schedules.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "plan/graph_costs.h"
#include "plan/schedule_cache.h"

namespace topoopt {

namespace {

// Servers that exchange data in one step, if their number can be divided so.
constexpr int kMostInStep = 16;
constexpr size_t kMostBytes = size_t{1} << 40;  // of an AllReduce with a choice of its own
// The line of the last choice goes through its first size and so many times that.
constexpr double kFarBytes = 1 << 20;
constexpr size_t kCountedBytes = 16 << 10;  // of a member: few bytes are one chunk each

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

bool isScattered(Algorithm algorithm) {
  return algorithm == Algorithm::kBreadthFirst || algorithm == Algorithm::kPacking;
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

// -1: not among them.
int placeIn(const std::vector<int>& servers, int server) {
  const auto found = std::ranges::lower_bound(servers, server);
  return found != servers.end() && *found == server ? static_cast<int>(found - servers.begin())
                                                    : -1;
}

// Links between `servers`, numbered by their places there.
std::vector<RatedLink> linksAmong(const std::vector<RatedLink>& links,
                                  const std::vector<int>& servers) {
  std::vector<RatedLink> among;
  double slowest = std::numeric_limits<double>::infinity();
  for (const RatedLink& link : links) {
    const int source = placeIn(servers, link.source);
    const int target = placeIn(servers, link.target);
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

LinkSchedule packedAllReduce(const std::vector<int>& servers, const std::vector<RatedLink>& links) {
  GraphPlans plans(static_cast<int>(servers.size()), linksAmong(links, servers));
  const auto passIn = [&](Direction direction) {
    const LoadedPlan& quick = plans.breadthFirst(direction);
    const bool is_close = quick.load.busiest_s <= kCloseToBound * plans.boundSeconds(direction);
    return passOf(is_close ? quick.plan : plans.packed(direction).plan,
                  direction == Direction::kBackward, servers);
  };
  return {{passIn(Direction::kBackward), passIn(Direction::kForward)}};
}

GroupChoices::GroupChoices(std::vector<int> members, GroupLayout layout, const CostModel& cost,
                           std::optional<Algorithm> forced)
    : members_(std::move(members)),
      layout_(std::move(layout)),
      estimate_(layout_, cost),
      forced_(forced) {
  choose();
}

GroupChoices::Taken GroupChoices::take(size_t bytes) const {
  const Request request{Collective::kAllReduce, bytes, 0, true};
  const Algorithm algorithm = estimate_.choose(request, forced_);
  return {algorithm, isScattered(algorithm) ? estimate_.graph()->of(request, algorithm).rounds : 1};
}

void GroupChoices::addChoice(const Taken& taken, double up_to_bytes) {
  const double first = choices_.empty() ? 1 : choices_.back().up_to_bytes + 1;
  const double last = std::min(up_to_bytes, kFarBytes * first);
  const auto seconds = [&](double bytes) {
    const Request request{Collective::kAllReduce, static_cast<size_t>(bytes), 0, true};
    return estimate_.seconds(request, taken.algorithm);
  };
  choices_.push_back(
      {taken.algorithm, taken.rounds, up_to_bytes, first, seconds(first), last, seconds(last)});
}

// Tries sizes that double, and searches for the exact size at which the algorithm changes.
void GroupChoices::choose() {
  Taken before = take(1);
  size_t low = 1;
  for (size_t high = 2; high <= kMostBytes; low = high, high *= 2) {
    const Taken after = take(high);
    if (after == before) continue;
    size_t other = high;
    while (after.algorithm != before.algorithm && other - low > 1) {
      const size_t middle = low + (other - low) / 2;
      (take(middle).algorithm == before.algorithm ? low : other) = middle;
    }
    addChoice(before, static_cast<double>(low));
    before = after;
  }
  addChoice(before, std::numeric_limits<double>::infinity());
}

std::shared_ptr<const LinkSchedule> GroupChoices::schedule(Algorithm algorithm) {
  const std::lock_guard lock(mutex_);
  auto& schedule = schedules_[algorithm];
  if (schedule != nullptr) return schedule;
  const ScheduleKey key = keyOf(Collective::kAllReduce, kCountedBytes * members_.size(), 0);
  schedule = std::make_shared<const LinkSchedule>(
      isScattered(algorithm) ? scattered(algorithm) : messages(key, algorithm));
  return schedule;
}

LinkSchedule GroupChoices::collective(Collective collective, size_t bytes, int root) {
  const std::lock_guard lock(mutex_);
  const ScheduleKey key = keyOf(collective, bytes, root);
  LinkSchedule schedule = messages(key, estimate_.choose(requestOf(key), forced_));
  for (LinkShare& send : schedule.passes.front().sends) send.share *= static_cast<double>(bytes);
  return schedule;
}

// A ReduceScatter, then an AllGather.
LinkSchedule GroupChoices::scattered(Algorithm algorithm) const {
  std::vector<int> servers;
  for (const int leader : layout_.leaders()) servers.push_back(members_[leader]);
  GraphPlans& plans = estimate_.graph()->plans(0);  // the members' own links
  const auto of = [&](Direction direction) -> const GatherPlan& {
    return algorithm == Algorithm::kPacking ? plans.packed(direction).plan
                                            : plans.breadthFirst(direction).plan;
  };
  return {{passOf(of(Direction::kBackward), true, servers),
           passOf(of(Direction::kForward), false, servers)}};
}

ScheduleKey GroupChoices::keyOf(Collective collective, size_t bytes, int root) const {
  ScheduleKey key;
  key.collective = collective;
  key.commutative = true;
  key.root = root;
  key.counts = {bytes};
  if (collective == Collective::kAllGather || collective == Collective::kReduceScatter) {
    key.counts.clear();
    for (size_t i = 0; i < members_.size(); ++i) {
      key.counts.push_back(divide({0, bytes}, members_.size(), i).count);
    }
  }
  return key;
}

// All messages of the members' schedules at once; the cost model knows the time that they wait.
LinkSchedule GroupChoices::messages(const ScheduleKey& key, Algorithm algorithm) const {
  const double bytes = static_cast<double>(requestOf(key).bytes);
  std::map<std::pair<int, int>, double> sent;
  for (int rank = 0; rank < layout_.size(); ++rank) {
    for (const Lane& lane : scheduleFor(key, algorithm, rank, layout_, estimate_).lanes) {
      for (const Send& send : lane.sends) {
        const auto ends = std::pair(members_[rank], members_[send.peer]);
        if (ends.first != ends.second) sent[ends] += static_cast<double>(send.from.bytes);
      }
    }
  }
  LinkPass pass{{}, 1};
  for (const auto& [ends, size] : sent) {
    pass.sends.push_back({ends.first, ends.second, size / bytes});
  }
  return {{std::move(pass)}, !isScattered(algorithm) && algorithm != Algorithm::kFlooding};
}

GroupSchedules::GroupSchedules(int servers, std::vector<RatedLink> links, const CostModel& cost,
                               std::optional<Algorithm> forced)
    : links_(std::move(links)),
      paths_(links_.empty() ? 0 : servers, links_),
      cost_(cost),
      forced_(forced) {
  if (!links_.empty() && paths_.joined()) {
    hops_ = std::make_shared<const HopTable>(servers, paths_.hops);
  }
}

std::shared_ptr<GroupChoices> GroupSchedules::of(const std::vector<int>& members,
                                                 const std::vector<plan::Ring>& rings,
                                                 const plan::Grid& grid) {
  const std::lock_guard lock(mutex_);
  auto& choices = known_[members];
  if (choices != nullptr) return choices;
  const auto leaders = [&](std::vector<int> order) {
    for (int& server : order) server = placeIn(members, server);
    return order;
  };
  std::vector<plan::Ring> of_leaders;
  for (const plan::Ring& ring : rings) of_leaders.push_back({leaders(ring.servers), ring.share});
  plan::Grid rows;
  for (const std::vector<int>& row : grid) rows.push_back(leaders(row));
  GroupLayout layout(static_cast<int>(members.size()), std::move(of_leaders), members, hops_,
                     std::move(rows));
  std::vector<int> servers = members;
  servers.erase(std::unique(servers.begin(), servers.end()), servers.end());
  layout.setLinks(linksAmong(links_, servers));
  CostModel cost = cost_;
  if (static_cast<int>(servers.size()) < hops_->servers()) cost.all_reduce.clear();
  choices = std::make_shared<GroupChoices>(members, std::move(layout), cost, forced_);
  return choices;
}

}  // namespace topoopt
