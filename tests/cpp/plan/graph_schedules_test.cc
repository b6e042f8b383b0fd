// Collectives over any graph: results in adversarial orders of events, bytes on links, and numbers
// of steps.

#include "plan/graph_schedules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "plan/block_schedules.h"
#include "plan/breadth_first.h"
#include "plan/collective_candidates.h"
#include "plan/flooding_schedules.h"
#include "plan/group_layout.h"
#include "plan/integer_links.h"
#include "plan/scatter_plan.h"
#include "support/schedule_checks.h"
#include "support/schedule_executor.h"
#include "support/test_limits.h"

namespace topoopt {
namespace {

// Strongly connected: a ring of one-way links, and further links of any rate.
std::vector<RatedLink> randomLinks(int servers, TestRandom& random) {
  std::vector<int> order(static_cast<size_t>(servers));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random.engine());
  std::vector<RatedLink> links;
  const bool equal = random.chance(0.5);
  const auto rate = [&] { return equal ? 1.0 : static_cast<double>(random.between(1, 9)); };
  for (int i = 0; i < servers; ++i) {
    links.push_back({order[i], order[(i + 1) % servers], rate()});
  }
  for (size_t more = random.between(0, 3 * static_cast<size_t>(servers)); more > 0; --more) {
    const int source = static_cast<int>(random.between(0, servers - 1));
    const int target = static_cast<int>(random.between(0, servers - 1));
    if (source != target) links.push_back({source, target, rate()});
  }
  return links;
}

// As many members on each server, in any order.
GroupLayout groupOf(int places, int members, TestRandom& random) {
  std::vector<int> servers;
  for (int i = 0; i < places * members; ++i) servers.push_back(i / members);
  if (members > 1) std::shuffle(servers.begin(), servers.end(), random.engine());
  std::vector<int> leaders;
  std::map<int, int> first;
  for (size_t i = 0; i < servers.size(); ++i) {
    if (first.try_emplace(servers[i], static_cast<int>(i)).second) {
      leaders.push_back(static_cast<int>(i));
    }
  }
  return GroupLayout(static_cast<int>(servers.size()), {{leaders, 1.0}}, servers);
}

// A random case: graph, plans in both directions, group and sizes.
struct GraphCase {
  explicit GraphCase(TestRandom& random, int origin = -1)
      : places(static_cast<int>(random.between(2, 7))),
        members(random.chance(0.3) ? 2 : 1),
        links(randomLinks(places, random)),
        layout(groupOf(places, members, random)),
        root(origin < 0 ? -1 : static_cast<int>(random.between(0, layout.size() - 1))),
        plan(breadthFirst(places, links, origins())),
        backward(breadthFirst(places, reversed(links), origins())),
        element_bytes(std::vector<size_t>{1, 8, 8 << 10, 512 << 10}[random.between(0, 3)]),
        count(std::vector<size_t>{0, 1, 5, 97, 300}[random.between(0, 4)] + random.between(0, 40)),
        run{random.between(1, 9), 3},
        window(
            std::vector<size_t>{0, 0, 1, 8, ScheduleExecutor::kUnbounded}[random.between(0, 4)]) {
    if (random.chance(0.2) && root < 0) plan = backward = oneShot(places);
  }

  std::vector<int> origins() const {
    if (root < 0) return {};
    const auto leader =
        std::lower_bound(layout.leaders().begin(), layout.leaders().end(), layout.leaderOf(root));
    return {static_cast<int>(leader - layout.leaders().begin())};
  }
  ScheduleExecutor executor(std::vector<Schedule> schedules, TestRandom& random) const {
    return ScheduleExecutor(std::move(schedules), element_bytes, window, random);
  }
  std::string text() const {
    return std::to_string(places) + " servers with " + std::to_string(members) + " members, " +
           std::to_string(count) + " elements of " + std::to_string(element_bytes) + " bytes, " +
           std::to_string(run.rounds) + " rounds, window " + std::to_string(window);
  }

  int places;
  int members;
  std::vector<RatedLink> links;
  GroupLayout layout;
  int root;
  GatherPlan plan;
  GatherPlan backward;
  size_t element_bytes;
  size_t count;
  GraphRun run;
  size_t window;
};

const int kRepeats = static_cast<int>(partOf(150));

TEST(GraphSchedules, AllReduceSumsOnAllMembers) {
  TestRandom random(1);
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const GraphCase c(random);
    SCOPED_TRACE(c.text());
    auto executor =
        c.executor(forAll(c.layout.size(),
                          [&](int rank) {
                            return graphAllReduceSchedule(c.layout, c.backward, c.plan, rank,
                                                          c.count, c.element_bytes, c.run);
                          }),
                   random);
    const Values sum = fillInputs(executor, c.layout.size(), c.count, random);
    ASSERT_EQ(executor.run(), "");
    for (int rank = 0; rank < c.layout.size(); ++rank) ASSERT_EQ(executor.member(rank).input, sum);
  }
}

