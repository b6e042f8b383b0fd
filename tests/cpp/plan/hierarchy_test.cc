// Collectives of groups whose servers hold several members: results in adversarial orders of
// events, and what crosses the links.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "plan/schedule_cache.h"
#include "support/schedule_checks.h"
#include "support/schedule_executor.h"

namespace topoopt {
namespace {

// Members per server, and the order in which the group numbers them.
struct Shape {
  std::vector<int> sizes;
  bool mixed;  // members of a server do not follow each other
};

const std::vector<Shape> kShapes = {
    {{2}, false},       {{3}, false},          {{2, 1}, false},   {{1, 2}, true},
    {{2, 2}, true},     {{3, 3, 2}, false},    {{1, 4, 1}, true}, {{2, 2, 2, 2, 2}, true},
    {{1, 1, 1}, false}, {{9, 1, 3, 1}, false},
};

std::vector<int> serversOf(const Shape& shape, TestRandom& random) {
  std::vector<int> servers;
  for (size_t s = 0; s < shape.sizes.size(); ++s) {
    servers.insert(servers.end(), static_cast<size_t>(shape.sizes[s]), static_cast<int>(s) + 10);
  }
  if (shape.mixed) std::shuffle(servers.begin(), servers.end(), random.engine());
  return servers;
}

GroupLayout layoutOf(const Shape& shape, size_t ring_count, TestRandom& random) {
  const std::vector<int> servers = serversOf(shape, random);
  std::vector<int> leaders;
  for (size_t i = 0; i < servers.size(); ++i) {
    if (std::find(servers.begin(), servers.begin() + static_cast<ptrdiff_t>(i), servers[i]) ==
        servers.begin() + static_cast<ptrdiff_t>(i)) {
      leaders.push_back(static_cast<int>(i));
    }
  }
  std::vector<plan::Ring> rings;
  for (size_t r = 0; r < ring_count; ++r) {
    std::shuffle(leaders.begin(), leaders.end(), random.engine());
    rings.push_back({leaders, 1.0 / static_cast<double>(ring_count)});
  }
  return GroupLayout(static_cast<int>(servers.size()), rings, servers);
}

struct Case {
  Case(const Shape& shape, TestRandom& random)
      : layout(layoutOf(shape, random.between(1, 3), random)),
        element_bytes(std::vector<size_t>{1, 8, 32 << 10, 512 << 10}[random.between(0, 3)]),
        count(random.chance(0.2) ? random.between(0, 3) : random.between(0, 150)),
        window(std::vector<size_t>{0, 1, 8, ScheduleExecutor::kUnbounded}[random.between(0, 3)]),
        root(static_cast<int>(random.between(0, static_cast<size_t>(layout.size()) - 1))) {}

  std::vector<Schedule> schedules(Collective collective, const std::vector<size_t>& counts,
                                  Algorithm algorithm) const {
    const ScheduleKey key{collective, counts, {}, element_bytes, root, false};
    return forAll(layout.size(), [&](int rank) {
      return ScheduleCache(layout, rank, {}, std::nullopt).build(key, algorithm)->schedule;
    });
  }
  size_t size() const { return static_cast<size_t>(layout.size()); }

