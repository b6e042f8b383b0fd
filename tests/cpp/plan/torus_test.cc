// AllReduce on the rows and columns of a torus: results in adversarial orders of events, what links
// carry, how many steps it takes, and when it is chosen.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "plan/direct_schedules.h"
#include "plan/schedule_cache.h"
#include "plan/torus_schedules.h"
#include "support/schedule_checks.h"
#include "support/schedule_executor.h"
#include "support/test_limits.h"

namespace topoopt {
namespace {

constexpr int kPart = 7;

// Servers in a random order, each with as many members; members of a server need not follow each
// other.
GroupLayout torus(int rows, int columns, int members, TestRandom& random) {
  std::vector<int> servers;
  for (int i = 0; i < rows * columns * members; ++i) servers.push_back(i / members);
  if (random.chance(0.5)) std::shuffle(servers.begin(), servers.end(), random.engine());
  std::map<int, int> leaders;
  for (size_t i = 0; i < servers.size(); ++i) leaders.try_emplace(servers[i], static_cast<int>(i));
  std::vector<int> order;
  for (const auto& [server, leader] : leaders) order.push_back(leader);
  std::shuffle(order.begin(), order.end(), random.engine());
  plan::Grid grid;
  for (auto row = order.begin(); row != order.end(); row += columns) {
    grid.emplace_back(row, row + columns);
  }
  return GroupLayout(static_cast<int>(servers.size()), {{order, 1.0}}, servers, nullptr, grid);
}

std::vector<Schedule> schedulesOf(const GroupLayout& layout, size_t count, size_t element_bytes) {
  return forAll(layout.size(), [&](int rank) {
    return torusAllReduceSchedule(layout, rank, count, element_bytes, kPart);
  });
}

struct Shape {
  int rows;
  int columns;
};
const std::vector<Shape> kShapes = {{2, 2}, {2, 3}, {3, 2}, {3, 3}, {4, 4}, {2, 5}, {5, 3}};

TEST(Swing, SumsOnAllMembersInAnyOrderOfEvents) {
  TestRandom random(11);
  for (const Shape& shape : std::vector<Shape>{{2, 2}, {2, 4}, {4, 4}, {8, 2}, {4, 8}}) {
    for (int repeat = 0; repeat < static_cast<int>(partOf(6)); ++repeat) {
      const GroupLayout layout = torus(shape.rows, shape.columns, 1, random);
      const size_t count = std::vector<size_t>{0, 1, 3, 97}[random.between(0, 3)];
      const size_t window = std::vector<size_t>{0, 8, ScheduleExecutor::kUnbounded}[repeat % 3];
      SCOPED_TRACE(std::to_string(shape.rows) + " x " + std::to_string(shape.columns) + ", " +
                   std::to_string(count));
      ScheduleExecutor executor(forAll(layout.size(),
                                       [&](int rank) {
                                         return swingAllReduceSchedule(layout.grid(), rank, count,
                                                                       8, kPart);
                                       }),
                                8, window, random);
      const Values sum = fillInputs(executor, layout.size(), count, random);
      ASSERT_EQ(executor.run(), "");
      for (int rank = 0; rank < layout.size(); ++rank) ASSERT_EQ(executor.member(rank).input, sum);
    }
  }
}

// A message along a row goes to the nearer side, so a link of a row carries those of the members in
// front of it.
TEST(Swing, LinksOfASquareTorusCarryAQuarterTimesTheDistance) {
  TestRandom random(12);
  const int side = 8;
  const size_t count = 64;
  const GroupLayout layout = torus(side, side, 1, random);
  const plan::Grid& grid = layout.grid();
  std::map<int, std::pair<int, int>> at;
  for (int row = 0; row < side; ++row) {
    for (int column = 0; column < side; ++column) at[grid[row][column]] = {row, column};
  }
  std::map<std::pair<int, int>, size_t> carried;
  for (int rank = 0; rank < layout.size(); ++rank) {
    for (const Lane& lane : swingAllReduceSchedule(grid, rank, count, 1).lanes) {
      for (const Send& send : lane.sends) {
        auto [row, column] = at.at(rank);
        const auto [to_row, to_column] = at.at(send.peer);
        ASSERT_TRUE(row == to_row || column == to_column);
        const auto step = [](int from, int to) {
          const int ahead = (to - from + side) % side;
          return ahead == 0 ? 0 : ahead <= side / 2 ? 1 : side - 1;
        };
        while (row != to_row || column != to_column) {
          const int next_row = (row + step(row, to_row)) % side;
          const int next_column = (column + step(column, to_column)) % side;
          carried[{grid[row][column], grid[next_row][next_column]}] += send.from.bytes;
          row = next_row;
          column = next_column;
        }
      }
    }
  }
  ASSERT_EQ(carried.size(), 4u * side * side);
  // Distances 1, 1 and 3, along rows first for a half of the elements.
  for (const auto& [link, bytes] : carried) EXPECT_EQ(bytes, 2 * (1 + 1 + 3) * count / 4);
}

// Flooding has the same latency on 4 x 4, and breadth-first fewer bytes; in between, Swing is the
// cheapest by more than 3 %.
TEST(Swing, IsChosenBetweenFloodingAndBreadthFirst) {
  for (const int side : {4, 8}) {
    plan::Grid grid;
    std::vector<int> order;
    std::vector<uint16_t> hops;
    std::vector<RatedLink> links;
    const auto apart = [&](int a, int b) {
      return std::min((a - b + side) % side, (b - a + side) % side);
    };
    for (int a = 0; a < side * side; ++a) {
      order.push_back(a);
      if (a % side == 0) grid.emplace_back();
      grid.back().push_back(a);
      for (int b = 0; b < side * side; ++b) {
        const int distance = apart(a / side, b / side) + apart(a % side, b % side);
        hops.push_back(static_cast<uint16_t>(distance));
        if (distance == 1) links.push_back({a, b, 1.0});
      }
    }
    GroupLayout layout(side * side, {{order, 1.0}}, {},
                       std::make_shared<HopTable>(side * side, hops), grid);
    layout.setLinks(links);
    CostModel cost;
    cost.alpha_s = 2e-6;
    cost.per_hop_latency_s = 1e-6;
    cost.beta_s_per_byte = 8e-11;
    cost.gamma_s_per_byte = 0;
    const CostEstimate estimate(layout, cost);
    const Request request{Collective::kAllReduce, 64 << 10, 0, true};
    const double swing_s = estimate.seconds(request, Algorithm::kSwing);
    for (const Algorithm other : estimate.candidates(request)) {
      if (other == Algorithm::kSwing) continue;
      EXPECT_GT(estimate.seconds(request, other), 1.03 * swing_s) << side << nameOf(other);
    }
    EXPECT_EQ(estimate.choose({Collective::kAllReduce, 4 << 20, 0, true}, std::nullopt),
              Algorithm::kBreadthFirst);
  }
}

TEST(Torus, SumsOnAllMembersInAnyOrderOfEvents) {
  TestRandom random(1);
  for (const Shape& shape : kShapes) {
    for (int repeat = 0; repeat < 3 * static_cast<int>(partOf(3)); ++repeat) {
      const int members = repeat % 3 == 2 ? static_cast<int>(random.between(2, 3)) : 1;
      const GroupLayout layout = torus(shape.rows, shape.columns, members, random);
      const size_t element_bytes =
          std::vector<size_t>{1, 8, 8 << 10, 64 << 10, 512 << 10}[random.between(0, 4)];
      const size_t count =
          std::vector<size_t>{0, 1, 5, 97, 400}[random.between(0, 4)] + random.between(0, 40);
      const size_t window =
          std::vector<size_t>{0, 0, 1, 8, ScheduleExecutor::kUnbounded}[random.between(0, 4)];
      SCOPED_TRACE(std::to_string(shape.rows) + " x " + std::to_string(shape.columns) + " x " +
                   std::to_string(members) + ", " + std::to_string(count) + " elements of " +
                   std::to_string(element_bytes) + " bytes, window " + std::to_string(window));
      ScheduleExecutor executor(schedulesOf(layout, count, element_bytes), element_bytes, window,
                                random);
      const Values sum = fillInputs(executor, layout.size(), count, random);
      ASSERT_EQ(executor.run(), "");
      std::vector<int> writes(count, 0);
      for (int rank = 0; rank < layout.size(); ++rank) {
        ASSERT_EQ(executor.member(rank).input, sum);
        const std::vector<int>& own = executor.member(rank).input_writes;
        for (size_t i = 0; i < own.size(); ++i) writes[i] += own[i];
      }
      // Added to once by every member but one, and then received by all but one.
      expectWrites(writes, 0, count, 2 * (layout.size() - 1));
    }
  }
}

// Elements that many members wait for, with no room in the network and far more chunks than slots.
TEST(Torus, DoesNotDeadlockWithoutRoomInTheNetwork) {
  TestRandom random(2);
  for (const Shape& shape : {Shape{2, 2}, Shape{3, 3}, Shape{2, 4}}) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      const GroupLayout layout = torus(shape.rows, shape.columns, 1 + repeat % 2, random);
      const auto places = static_cast<size_t>(shape.rows * shape.columns);
      const size_t count = kTorusParts * places * (10 + random.between(0, 3));
      ScheduleExecutor executor(schedulesOf(layout, count, 512 << 10), 512 << 10,
                                random.between(0, 1), random);
      const Values sum = fillInputs(executor, layout.size(), count, random);
      ASSERT_EQ(executor.run(), "");
      ASSERT_EQ(executor.member(0).input, sum);
    }
  }
}