TEST(GraphSchedules, AllGatherCopiesEveryBlock) {
  TestRandom random(2);
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const GraphCase c(random);
    SCOPED_TRACE(c.text());
    const auto counts = randomCounts(c.layout.size(), c.count, random);
    auto executor = c.executor(forAll(c.layout.size(),
                                      [&](int rank) {
                                        return graphAllGatherSchedule(
                                            c.layout, c.plan, rank, counts, c.element_bytes, c.run);
                                      }),
                               random);
    const Values all = randomValues(total(counts), random);
    for (int rank = 0; rank < c.layout.size(); ++rank) {
      Values& output = executor.member(rank).output;
      output.assign(all.size(), 0);
      const size_t first = startOf(counts, rank);
      std::copy_n(all.begin() + static_cast<ptrdiff_t>(first), counts[rank],
                  output.begin() + static_cast<ptrdiff_t>(first));
    }
    ASSERT_EQ(executor.run(), "");
    for (int rank = 0; rank < c.layout.size(); ++rank) ASSERT_EQ(executor.member(rank).output, all);
  }
}

TEST(GraphSchedules, ReduceScatterSumsEveryBlockAtItsMember) {
  TestRandom random(3);
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const GraphCase c(random);
    SCOPED_TRACE(c.text());
    const auto counts = randomCounts(c.layout.size(), c.count, random);
    auto executor =
        c.executor(forAll(c.layout.size(),
                          [&](int rank) {
                            return graphReduceScatterSchedule(c.layout, c.backward, rank, counts,
                                                              c.element_bytes, c.run);
                          }),
                   random);
    const Values sum = fillInputs(executor, c.layout.size(), total(counts), random);
    std::vector<Values> inputs;
    for (int rank = 0; rank < c.layout.size(); ++rank) {
      inputs.push_back(executor.member(rank).input);
      executor.member(rank).output.assign(counts[rank], 0);
    }
    ASSERT_EQ(executor.run(), "");
    for (int rank = 0; rank < c.layout.size(); ++rank) {
      const auto first = sum.begin() + static_cast<ptrdiff_t>(startOf(counts, rank));
      ASSERT_EQ(executor.member(rank).output,
                Values(first, first + static_cast<ptrdiff_t>(counts[rank])));
      ASSERT_EQ(executor.member(rank).input, inputs[rank]);
    }
  }
}

TEST(GraphSchedules, BroadcastAndReduceServeOneRoot) {
  TestRandom random(4);
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const GraphCase c(random, 0);
    SCOPED_TRACE(c.text() + ", root " + std::to_string(c.root));
    auto broadcast =
        c.executor(forAll(c.layout.size(),
                          [&](int rank) {
                            return graphBroadcastSchedule(c.layout, c.plan, rank, c.root, c.count,
                                                          c.element_bytes, c.run);
                          }),
                   random);
    fillInputs(broadcast, c.layout.size(), c.count, random);
    const Values data = broadcast.member(c.root).input;
    ASSERT_EQ(broadcast.run(), "");
    for (int rank = 0; rank < c.layout.size(); ++rank)
      ASSERT_EQ(broadcast.member(rank).input, data);

    auto reduce = c.executor(forAll(c.layout.size(),
                                    [&](int rank) {
                                      return graphReduceSchedule(c.layout, c.backward, rank, c.root,
                                                                 c.count, c.element_bytes, c.run);
                                    }),
                             random);
    const Values sum = fillInputs(reduce, c.layout.size(), c.count, random);
    reduce.member(c.root).output.assign(c.count, 0);
    ASSERT_EQ(reduce.run(), "");
    ASSERT_EQ(reduce.member(c.root).output, sum);
  }
}

// The place of the case's root.
int placeOfRoot(const GraphCase& c) { return c.layout.placeOf(c.root); }