  GroupLayout layout;
  size_t element_bytes;
  size_t count;
  size_t window;
  int root;
};

// Runs `check` for cases of every shape with every algorithm that serves the collective.
template <typename Check>
void forCases(Collective collective, uint64_t seed, Check check) {
  TestRandom random(seed);
  for (const Shape& shape : kShapes) {
    for (int repeat = 0; repeat < 4; ++repeat) {
      const Case c(shape, random);
      const CostEstimate estimate(c.layout, {});
      for (const Algorithm algorithm : estimate.candidates({collective, 1, 0, true})) {
        SCOPED_TRACE(std::to_string(c.layout.size()) + " members, " +
                     std::to_string(c.layout.leaders().size()) + " servers, " +
                     std::to_string(c.count) + " elements of " + std::to_string(c.element_bytes) +
                     " bytes, window " + std::to_string(c.window) + ", " + nameOf(algorithm));
        ASSERT_NO_FATAL_FAILURE(check(c, algorithm, random));
      }
    }
  }
}

TEST(Servers, AllReduceSumsOnAllMembers) {
  forCases(Collective::kAllReduce, 1, [](const Case& c, Algorithm algorithm, TestRandom& random) {
    const auto schedules = c.schedules(Collective::kAllReduce, {c.count}, algorithm);
    ScheduleExecutor executor(schedules, c.element_bytes, c.window, random);
    const Values sum = fillInputs(executor, c.layout.size(), c.count, random);
    ASSERT_EQ(executor.run(), "");
    for (size_t i = 0; i < c.size(); ++i)
      ASSERT_EQ(executor.member(static_cast<int>(i)).input, sum);
  });
}

TEST(Servers, BroadcastCopiesFromTheRoot) {
  forCases(Collective::kBroadcast, 2, [](const Case& c, Algorithm algorithm, TestRandom& random) {
    const auto schedules = c.schedules(Collective::kBroadcast, {c.count}, algorithm);
    ScheduleExecutor executor(schedules, c.element_bytes, c.window, random);
    fillInputs(executor, c.layout.size(), c.count, random);
    const Values expected = executor.member(c.root).input;
    ASSERT_EQ(executor.run(), "");
    for (size_t i = 0; i < c.size(); ++i) {
      ASSERT_EQ(executor.member(static_cast<int>(i)).input, expected);
    }
  });
}

TEST(Servers, ReduceLeavesTheSumAtTheRootAndTheInputsAlone) {
  forCases(Collective::kReduce, 3, [](const Case& c, Algorithm algorithm, TestRandom& random) {
    const auto schedules = c.schedules(Collective::kReduce, {c.count}, algorithm);
    ScheduleExecutor executor(schedules, c.element_bytes, c.window, random);
    const Values sum = fillInputs(executor, c.layout.size(), c.count, random);
    executor.member(c.root).output.resize(c.count);
    ASSERT_EQ(executor.run(), "");
    ASSERT_EQ(executor.member(c.root).output, sum);
    for (size_t i = 0; i < c.size(); ++i) {
      expectWrites(executor.member(static_cast<int>(i)).input_writes, 0, c.count, 0);
    }
  });
}

TEST(Servers, AllGatherCollectsAllBlocks) {
  forCases(Collective::kAllGather, 4, [](const Case& c, Algorithm algorithm, TestRandom& random) {
    const auto counts = randomCounts(c.layout.size(), c.count, random);
    const auto schedules = c.schedules(Collective::kAllGather, counts, algorithm);
    ScheduleExecutor executor(schedules, c.element_bytes, c.window, random);
    const Values all = randomValues(total(counts), random);
    for (int rank = 0; rank < c.layout.size(); ++rank) {
      Values& output = executor.member(rank).output;
      output.resize(all.size());
      const auto own = static_cast<ptrdiff_t>(startOf(counts, rank));
      std::copy_n(all.begin() + own, counts[rank], output.begin() + own);
    }
    ASSERT_EQ(executor.run(), "");
    for (int rank = 0; rank < c.layout.size(); ++rank) {
      ASSERT_EQ(executor.member(rank).output, all);
      for (int member = 0; member < c.layout.size(); ++member) {
        expectWrites(executor.member(rank).output_writes, startOf(counts, member), counts[member],
                     member == rank ? 0 : 1);
      }
    }
  });
}

TEST(Servers, ReduceScatterLeavesEachMemberItsBlock) {
  forCases(Collective::kReduceScatter, 5,
           [](const Case& c, Algorithm algorithm, TestRandom& random) {
             const auto counts = randomCounts(c.layout.size(), c.count, random);
             const auto schedules = c.schedules(Collective::kReduceScatter, counts, algorithm);
             ScheduleExecutor executor(schedules, c.element_bytes, c.window, random);
             const Values sum = fillInputs(executor, c.layout.size(), total(counts), random);
             for (int rank = 0; rank < c.layout.size(); ++rank) {
               executor.member(rank).output.resize(counts[rank]);
             }
             ASSERT_EQ(executor.run(), "");
             for (int rank = 0; rank < c.layout.size(); ++rank) {
               const MemberBuffers& buffers = executor.member(rank);
               const auto start = sum.begin() + static_cast<ptrdiff_t>(startOf(counts, rank));
               ASSERT_TRUE(std::equal(buffers.output.begin(), buffers.output.end(), start));
               expectWrites(buffers.input_writes, 0, total(counts), 0);
             }
           });
}

TEST(Servers, NobodyLeavesABarrierBeforeAllHaveCome) {
  forCases(Collective::kBarrier, 6, [](const Case& c, Algorithm algorithm, TestRandom& random) {
    // One member never comes: no other may get to the end.
    const int missing = c.root;
    if (c.layout.size() < 2) return;
    std::vector<Schedule> without = c.schedules(Collective::kBarrier, {}, algorithm);
    without[missing].lanes.clear();
    ScheduleExecutor stuck(without, 1, 8, random);
    for (int rank = 0; rank < c.layout.size(); ++rank) stuck.member(rank).input = {1};
    const std::string left = stuck.run();
    for (int rank = 0; rank < c.layout.size(); ++rank) {
      if (rank == missing) continue;
      EXPECT_NE(left.find("member " + std::to_string(rank) + " lane"), std::string::npos);
    }
    ScheduleExecutor executor(c.schedules(Collective::kBarrier, {}, algorithm), 1, 8, random);
    for (int rank = 0; rank < c.layout.size(); ++rank) executor.member(rank).input = {1};
    EXPECT_EQ(executor.run(), "");
  });
}

// ---- what crosses the links
// ----------------------------------------------------------------------

using Traffic = std::map<std::pair<int, int>, size_t>;  // bytes from server to server

// By leader; what members of one server send each other is left out.
Traffic trafficOf(const GroupLayout& layout, const std::vector<Schedule>& schedules) {
  Traffic traffic;
  for (int rank = 0; rank < layout.size(); ++rank) {
    for (const Lane& lane : schedules[rank].lanes) {
      for (const Send& send : lane.sends) {
        const int from = layout.leaderOf(rank);
        const int to = layout.leaderOf(send.peer);
        if (from != to) traffic[{from, to}] += send.from.bytes;
      }
    }
  }
  return traffic;
}

// The same group with only the first member of each server, numbered as in the whole group.
Traffic leanTraffic(const Case& c, Collective collective, std::vector<size_t> counts,
                    Algorithm algorithm) {
  const std::vector<int>& leaders = c.layout.leaders();
  const auto number = [&](int leader) {
    return static_cast<int>(std::find(leaders.begin(), leaders.end(), leader) - leaders.begin());
  };
  std::vector<plan::Ring> rings = c.layout.rings();
  for (plan::Ring& ring : rings) {
    for (int& leader : ring.servers) leader = number(leader);
  }
  if (counts.size() == c.size()) {  // a server's blocks are those of all its members
    std::vector<size_t> of_server(leaders.size(), 0);
    for (size_t i = 0; i < counts.size(); ++i) {
      of_server[number(c.layout.leaderOf(static_cast<int>(i)))] += counts[i];
    }
    counts = of_server;
  }
  GroupLayout layout(static_cast<int>(leaders.size()), rings);
  const ScheduleKey key{collective, counts, {}, c.element_bytes, number(c.layout.leaderOf(c.root)),
                        false};
  const auto schedules = forAll(layout.size(), [&](int rank) {
    return ScheduleCache(layout, rank, {}, std::nullopt).build(key, algorithm)->schedule;
  });
  Traffic traffic;
  for (const auto& [pair, bytes] : trafficOf(layout, schedules)) {
    traffic[{leaders[pair.first], leaders[pair.second]}] = bytes;
  }
  return traffic;
}

TEST(Servers, LinksCarryWhatTheyWouldWithOneMemberPerServer) {
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce, Collective::kAllGather,
        Collective::kReduceScatter}) {
    forCases(collective, 7, [&](const Case& c, Algorithm algorithm, TestRandom&) {
      if (algorithm == Algorithm::kDoubling) return;
      const bool blocks =
          collective == Collective::kAllGather || collective == Collective::kReduceScatter;
      // A number of elements per block that divides evenly, so that nothing depends on rounding.
      const size_t even = 6 * c.layout.rings().size();
      const std::vector<size_t> counts =
          blocks ? std::vector<size_t>(c.size(), even) : std::vector<size_t>{c.count};
      const Traffic traffic = trafficOf(c.layout, c.schedules(collective, counts, algorithm));
      EXPECT_EQ(traffic, leanTraffic(c, collective, counts, algorithm)) << nameOf(collective);
    });
  }
}