// Bytes that each member sends to each other, over all servers' links.
std::map<std::pair<int, int>, size_t> linkBytes(const std::vector<Schedule>& schedules) {
  std::map<std::pair<int, int>, size_t> bytes;
  for (size_t rank = 0; rank < schedules.size(); ++rank) {
    for (const Lane& lane : schedules[rank].lanes) {
      for (const Send& send : lane.sends) {
        bytes[{static_cast<int>(rank), send.peer}] += send.from.bytes;
      }
    }
  }
  return bytes;
}

TEST(Torus, AllFourLinksOfAServerCarryWhatTheyWouldOnFourRings) {
  TestRandom random(3);
  for (const int size : {3, 4, 5}) {
    const GroupLayout layout = torus(size, size, 1, random);
    const auto servers = static_cast<size_t>(size * size);
    const size_t count = kTorusParts * servers * 6;
    const auto bytes = linkBytes(schedulesOf(layout, count, 8 << 10));
    EXPECT_EQ(bytes.size(), 4 * servers);  // neighbours only
    for (const auto& [pair, sent] : bytes) {
      EXPECT_EQ(sent * servers, 2 * (servers - 1) * (count / 4) * (8 << 10));
    }
  }
}

TEST(Torus, TakesAsManyStepsAsItsRowsAndColumnsAreLong) {
  TestRandom random(4);
  for (const Shape& shape : kShapes) {
    const GroupLayout layout = torus(shape.rows, shape.columns, 1, random);
    const size_t count = 4 * static_cast<size_t>(layout.size());
    for (const Schedule& schedule : schedulesOf(layout, count, 8)) {
      ASSERT_EQ(schedule.lanes.size(), 2 * kTorusParts);
      for (size_t part = 0; part < kTorusParts; ++part) {
        const Lane& first = schedule.lanes[2 * part];
        const Lane& second = schedule.lanes[2 * part + 1];
        EXPECT_EQ(first.part, kPart + static_cast<int>(part % 2));
        const auto along = 2 * static_cast<size_t>(shape.columns - 1);
        const auto across = 2 * static_cast<size_t>(shape.rows - 1);
        EXPECT_EQ(first.sends.size(), part % 2 == 0 ? along : across);
        EXPECT_EQ(second.sends.size(), part % 2 == 0 ? across : along);
      }
    }
  }
}

