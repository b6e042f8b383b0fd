// Selects the paths of a group's collectives: the planned ones, or the remaining ones.

#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <map>
#include <stdexcept>
#include <utility>

#include "collectives/links/link_group.h"
#include "common/errors.h"
#include "common/log.h"
#include "plan/member_links.h"
#include "plan/remaining_rings.h"

namespace topoopt {
namespace {

constexpr std::ptrdiff_t kMostFormerRings = 64;  // whose counters are kept

}  // namespace

// Returns the version of the collective's rings; under the lock.
uint64_t LinkGroup::versionOf(uint64_t number) const {
  auto version = versions_.rbegin();
  while (version->second.first > number) ++version;
  return version->first;
}

// Prepares a collective again that was called before its rings were agreed on.
void LinkGroup::beginOver(Pending& next) {
  std::lock_guard lock(mutex_);
  const uint64_t version = versionOf(next.number);
  if (version != next.version) prepare(next);
  if (version == over_version_) return;
  addCounters(carried_, versions_.at(over_version_).schedules->layout(), operation_.takeCounters(),
              config_.ranks);
  // Repeated failures leave many former rings; evict the oldest that are not in the plan.
  const auto planned =
      static_cast<std::ptrdiff_t>(partsOf(versions_.at(0).schedules->layout()).count);
  if (const auto known = std::ssize(carried_); known > planned + kMostFormerRings) {
    carried_.erase(carried_.begin() + planned,
                   carried_.begin() + planned + (known - planned - kMostFormerRings));
  }
  over_version_ = version;
  versions_.erase(versions_.upper_bound(0), versions_.find(version));
}

std::vector<RingCounters> LinkGroup::counters() {
  std::vector<RingCounters> list;
  endpoint_->reactor().run([&] {
    list = carried_;
    addCounters(list, versions_.at(over_version_).schedules->layout(), operation_.counters(),
                config_.ranks);
  });
  return list;
}

// Rings over the first member of each server.
std::vector<plan::Ring> LinkGroup::ringsLeft() const {
  const CableGraph& graph = *endpoint_->cables();
  if (graph.intact()) return config_.rings;
  const GroupLayout& layout = versions_.at(0).schedules->layout();
  std::map<int, int> leader_of;  // by server
  const auto server = [&](int member) { return graph.serverOf(config_.ranks[member]); };
  std::vector<plan::Ring> planned = layout.rings();
  for (plan::Ring& ring : planned) {
    for (int& member : ring.servers) {
      leader_of[server(member)] = member;
      member = server(member);
    }
  }
  const auto hops = [&](int a, int b) { return layout.hops(leader_of.at(a), leader_of.at(b)); };
  std::vector<plan::Ring> left = remainingRings(planned, hops, graph.linksLeft());
  for (plan::Ring& ring : left) {
    for (int& place : ring.servers) place = leader_of.at(place);
  }
  return left;
}

// The cables between servers: planned ones (on any thread), or remaining ones.
std::vector<RatedLink> LinkGroup::ratedLinks(bool planned) const {
  const CableGraph* const graph = endpoint_->cables();
  if (graph == nullptr) return {};
  std::vector<RatedLink> links;
  double slowest = std::numeric_limits<double>::infinity();
  for (const LinkLeft& link : planned ? graph->plannedLinks() : graph->linksLeft()) {
    links.push_back({link.source, link.target, link.rate});
    slowest = std::min(slowest, link.planned_rate);
  }
  for (RatedLink& link : links) link.rate /= slowest;
  return links;
}

std::vector<int> LinkGroup::serversOf(const std::vector<int>& members) const {
  const CableGraph& graph = *endpoint_->cables();
  std::vector<int> servers;
  for (const int member : members) servers.push_back(graph.serverOf(config_.ranks[member]));
  return servers;
}

// Links between members' servers, also over relays.
std::vector<LinkSet> LinkGroup::linkSets(const std::vector<int>& leaders, bool planned) const {
  if (endpoint_->cables() == nullptr) return {};
  return memberLinks(serversOf(leaders), ratedLinks(planned), config_.routes);
}

// Of the planned rings; only groups of some servers know their routes.
GroupLayout::RouteLoads LinkGroup::routeLoads(const std::vector<int>& leaders) const {
  if (endpoint_->cables() == nullptr || config_.routes.empty()) return {};
  std::vector<plan::Ring> rings = config_.rings;
  for (plan::Ring& ring : rings) ring.servers = serversOf(ring.servers);
  const std::vector<RatedLink> links = ratedLinks(true);
  const plan::Ring first{rings.front().servers, 1.0};
  return {busiestLink({first}, links, config_.routes), busiestLink(rings, links, config_.routes),
          busiestLinkOfPairs(serversOf(leaders), links, config_.routes)};
}

// The first member proposes paths, but not while ranks are unreachable: that cannot help.
void LinkGroup::onLinksChanged() {
  const CableGraph* const graph = endpoint_->cables();
  if (config_.rank != 0 || graph == nullptr || !graph->unreachable().empty()) return;
  if (versions_.at(0).schedules->layout().leaders().size() < 2) return;
  const GroupLayout& layout = versions_.at(0).schedules->layout();
  CollectivePaths paths{ringsLeft(),
                        graph->intact() ? layout.linkSets() : linkSets(layout.leaders(), false)};
  if (paths == proposed_) return;
  proposed_ = paths;
  agreement_.propose(std::move(paths));
}

void LinkGroup::usePaths(uint64_t version, uint64_t first, CollectivePaths paths) {
  const std::vector<plan::Ring>& rings = paths.rings;
  if (config_.rank == 0 && logs(LogLevel::kInfo)) {
    std::string shares;
    for (const plan::Ring& ring : rings) {
      shares += (shares.empty() ? "" : ", ") + std::to_string(std::lround(ring.share * 100)) + " %";
    }
    logLine(LogLevel::kInfo,
            "group " + config_.name + ": from operation " + std::to_string(first) + " on over " +
                (rings == config_.rings ? "the planned rings"
                                        : std::to_string(rings.size()) + " rings, with " + shares));
  }
  std::shared_ptr<ScheduleCache> schedules;
  const auto planned = versions_.at(0).schedules;
  if (paths == CollectivePaths{config_.rings, planned->layout().linkSets()}) {
    schedules = planned;
  } else {
    try {
      CostModel cost = config_.cost;
      cost.all_reduce.clear();  // it was measured over the planned rings
      schedules =
          std::make_shared<ScheduleCache>(planned->layout().over(std::move(paths)), config_.rank,
                                          cost, algorithmNamed(config_.algorithm));
    } catch (const std::invalid_argument& wrong) {
      const std::string why = "rank " + std::to_string(config_.ranks.front()) +
                              " proposes paths that cannot be: " + wrong.what();
      return fail(std::make_exception_ptr(PeerLostError(why)), Notify::kAllRanks);
    }
  }
  std::lock_guard lock(mutex_);
  versions_[version] = {first, std::move(schedules)};
}

}  // namespace topoopt
