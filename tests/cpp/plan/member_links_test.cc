// Links between members over relays: what they carry, and their bound against that of the network.

#include "plan/member_links.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "plan/cut_bound.h"
#include "plan/group_layout.h"
#include "plan/linear_program.h"
#include "support/seed.h"
#include "support/test_limits.h"

namespace topoopt {
namespace {

using Pair = std::pair<int, int>;

std::vector<RatedLink> circulant(int servers, const std::vector<int>& strides) {
  std::vector<RatedLink> links;
  for (int i = 0; i < servers; ++i) {
    for (const int stride : strides) links.push_back({i, (i + stride) % servers, 1.0});
  }
  return links;
}

// All shortest routes from each member to each other, with equal weights.
std::vector<plan::Route> shortestRoutes(int servers, const std::vector<RatedLink>& links,
                                        const std::vector<int>& members) {
  std::vector<std::vector<int>> next(static_cast<size_t>(servers));
  for (const RatedLink& link : links) next[link.source].push_back(link.target);
  std::vector<plan::Route> routes;
  for (const int source : members) {
    std::vector<std::vector<std::vector<int>>> of(next.size());  // by target
    of[source] = {{source}};
    for (std::vector<int> reached{source}; !reached.empty();) {
      std::map<int, std::vector<std::vector<int>>> further;
      for (const int server : reached) {
        for (const int to : next[server]) {
          if (!of[to].empty()) continue;
          for (std::vector<int> route : of[server]) {
            route.push_back(to);
            further[to].push_back(std::move(route));
          }
        }
      }
      reached.clear();
      for (auto& [to, list] : further) {
        reached.push_back(to);
        of[to] = std::move(list);
      }
    }
    for (const int target : members) {
      if (target == source) continue;
      for (const auto& route : of[target]) {
        routes.push_back({route, 1.0 / static_cast<double>(of[target].size())});
      }
    }
  }
  return routes;
}

double secondsOf(size_t members, const LinkSet& links) {
  return cutBound(static_cast<int>(members), links, std::vector<int>(members, 1)).seconds;
}

// The bound of the network, whose other servers have no shards and need none: the slowest cut with
// members on both sides, by all sets of servers.
double networkSeconds(int servers, const std::vector<RatedLink>& links,
                      const std::vector<int>& members) {
  double most = 0;
  for (int inside = 1; inside < 1 << servers; ++inside) {
    const auto has = [&](int server) { return (inside >> server & 1) != 0; };
    const auto shards = std::count_if(members.begin(), members.end(), has);
    if (shards == 0 || shards == static_cast<std::ptrdiff_t>(members.size())) continue;
    double rate = 0;
    for (const RatedLink& link : links) {
      if (has(link.source) && !has(link.target)) rate += link.rate;
    }
    most = std::max(most, static_cast<double>(shards) / rate);
  }
  return most;
}

// The largest load of a cable, relative to its rate, if all links carry their rates.
double largestLoad(const LinkSet& set, const std::vector<int>& members,
                   const std::vector<RatedLink>& links, const std::vector<plan::Route>& routes) {
  std::map<Pair, double> rates;
  for (const RatedLink& link : links) rates[{link.source, link.target}] += link.rate;
  std::map<Pair, double> carried;
  for (const RatedLink& link : set) {
    const Pair ends{members[link.source], members[link.target]};
    double weights = 0;
    for (const plan::Route& route : routes) {
      if (Pair{route.servers.front(), route.servers.back()} != ends) continue;
      weights += route.weight;
      for (size_t i = 1; i < route.servers.size(); ++i) {
        carried[{route.servers[i - 1], route.servers[i]}] += link.rate * route.weight;
      }
    }
    if (weights == 0) carried[ends] += link.rate;
  }
  double most = 0;
  for (const auto& [ends, load] : carried) most = std::max(most, load / rates.at(ends));
  return most;
}

std::vector<int> every(int stride, int servers) {
  std::vector<int> members;
  for (int server = 0; server < servers; server += stride) members.push_back(server);
  return members;
}

TEST(MemberLinks, EverySecondServerOfARingIsARing) {
  const auto links = circulant(8, {1, 7});
  const auto members = every(2, 8);
  const auto sets = memberLinks(members, links, shortestRoutes(8, links, members));
  ASSERT_EQ(sets.size(), 1);
  LinkSet set = sets[0];
  // Opposite members have routes over other members alone.
  ASSERT_EQ(set.size(), 8);
  for (const RatedLink& link : set) {
    EXPECT_TRUE((link.source + 1) % 4 == link.target || (link.target + 1) % 4 == link.source);
    EXPECT_DOUBLE_EQ(link.rate, 1.0);
  }
}

TEST(MemberLinks, MembersAroundAStarAllReachEachOtherInOneStep) {
  std::vector<RatedLink> links;
  for (int leaf = 1; leaf <= 5; ++leaf) {
    links.push_back({0, leaf, 2.0});
    links.push_back({leaf, 0, 2.0});
  }
  const std::vector<int> members{1, 2, 3, 4, 5};
  const auto sets = memberLinks(members, links, shortestRoutes(6, links, members));
  ASSERT_EQ(sets.size(), 1);
  EXPECT_EQ(sets[0].size(), 20);
  for (const RatedLink& link : sets[0]) EXPECT_DOUBLE_EQ(link.rate, 0.5);
  EXPECT_DOUBLE_EQ(secondsOf(5, sets[0]), networkSeconds(6, links, members));
}

TEST(MemberLinks, MembersWithoutRelaysHaveTheirLinksAlone) {
  const auto links = circulant(6, {1, 5});
  const auto sets = memberLinks(every(1, 6), links, {});
  ASSERT_EQ(sets.size(), 1);
  EXPECT_EQ(sets[0].size(), links.size());
  EXPECT_TRUE(memberLinks({0, 2, 4}, links, {}).empty());
}

TEST(MemberLinks, ARouteWithoutALinkIsIgnored) {
  auto links = circulant(4, {1, 3});
  const std::vector<plan::Route> routes{{{0, 1, 2}, 0.5}, {{0, 3, 2}, 0.5}, {{2, 1, 0}, 1.0}};
  std::erase_if(links, [](const RatedLink& link) { return link.source == 0 && link.target == 3; });
  const auto sets = memberLinks({0, 2}, links, routes);
  ASSERT_EQ(sets.size(), 1);
  EXPECT_EQ(sets[0], (LinkSet{{0, 1, 1.0}, {1, 0, 1.0}}));
  std::erase_if(links, [](const RatedLink& link) { return link.source == 2; });
  EXPECT_TRUE(memberLinks({0, 2}, links, routes).empty());
}

// Where a pair has all of its shortest routes, and these are short enough, the links carry what the
// slowest cut of the network allows.
TEST(MemberLinks, BoundOfEverySecondOrFourthServerIsThatOfTheNetwork) {
  for (const auto& [servers, stride, strides] :
       std::vector<std::tuple<int, int, std::vector<int>>>{{8, 2, {1, 3}},
                                                           {8, 2, {1, 3, 5, 7}},
                                                           {12, 2, {1, 5, 7, 11}},
                                                           {12, 4, {1, 5, 7, 11}},
                                                           {16, 4, {1, 3, 13, 15}}}) {
    const auto links = circulant(servers, strides);
    const auto members = every(stride, servers);
    const auto sets = memberLinks(members, links, shortestRoutes(servers, links, members));
    ASSERT_FALSE(sets.empty());
    double least = secondsOf(members.size(), sets[0]);
    for (const LinkSet& set : sets) least = std::min(least, secondsOf(members.size(), set));
    EXPECT_NEAR(least / networkSeconds(servers, links, members), 1, 1e-3) << servers << stride;
  }
}

// A random network, members and routes.
struct RelayedCase {
  explicit RelayedCase(TestRandom& random) : servers(static_cast<int>(random.between(4, 9))) {
    const bool equal = random.chance(0.5);
    const auto rate = [&] { return equal ? 1.0 : static_cast<double>(random.between(1, 5)); };
    for (int i = 0; i < servers; ++i) {
      const int next = (i + 1) % servers;
      links.push_back({i, next, rate()});
      links.push_back({next, i, rate()});
    }
    for (size_t more = random.between(0, 2 * static_cast<size_t>(servers)); more > 0; --more) {
      const int source = static_cast<int>(random.between(0, servers - 1));
      const int target = static_cast<int>(random.between(0, servers - 1));
      if (source != target) links.push_back({source, target, rate()});
    }
    std::vector<int> order(static_cast<size_t>(servers));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random.engine());
    order.resize(random.between(2, static_cast<size_t>(servers) - 1));
    members = order;
    std::sort(members.begin(), members.end());
    routes = shortestRoutes(servers, links, members);
  }