TEST(GraphSchedules, ScatterAndGatherMoveEveryBlock) {
  TestRandom random(8);
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const GraphCase c(random, 0);
    SCOPED_TRACE(c.text() + ", root " + std::to_string(c.root));
    const auto counts = randomCounts(c.layout.size(), c.count, random);
    const GatherPlan plan = scatterPlan(c.places, c.links, placeOfRoot(c));
    const GatherPlan backward = scatterPlan(c.places, reversed(c.links), placeOfRoot(c));
    const Values all = randomValues(total(counts), random);
    const auto blockOf = [&](int rank) {
      const auto first = all.begin() + static_cast<ptrdiff_t>(startOf(counts, rank));
      return Values(first, first + static_cast<ptrdiff_t>(counts[rank]));
    };
    auto scatter = c.executor(forAll(c.layout.size(),
                                     [&](int rank) {
                                       return graphScatterSchedule(c.layout, plan, rank, c.root,
                                                                   counts, c.element_bytes, c.run);
                                     }),
                              random);
    scatter.member(c.root).input = all;
    for (int rank = 0; rank < c.layout.size(); ++rank) {
      scatter.member(rank).output.assign(counts[rank], 0);
    }
    ASSERT_EQ(scatter.run(), "");
    for (int rank = 0; rank < c.layout.size(); ++rank) {
      if (rank == c.root) continue;
      ASSERT_EQ(scatter.member(rank).output, blockOf(rank));
    }
    auto gather = c.executor(forAll(c.layout.size(),
                                    [&](int rank) {
                                      return graphGatherSchedule(c.layout, backward, rank, c.root,
                                                                 counts, c.element_bytes, c.run);
                                    }),
                             random);
    for (int rank = 0; rank < c.layout.size(); ++rank) gather.member(rank).input = blockOf(rank);
    Values& gathered = gather.member(c.root).output;
    gathered.assign(all.size(), 0);
    const auto own = static_cast<ptrdiff_t>(startOf(counts, c.root));
    std::copy_n(all.begin() + own, counts[c.root], gathered.begin() + own);
    ASSERT_EQ(gather.run(), "");
    ASSERT_EQ(gather.member(c.root).output, all);
  }
}

TEST(GraphSchedules, FloodingAddsInTheOrderOfServersOnAllMembers) {
  TestRandom random(5);
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    GraphCase c(random);
    const GroupLayout layout = groupOf(c.places, 1, random);
    SCOPED_TRACE(c.text());
    auto executor = c.executor(forAll(layout.size(),
                                      [&](int rank) {
                                        return floodingAllReduceSchedule(
                                            layout, c.plan, rank, c.count, c.element_bytes, 3);
                                      }),
                               random);
    const Values sum = fillInputs(executor, layout.size(), c.count, random);
    ASSERT_EQ(executor.run(), "");
    for (int rank = 0; rank < layout.size(); ++rank) ASSERT_EQ(executor.member(rank).input, sum);
  }
}

// One-way circulant: every server sends to the next ones at distances 1 and 3.
std::vector<RatedLink> circulant(int servers) {
  std::vector<RatedLink> links;
  for (int i = 0; i < servers; ++i) {
    links.push_back({i, (i + 1) % servers, 1.0});
    links.push_back({i, (i + 3) % servers, 1.0});
  }
  return links;
}

TEST(GraphSchedules, LinksOfACirculantCarryEqualShares) {
  TestRandom random(6);
  const int servers = 9;
  const GroupLayout layout = groupOf(servers, 1, random);
  const GatherPlan plan = breadthFirst(servers, circulant(servers));
  EXPECT_EQ(plan.steps, 4);
  const size_t count = 9 * 12;
  std::map<std::pair<int, int>, size_t> bytes;
  for (int rank = 0; rank < servers; ++rank) {
    const Schedule schedule = graphAllReduceSchedule(
        layout, breadthFirst(servers, reversed(circulant(servers))), plan, rank, count, 1, {1, 0});
    for (const Lane& lane : schedule.lanes) {
      for (const Send& send : lane.sends) bytes[{rank, send.peer}] += send.from.bytes;
    }
  }
  ASSERT_EQ(bytes.size(), 2 * static_cast<size_t>(servers));
  for (const auto& [link, sent] : bytes) EXPECT_EQ(sent, 2 * 8 * (count / 9) / 2);
}

TEST(BreadthFirst, CoversEveryShardOnceAndSendersHaveWhatTheySend) {
  TestRandom random(7);
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const int servers = static_cast<int>(random.between(1, 24));
    const auto links = randomLinks(servers < 2 ? 2 : servers, random);
    const int all = servers < 2 ? 2 : servers;
    const GatherPlan plan = breadthFirst(all, links);
    // step in which each server has each unit of each shard
    std::map<std::pair<int, int>, std::vector<int>> has;
    for (int server = 0; server < all; ++server) {
      for (const Piece& piece : plan.received[server]) {
        auto& units = has[{server, piece.origin}];
        units.resize(static_cast<size_t>(plan.units), -1);
        ASSERT_NE(piece.origin, server);
        for (int32_t unit = piece.first; unit < piece.end; ++unit) {
          ASSERT_EQ(units.at(unit), -1);
          units[unit] = piece.step;
        }
      }
    }
    ASSERT_EQ(has.size(), static_cast<size_t>(all) * (all - 1));
    for (int server = 0; server < all; ++server) {
      for (const Piece& piece : plan.received[server]) {
        ASSERT_LT(piece.step, plan.steps);
        if (piece.sender == piece.origin) continue;
        const auto& units = has.at({piece.sender, piece.origin});
        for (int32_t unit = piece.first; unit < piece.end; ++unit) {
          ASSERT_LT(units.at(unit), piece.step);
        }
      }
    }
    for (const auto& [pair, units] : has) {
      ASSERT_EQ(std::count(units.begin(), units.end(), -1), 0);
    }
  }
}