// In every step of a small message each server sends to all its neighbours, and each of them once.
TEST(Torus, EveryStepUsesAllFourLinks) {
  TestRandom random(5);
  const GroupLayout layout = torus(4, 4, 1, random);
  for (const Schedule& schedule : schedulesOf(layout, 64, 8)) {
    for (size_t step = 0; step < 12; ++step) {  // 3 to scatter, 6 to reduce, 3 to gather
      std::vector<int> peers;
      for (size_t part = 0; part < kTorusParts; ++part) {
        const bool second = step >= 3 && step < 9;
        const Lane& lane = schedule.lanes[2 * part + (second ? 1 : 0)];
        peers.push_back(lane.sends[second ? step - 3 : step < 3 ? step : step - 6].peer);
      }
      std::sort(peers.begin(), peers.end());
      EXPECT_EQ(std::unique(peers.begin(), peers.end()), peers.end());
    }
  }
}

TEST(Torus, ScratchStaysBelowItsLimit) {
  TestRandom random(6);
  for (const int members : {1, 4}) {
    const GroupLayout layout = torus(3, 3, members, random);
    for (const size_t count : {size_t{1} << 10, size_t{64} << 20}) {
      const int leader = layout.leaders()[0];
      const Schedule schedule = torusAllReduceSchedule(layout, leader, count, 4, kPart);
      EXPECT_GT(schedule.scratch_bytes, 0u);
      EXPECT_LE(schedule.scratch_bytes, kScratchLimitBytes);
    }
  }
}