TEST(Servers, ScratchStaysBelowItsLimit) {
  TestRandom random(8);
  std::vector<int> servers;
  for (int i = 0; i < 64; ++i) servers.push_back(i / 16);
  std::vector<plan::Ring> rings(8, {{0, 16, 32, 48}, 1.0 / 8});
  const GroupLayout layout(64, rings, servers);
  ScheduleCache cache(layout, 0, {}, std::nullopt);
  for (const Algorithm algorithm : {Algorithm::kMultiRing, Algorithm::kTree}) {
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
      if (algorithm == Algorithm::kTree && collective == Collective::kReduceScatter) continue;
      const ScheduleKey key{
          collective,
          {collective == Collective::kReduceScatter ? std::vector<size_t>(64, 1 << 20)
                                                    : std::vector<size_t>{64 << 20}},
          {},
          4,
          0,
          false};
      const auto prepared = cache.build(key, algorithm);
      EXPECT_GT(prepared->schedule.scratch_bytes, 0u);
      EXPECT_LE(prepared->schedule.scratch_bytes, kScratchLimitBytes) << nameOf(collective);
    }
  }
}

TEST(GroupLayout, RefusesWhatIsNotOneGroup) {
  const std::vector<plan::Ring> ring = {{{0, 2}, 1.0}};
  EXPECT_NO_THROW(GroupLayout(3, ring, {5, 5, 6}));
  EXPECT_THROW(GroupLayout(3, ring, {5, 6, 6}), std::invalid_argument);  // 1 leads, 2 does not
  EXPECT_THROW(GroupLayout(3, ring, {5, 6}), std::invalid_argument);
  const auto hops = std::make_shared<const HopTable>(6, std::vector<uint16_t>(36, 1));
  EXPECT_THROW(GroupLayout(3, ring, {5, 5, 6}, hops), std::invalid_argument);
  EXPECT_THROW(GroupLayout(3, {}, {5, 5, 6}), std::invalid_argument);
  EXPECT_NO_THROW(GroupLayout(2, {}, {5, 5}));
}

}  // namespace
}  // namespace topoopt