// The load of the root's busiest link cannot be less than that of any set of servers without it,
// over shortest paths.
double leastLoad(int servers, const std::vector<RatedLink>& links, int root) {
  std::vector<int> depth(static_cast<size_t>(servers), -1);
  depth[root] = 0;
  for (int round = 0; round < servers; ++round) {
    for (const RatedLink& link : links) {
      if (depth[link.source] == round && depth[link.target] < 0) depth[link.target] = round + 1;
    }
  }
  double most = 0;
  for (int inside = 1; inside < 1 << servers; ++inside) {
    const auto has = [&](int server) { return (inside >> server & 1) != 0; };
    if (has(root)) continue;
    double rate = 0;
    for (const RatedLink& link : links) {
      const bool nearer = depth[link.target] == depth[link.source] + 1;
      if (nearer && !has(link.source) && has(link.target)) rate += link.rate;
    }
    most = std::max(most, std::popcount(static_cast<unsigned>(inside)) / rate);
  }
  return most;
}

TEST(ScatterPlan, SendsWhatItHasAndReachesTheLeastLoad) {
  TestRandom random(9);
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const int servers = static_cast<int>(random.between(2, 9));
    const auto links = randomLinks(servers, random);
    const int root = static_cast<int>(random.between(0, static_cast<size_t>(servers) - 1));
    const GatherPlan plan = scatterPlan(servers, links, root);
    // step in which each server has each unit of each block
    std::map<std::pair<int, int>, std::map<int32_t, int>> has;
    for (int server = 0; server < servers; ++server) {
      for (const Piece& piece : plan.received[server]) {
        for (int32_t unit = piece.first; unit < piece.end; ++unit) {
          ASSERT_TRUE((has[{server, piece.origin}].emplace(unit, piece.step).second));
        }
      }
    }
    for (int server = 0; server < servers; ++server) {
      if (server == root) continue;
      ASSERT_EQ((has[{server, server}].size()), static_cast<size_t>(plan.units));
      for (const Piece& piece : plan.received[server]) {
        ASSERT_LT(piece.step, plan.steps);
        if (piece.sender == root) continue;
        for (int32_t unit = piece.first; unit < piece.end; ++unit) {
          ASSERT_LT((has.at({piece.sender, piece.origin}).at(unit)), piece.step);
        }
      }
    }
    const double least = leastLoad(servers, links, root);
    ASSERT_NEAR(loadOf(plan, links).busiest_s / least, 1, 2e-3);
    ASSERT_LE(scatterBound(servers, links, root), least * (1 + 1e-9));
  }
}

TEST(ScatterPlan, RefusesAServerThatTheRootDoesNotReach) {
  EXPECT_THROW(scatterPlan(3, {{0, 1, 1.0}, {1, 0, 1.0}, {2, 0, 1.0}}, 0), std::invalid_argument);
  EXPECT_THROW(scatterBound(3, {{0, 1, 1.0}, {2, 0, 1.0}}, 0), std::invalid_argument);
}

TEST(BreadthFirst, RefusesLinksThatCannotBe) {
  EXPECT_THROW(breadthFirst(2, {{0, 1, 1.0}}), std::invalid_argument);
}

TEST(RatedLinks, AllThatReadLinksRefuseTheSameOnes) {
  const double infinite = std::numeric_limits<double>::infinity();
  const std::vector<RatedLink> wrong = {{1, 2, 1.0},  {-1, 0, 1.0},     {1, 1, 1.0}, {1, 0, 0.0},
                                        {1, 0, -1.0}, {1, 0, infinite}, {1, 0, NAN}};
  for (const RatedLink& link : wrong) {
    const std::vector<RatedLink> links = {{0, 1, 1.0}, {1, 0, 1.0}, link};
    EXPECT_THROW(checkLinks(2, links), std::invalid_argument);
    EXPECT_THROW(joinsAll(2, links), std::invalid_argument);
    EXPECT_THROW(breadthFirst(2, links), std::invalid_argument);
    EXPECT_THROW(IntegerLinks(2, links), std::invalid_argument);
    EXPECT_THROW(GraphGroup(2, links, {}, {}), std::invalid_argument);
  }
}

}  // namespace
}  // namespace topoopt