  int servers;
  std::vector<RatedLink> links;
  std::vector<int> members;
  std::vector<plan::Route> routes;
};

// The links of one set at other rates, as large as the cables allow.
LinkSet atRandomRates(LinkSet set, const RelayedCase& c, TestRandom& random) {
  for (RatedLink& link : set) link.rate *= static_cast<double>(random.between(1, 8));
  const double load = largestLoad(set, c.members, c.links, c.routes);
  for (RatedLink& link : set) link.rate /= load;
  return set;
}

TEST(MemberLinks, OfOneSetCarryTheirRatesAtOnceAndHaveTheBestBound) {
  TestRandom random(1);
  for (int repeat = 0; repeat < static_cast<int>(partOf(200)); ++repeat) {
    const RelayedCase c(random);
    const auto sets = memberLinks(c.members, c.links, c.routes);
    ASSERT_FALSE(sets.empty());
    const size_t members = c.members.size();
    double least = INFINITY;
    for (const LinkSet& set : sets) {
      ASSERT_LE(largestLoad(set, c.members, c.links, c.routes), 1 + 1e-5);
      ASSERT_TRUE(joinsAll(static_cast<int>(members), set));
      least = std::min(least, secondsOf(members, set));
    }
    ASSERT_GE(least, networkSeconds(c.servers, c.links, c.members) * (1 - 1e-4));
    // All pairs are in the set with fair rates. A set that is 0.5 % better is worthwhile.
    const LinkSet& all =
        *std::max_element(sets.begin(), sets.end(),
                          [](const LinkSet& a, const LinkSet& b) { return a.size() < b.size(); });
    for (int draw = 0; draw < 20; ++draw) {
      ASSERT_GE(secondsOf(members, atRandomRates(all, c, random)), least * 0.99);
    }
  }
}

// Both rings of the servers 0, 2 and 4 use the link from 1 to 2.
TEST(MemberLinks, LoadsOfRingsAddUpOnTheLinksOfRelays) {
  const std::vector<RatedLink> links{{0, 1, 2.0}, {1, 2, 1.0}, {2, 4, 1.0}, {4, 0, 1.0},
                                     {4, 1, 2.0}, {2, 0, 1.0}, {0, 4, 1.0}};
  const std::vector<plan::Route> routes{{{0, 1, 2}, 1.0}, {{4, 1, 2}, 1.0}};
  const std::vector<plan::Ring> rings{{{0, 2, 4}, 0.5}, {{0, 4, 2}, 0.5}};
  EXPECT_DOUBLE_EQ(busiestLink({rings[0]}, links, routes), 0.5);
  EXPECT_DOUBLE_EQ(busiestLink(rings, links, routes), 1.0);
  EXPECT_DOUBLE_EQ(busiestLinkOfPairs({0, 2, 4}, links, routes), 2.0);
}

TEST(LinearProgram, FindsTheOptimum) {
  // max 3a + 5b: a <= 4, 2b <= 12, 3a + 2b <= 18.
  const auto x = maximised({{3, 5}, {{1, 0}, {0, 2}, {3, 2}}, {4, 12, 18}});
  EXPECT_NEAR(x[0], 2, 1e-5);
  EXPECT_NEAR(x[1], 6, 1e-5);
}

// Beale's program, in which the largest gain alone cycles.
TEST(LinearProgram, EndsWhereItCouldCycle) {
  const auto x = maximised({{0.75, -150, 0.02, -6},
                            {{0.25, -60, -0.04, 9}, {0.5, -90, -0.02, 3}, {0, 0, 1, 0}},
                            {0, 0, 1}});
  EXPECT_NEAR(0.75 * x[0] - 150 * x[1] + 0.02 * x[2] - 6 * x[3], 0.05, 1e-4);
}

}  // namespace
}  // namespace topoopt
