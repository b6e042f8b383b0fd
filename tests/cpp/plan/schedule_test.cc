// Schedules over rings and chains with one member per server, executed in random orders of events
// and with almost no room in the network.

#include "plan/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "plan/direct_schedules.h"
#include "plan/ring_schedules.h"
#include "plan/tree_schedules.h"
#include "support/schedule_checks.h"
#include "support/schedule_executor.h"

namespace topoopt {
namespace {

constexpr size_t kMaxChunkBytes = 512 << 10;
constexpr size_t kSlots = 8;

// A group, its rings, and how the elements are stored.
struct Case {
  int size;
  std::vector<plan::Ring> rings;
  size_t element_bytes;
  size_t count;
  size_t window;  // elements

  GroupLayout layout() const { return GroupLayout(size, rings); }

  std::string text() const {
    return std::to_string(size) + " members, " + std::to_string(rings.size()) + " rings, " +
           std::to_string(count) + " elements of " + std::to_string(element_bytes) +
           " bytes, window " + std::to_string(window);
  }
};

std::vector<plan::Ring> randomRings(int size, size_t count, TestRandom& random) {
  std::vector<plan::Ring> rings;
  std::vector<double> weights;
  for (size_t r = 0; r < count; ++r) {
    plan::Ring ring;
    ring.servers.resize(static_cast<size_t>(size));
    std::iota(ring.servers.begin(), ring.servers.end(), 0);
    std::shuffle(ring.servers.begin(), ring.servers.end(), random.engine());
    weights.push_back(static_cast<double>(random.between(1, 10)));
    rings.push_back(ring);
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t r = 0; r < count; ++r) rings[r].share = weights[r] / sum;
  return rings;
}

// One chain per ring; every other time they leave their root both ways.
std::vector<TreeShare> chains(const Case& c, int root, ChainDirection flow) {
  std::vector<TreeShare> list;
  for (size_t r = 0; r < c.rings.size(); ++r) {
    const bool both_ways = (c.count + r) % 2 == 1;
    list.push_back({chainTree(c.layout(), c.rings[r], root, flow, both_ways), c.rings[r].share,
                    static_cast<int>(r)});
  }
  return list;
}

// Sizes from nothing to several chunks per slot; elements are large, so that few of them make many
// chunks. Windows from nothing (both ends have to be ready) to no limit.
std::vector<Case> cases(uint64_t salt) {
  TestRandom random(salt);
  std::vector<Case> list;
  for (const int size : {1, 2, 3, 5, 8}) {
    for (const size_t ring_count : {1, 2, 3, 4}) {
      const size_t members = static_cast<size_t>(size);
      for (const size_t count : {size_t{0}, size_t{1}, members - 1, size_t{7}, size_t{97},
                                 members * ring_count * (2 * kSlots + 3)}) {
        const size_t element_bytes =
            std::vector<size_t>{1, 8, 32 << 10, 64 << 10, 512 << 10}[random.between(0, 4)];
        const size_t window =
            std::vector<size_t>{0, 0, 1, 8, ScheduleExecutor::kUnbounded}[random.between(0, 4)];
        list.push_back({size, randomRings(size, ring_count, random), element_bytes, count, window});
      }
    }
  }
  return list;
}

void expectBoundedScratch(const std::vector<Schedule>& schedules, const Case& c) {
  const size_t largest_chunk = std::max(kMaxChunkBytes, c.element_bytes);
  for (const Schedule& schedule : schedules) {
    EXPECT_LE(schedule.scratch_bytes, c.rings.size() * kSlots * largest_chunk) << c.text();
    EXPECT_EQ(schedule.scratch_bytes % c.element_bytes, 0u);
  }
}

TEST(Divide, PartsTileTheWholeAndDifferByOne) {
  for (const size_t count : {0, 1, 5, 64, 97}) {
    for (const size_t parts : {1, 2, 3, 8, 100}) {
      size_t next = 11;
      for (size_t i = 0; i < parts; ++i) {
        const Extent part = divide({11, count}, parts, i);
        EXPECT_EQ(part.first, next);
        EXPECT_TRUE(part.count == count / parts || part.count == count / parts + 1);
        next += part.count;
      }
      EXPECT_EQ(next, 11 + count);
    }
  }
}

TEST(Divide, RingsGetTheirSharesToWithinOneElement) {
  TestRandom random(100);
  for (int i = 0; i < 300; ++i) {
    const auto rings = randomRings(3, random.between(1, 5), random);
    const size_t count = random.size(1 << 20);
    const auto parts = divideByShare(count, rings);
    size_t next = 0;
    for (size_t r = 0; r < rings.size(); ++r) {
      EXPECT_EQ(parts[r].first, next);
      EXPECT_NEAR(static_cast<double>(parts[r].count), rings[r].share * static_cast<double>(count),
                  1.001);
      next += parts[r].count;
    }
    EXPECT_EQ(next, count);
  }
}

// Per member: each element of the segment it reduces last is written by reductions only, and so on;
// over all members each element is reduced g - 1 times and gathered g - 1 times.
TEST(AllReduce, SumsOnAllMembersInAnyOrderOfEvents) {
  TestRandom random(1);
  for (const Case& c : cases(2)) {
    const auto schedules = forAll(c.size, [&](int rank) {
      return allReduceSchedule(c.layout(), Rings::kAll, rank, c.count, c.element_bytes);
    });
    expectBoundedScratch(schedules, c);
    ScheduleExecutor executor(schedules, c.element_bytes, c.window, random);
    const Values sum = fillInputs(executor, c.size, c.count, random);
    ASSERT_EQ(executor.run(), "") << c.text();
    std::vector<int> writes(c.count, 0);
    for (int rank = 0; rank < c.size; ++rank) {
      const MemberBuffers& own = executor.member(rank);
      ASSERT_EQ(own.input, sum) << c.text();
      for (size_t i = 0; i < own.input_writes.size(); ++i) {
        ASSERT_LE(own.input_writes[i], 2);
        writes[i] += own.input_writes[i];
      }
    }
    expectWrites(writes, 0, c.count, 2 * (c.size - 1));
  }
}

TEST(AllReduce, EachHopOfARingCarriesTwoTimesGMinusOneOverGOfItsBytes) {
  for (const Case& c : cases(3)) {
    if (c.size < 2) continue;
    const size_t g = static_cast<size_t>(c.size);
    const auto parts = divideByShare(c.count, c.rings);
    std::vector<size_t> ring_total(c.rings.size(), 0);
    for (int rank = 0; rank < c.size; ++rank) {
      const Schedule schedule =
          allReduceSchedule(c.layout(), Rings::kAll, rank, c.count, c.element_bytes);
      ASSERT_EQ(schedule.lanes.size(), c.rings.size());
      for (const Lane& lane : schedule.lanes) {
        const auto& order = c.rings[lane.stream].servers;
        const size_t position =
            static_cast<size_t>(std::find(order.begin(), order.end(), rank) - order.begin());
        size_t hop = 0;
        for (const Send& send : lane.sends) {
          ASSERT_EQ(send.peer, order[(position + 1) % g]);
          hop += send.from.bytes;
        }
        // All segments once per phase, but for the one that ends here and the one that starts at
        // the successor.
        const Extent part = parts[lane.stream];
        const size_t kept =
            divide(part, g, (position + 1) % g).count + divide(part, g, (position + 2) % g).count;
        EXPECT_EQ(hop, (2 * part.count - kept) * c.element_bytes) << c.text();
        if (part.count % g == 0) {
          EXPECT_EQ(hop * g, 2 * (g - 1) * part.count * c.element_bytes);
        }
        ring_total[lane.stream] += hop;
      }
    }
    for (size_t r = 0; r < c.rings.size(); ++r) {
      EXPECT_EQ(ring_total[r], 2 * (g - 1) * parts[r].count * c.element_bytes);
    }
  }
}

TEST(AllGather, CollectsAllBlocksOnAllMembers) {
  TestRandom random(4);
  for (const Case& c : cases(5)) {
    const auto counts = randomCounts(c.size, c.count, random);
    const auto schedules = forAll(c.size, [&](int rank) {
      return allGatherSchedule(c.layout(), Rings::kAll, rank, counts, c.element_bytes);
    });
    ScheduleExecutor executor(schedules, c.element_bytes, c.window, random);
    const Values all = randomValues(total(counts), random);
    for (int rank = 0; rank < c.size; ++rank) {
      EXPECT_EQ(schedules[rank].scratch_bytes, 0u);
      Values& output = executor.member(rank).output;
      output.resize(all.size());
      const auto own = static_cast<ptrdiff_t>(startOf(counts, rank));
      std::copy_n(all.begin() + own, counts[rank], output.begin() + own);
    }
    ASSERT_EQ(executor.run(), "") << c.text();
    for (int rank = 0; rank < c.size; ++rank) {
      const MemberBuffers& buffers = executor.member(rank);
      ASSERT_EQ(buffers.output, all) << c.text();
      for (int member = 0; member < c.size; ++member) {
        expectWrites(buffers.output_writes, startOf(counts, member), counts[member],
                     member == rank ? 0 : 1);
      }
    }
  }
}

TEST(ReduceScatter, LeavesEachMemberItsBlockOfTheSum) {
  TestRandom random(6);
  for (const Case& c : cases(7)) {
    const auto counts = random.chance(0.5)
                            ? randomCounts(c.size, c.count, random)
                            : std::vector<size_t>(static_cast<size_t>(c.size), c.count);
    const auto schedules = forAll(c.size, [&](int rank) {
      return reduceScatterSchedule(c.layout(), Rings::kAll, rank, counts, c.element_bytes);
    });
    expectBoundedScratch(schedules, c);
    if (c.size == 1) {
      EXPECT_TRUE(schedules[0].lanes.empty());  // nothing to exchange
      continue;
    }
    ScheduleExecutor executor(schedules, c.element_bytes, c.window, random);
    const Values sum = fillInputs(executor, c.size, total(counts), random);
    for (int rank = 0; rank < c.size; ++rank) executor.member(rank).output.resize(counts[rank]);
    ASSERT_EQ(executor.run(), "") << c.text();
    for (int rank = 0; rank < c.size; ++rank) {
      const MemberBuffers& buffers = executor.member(rank);
      const auto start = sum.begin() + static_cast<ptrdiff_t>(startOf(counts, rank));
      ASSERT_TRUE(std::equal(buffers.output.begin(), buffers.output.end(), start)) << c.text();
      expectWrites(buffers.input_writes, 0, total(counts), 0);
      expectWrites(buffers.output_writes, 0, counts[rank], 2);  // received, and reduced
    }
  }
}

// The smallest room in the network that there can be, and far more chunks than slots.
TEST(ReduceScatter, DoesNotDeadlockWithoutRoomInTheNetwork) {
  TestRandom random(8);
  for (const int size : {2, 3, 5, 8}) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      const auto rings = randomRings(size, 1, random);
      const auto counts = randomCounts(size, random.between(1, 80), random);
      const size_t element_bytes = repeat % 2 ? 64 << 10 : 512 << 10;
      const auto schedules = forAll(size, [&](int rank) {
        return reduceScatterSchedule(GroupLayout(size, rings), Rings::kAll, rank, counts,
                                     element_bytes);
      });
      ScheduleExecutor executor(schedules, element_bytes, random.between(0, 1), random);
      fillInputs(executor, size, total(counts), random);
      for (int rank = 0; rank < size; ++rank) executor.member(rank).output.resize(counts[rank]);
      ASSERT_EQ(executor.run(), "") << size << " members";
    }
  }
}