const CostModel kModel{
    .alpha_s = 20e-6, .per_hop_latency_s = 20e-6, .beta_s_per_byte = 1e-8, .gamma_s_per_byte = 0};

GroupLayout withFourRings(const GroupLayout& layout) {
  std::vector<plan::Ring> rings(4, {layout.rings()[0].servers, 0.25});
  return GroupLayout(layout.size(), rings, {}, nullptr, layout.grid());
}

TEST(Torus, IsChosenBetweenTreesAndRings) {
  TestRandom random(7);
  const GroupLayout layout = withFourRings(torus(8, 8, 1, random));
  const CostEstimate estimate(layout, kModel);
  const auto chosen = [&](size_t bytes) {
    return estimate.choose({Collective::kAllReduce, bytes, 0, false}, std::nullopt);
  };
  EXPECT_EQ(chosen(8), Algorithm::kTree);
  EXPECT_EQ(chosen(4 << 20), Algorithm::kTorus);
  EXPECT_EQ(estimate.choose({Collective::kAllReduce, 8, 0, true}, Algorithm::kTorus),
            Algorithm::kTorus);
  // Other collectives have no such schedule.
  EXPECT_NE(estimate.choose({Collective::kAllGather, 4 << 20, 0, true}, Algorithm::kTorus),
            Algorithm::kTorus);
}

TEST(Torus, ItsEstimateIsOfItsStepsAndOfTheBytesOnALink) {
  TestRandom random(8);
  const GroupLayout layout = torus(4, 4, 1, random);
  const CostEstimate estimate(layout, kModel);
  const auto seconds = [&](size_t bytes) {
    return estimate.seconds({Collective::kAllReduce, bytes, 0, true}, Algorithm::kTorus);
  };
  EXPECT_DOUBLE_EQ(seconds(0), 12 * (4 * 20e-6 + 20e-6));
  const size_t bytes = 64 << 20;
  EXPECT_NEAR(seconds(bytes) - seconds(0), 15.0 / 16 / 2 * static_cast<double>(bytes) * 1e-8, 1e-9);
}

TEST(Torus, OtherRingsBecauseOfLostLinksLeaveNoGrid) {
  TestRandom random(9);
  const GroupLayout layout = torus(3, 3, 1, random);
  const GroupLayout over = layout.over({layout.rings(), {}});
  EXPECT_TRUE(over.grid().empty());
  const auto list = CostEstimate(over, kModel).candidates({Collective::kAllReduce, 8, 0, true});
  EXPECT_EQ(std::find(list.begin(), list.end(), Algorithm::kTorus), list.end());
}

TEST(Torus, AGridThatIsNoneIsRefused) {
  const std::vector<plan::Ring> ring = {{{0, 1, 2, 3}, 1.0}};
  const auto refused = [&](const plan::Grid& grid) -> std::string {
    try {
      GroupLayout(4, ring, {}, nullptr, grid);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused({{0, 1}, {2, 3}}), "");
  EXPECT_EQ(refused({{0, 1, 2}, {3}}),
            "grid: rows of 3 and of 1 members; all must be equally long");
  EXPECT_EQ(refused({{0, 1, 2, 3}}), "grid: 1 x 4 is not at least 2 x 2");
  EXPECT_EQ(refused({{0, 1}, {2, 2}}), "grid: must list the first member of each server once");
}

}  // namespace
}  // namespace topoopt