TEST(Broadcast, CopiesFromAnyRootToAllMembers) {
  TestRandom random(9);
  for (const Case& c : cases(10)) {
    const int root = static_cast<int>(random.between(0, static_cast<size_t>(c.size) - 1));
    const auto schedules = forAll(c.size, [&](int rank) {
      return treeBroadcastSchedule(chains(c, root, ChainDirection::kFromRoot), rank, c.count,
                                   c.element_bytes);
    });
    ScheduleExecutor executor(schedules, c.element_bytes, c.window, random);
    fillInputs(executor, c.size, c.count, random);
    const Values expected = executor.member(root).input;
    ASSERT_EQ(executor.run(), "") << c.text();
    for (int rank = 0; rank < c.size; ++rank) {
      EXPECT_EQ(schedules[rank].scratch_bytes, 0u);
      ASSERT_EQ(executor.member(rank).input, expected) << c.text();
      expectWrites(executor.member(rank).input_writes, 0, c.count, rank == root ? 0 : 1);
    }
  }
}

TEST(Reduce, LeavesTheSumAtTheRootAndTheInputsAlone) {
  TestRandom random(11);
  for (const Case& c : cases(12)) {
    const int root = static_cast<int>(random.between(0, static_cast<size_t>(c.size) - 1));
    const auto schedules = forAll(c.size, [&](int rank) {
      return treeReduceSchedule(chains(c, root, ChainDirection::kToRoot), rank, c.count,
                                c.element_bytes);
    });
    expectBoundedScratch(schedules, c);
    if (c.size == 1) {
      for (const Lane& lane : schedules[0].lanes) {
        EXPECT_TRUE(lane.receives.empty() && lane.sends.empty());
      }
      continue;
    }
    ScheduleExecutor executor(schedules, c.element_bytes, c.window, random);
    const Values sum = fillInputs(executor, c.size, c.count, random);
    executor.member(root).output.resize(c.count);
    ASSERT_EQ(executor.run(), "") << c.text();
    ASSERT_EQ(executor.member(root).output, sum) << c.text();
    // Received once, and reduced once per chain that ends here.
    const auto parts = divideByShare(c.count, c.rings);
    const auto trees = chains(c, root, ChainDirection::kToRoot);
    for (size_t r = 0; r < parts.size(); ++r) {
      const int children = static_cast<int>(trees[r].tree.childrenOf(root).size());
      expectWrites(executor.member(root).output_writes, parts[r].first, parts[r].count,
                   1 + children);
    }
    for (int rank = 0; rank < c.size; ++rank) {
      expectWrites(executor.member(rank).input_writes, 0, c.count, 0);
    }
  }
}

TEST(Exchange, MovesEveryBlockToItsPlace) {
  TestRandom random(13);
  for (const int size : {1, 2, 3, 5, 8}) {
    for (const size_t window : {size_t{0}, size_t{1}, ScheduleExecutor::kUnbounded}) {
      std::vector<std::vector<size_t>> bytes;  // [source][target]
      for (int rank = 0; rank < size; ++rank) bytes.push_back(randomCounts(size, 40, random));
      const auto column = [&](int target) {
        std::vector<size_t> sizes;
        for (const auto& row : bytes) sizes.push_back(row[static_cast<size_t>(target)]);
        return sizes;
      };
      const auto schedules =
          forAll(size, [&](int rank) { return exchangeSchedule(rank, bytes[rank], column(rank)); });
      ScheduleExecutor executor(schedules, 1, window, random);
      for (int rank = 0; rank < size; ++rank) {
        executor.member(rank).input = randomValues(total(bytes[rank]), random);
        executor.member(rank).output.resize(total(column(rank)));
      }
      ASSERT_EQ(executor.run(), "");
      for (int target = 0; target < size; ++target) {
        const MemberBuffers& to = executor.member(target);
        for (int source = 0; source < size; ++source) {
          const size_t into = startOf(column(target), source);
          const size_t count = bytes[source][target];
          expectWrites(to.output_writes, into, count, source == target ? 0 : 1);
          if (source == target) continue;
          const Values& input = executor.member(source).input;
          ASSERT_TRUE(
              std::equal(to.output.begin() + static_cast<ptrdiff_t>(into),
                         to.output.begin() + static_cast<ptrdiff_t>(into + count),
                         input.begin() + static_cast<ptrdiff_t>(startOf(bytes[source], target))));
        }
      }
    }
  }
}

}  // namespace
}  // namespace topoopt
