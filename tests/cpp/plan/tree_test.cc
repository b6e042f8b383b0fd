// Trees and their shapes, collectives over them, and what takes a logarithm of rounds.

#include "plan/tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "plan/direct_schedules.h"
#include "plan/tree_schedules.h"
#include "support/schedule_checks.h"
#include "support/schedule_executor.h"
#include "support/seed.h"

namespace topoopt {
namespace {

std::vector<int> numbers(int size) {
  std::vector<int> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Servers in a cycle of cables: as many links between two as steps on the shorter way round.
GroupLayout cycle(int size) {
  std::vector<uint16_t> hops;
  for (int a = 0; a < size; ++a) {
    for (int b = 0; b < size; ++b) {
      hops.push_back(static_cast<uint16_t>(std::min(std::abs(a - b), size - std::abs(a - b))));
    }
  }
  const auto table = std::make_shared<const HopTable>(size, std::move(hops));
  return GroupLayout(size, {{numbers(size), 1.0}}, {}, table);
}

// Edges from a member to the root; fails if there is a loop.
int depthOf(const Tree& tree, int member) {
  int depth = 0;
  for (int at = member; tree.parent[at] >= 0; at = tree.parent[at]) {
    if (++depth > static_cast<int>(tree.parent.size())) {
      ADD_FAILURE() << "a loop";
      return depth;
    }
  }
  return depth;
}

int deepest(const Tree& tree) {
  int depth = 0;
  for (size_t i = 0; i < tree.parent.size(); ++i) {
    depth = std::max(depth, depthOf(tree, static_cast<int>(i)));
  }
  return depth;
}

TEST(DoubleBinaryTree, EveryServerIsALeafInOneTreeAndAnInnerNodeInTheOther) {
  for (int size = 1; size <= 40; ++size) {
    const auto pair = doubleBinaryTree(cycle(size));
    int leaves_in_both = 0;
    for (int member = 0; member < size; ++member) {
      size_t children[2];
      for (int t = 0; t < 2; ++t) {
        children[t] = pair[t].childrenOf(member).size();
        EXPECT_LE(children[t], 2u);
      }
      EXPECT_TRUE(children[0] == 0 || children[1] == 0) << size << " members, member " << member;
      leaves_in_both += children[0] == 0 && children[1] == 0;
    }
    EXPECT_EQ(leaves_in_both, size % 2) << size;
    int floor_log = 0;
    while ((2 << floor_log) <= size) ++floor_log;
    for (const Tree& tree : pair) {
      EXPECT_EQ(std::count(tree.parent.begin(), tree.parent.end(), -1), 1);
      EXPECT_LE(deepest(tree), floor_log + 1);
    }
  }
}

TEST(DoubleBinaryTree, IsPermutedTowardsShortRoutes) {
  // In a ring that visits the cycle by strides of 5, the tree is best built along strides of 5^-1.
  std::vector<int> order;
  for (int i = 0; i < 16; ++i) order.push_back(i * 5 % 16);
  const GroupLayout plain = cycle(16);
  std::vector<uint16_t> hops;
  for (int a = 0; a < 16; ++a) {
    for (int b = 0; b < 16; ++b) hops.push_back(static_cast<uint16_t>(plain.hops(a, b)));
  }
  const GroupLayout strided(16, {{order, 1.0}}, {},
                            std::make_shared<const HopTable>(16, std::move(hops)));
  const auto links = [&](const std::array<Tree, 2>& pair) {
    int all = 0;
    for (const Tree& tree : pair) {
      for (int i = 0; i < 16; ++i) {
        if (tree.parent[i] >= 0) all += plain.hops(i, tree.parent[i]);
      }
    }
    return all;
  };
  EXPECT_EQ(links(doubleBinaryTree(strided)), links(doubleBinaryTree(plain)));
}

TEST(QuickTree, ReachesEverybodyAndPrefersNeighbours) {
  for (int size = 1; size <= 20; ++size) {
    for (const int root : {0, size / 2, size - 1}) {
      const Tree tree = quickTree(cycle(size), root, 1.0, 1.0);
      EXPECT_EQ(tree.root(), root);
      deepest(tree);
    }
  }
  // Where only hops cost, every rank passes on to a neighbour.
  const Tree near = quickTree(cycle(12), 0, 0.0, 1.0);
  for (int i = 1; i < 12; ++i) EXPECT_EQ(cycle(12).hops(i, near.parent[i]), 1) << i;
  // Where only messages cost, every rank that has it sends at every turn: twelve need four turns.
  const Tree far = quickTree(cycle(12), 0, 1.0, 0.0);
  EXPECT_GE(far.childrenOf(0).size(), 3u);
  EXPECT_LE(deepest(far), 4);
}

// As the header says it: all senders and all servers that are left are looked at for every edge.
Tree slowQuickTree(const GroupLayout& layout, int root, double alpha_s, double per_hop_latency_s) {
  Tree tree{std::vector<int>(static_cast<size_t>(layout.size()), -1)};
  std::vector<std::pair<int, double>> senders = {{root, alpha_s}};
  std::vector<int> left = numbers(layout.size());
  std::erase(left, root);
  while (!left.empty()) {
    std::tuple<double, int, size_t, int> next{1e300, 0, 0, 0};
    for (size_t i = 0; i < senders.size(); ++i) {
      for (const int target : left) {
        const int hops = layout.hops(senders[i].first, target);
        next = std::min(next, {senders[i].second + per_hop_latency_s * hops, hops, i, target});
      }
    }
    const auto [arrival_s, hops, sender, target] = next;
    tree.parent[target] = senders[sender].first;
    senders[sender].second += alpha_s;
    senders.push_back({target, arrival_s + alpha_s});
    std::erase(left, target);
  }
  return tree;
}

TEST(QuickTree, IsThatOfTheSlowSearchOnAnyDistances) {
  TestRandom random(71);
  for (int trial = 0; trial < 60; ++trial) {
    const int size = static_cast<int>(random.between(1, 24));
    std::vector<uint16_t> hops;
    for (int i = 0; i < size * size; ++i) {
      hops.push_back(static_cast<uint16_t>(random.between(1, 5)));
    }
    const auto table = std::make_shared<const HopTable>(size, std::move(hops));
    const GroupLayout layout(size, {{numbers(size), 1.0}}, {}, table);
    const int root = static_cast<int>(random.between(0, static_cast<size_t>(size) - 1));
    const double alpha_s = static_cast<double>(random.between(0, 3));
    const double hop_s = static_cast<double>(random.between(0, 2)) / 3;
    EXPECT_EQ(quickTree(layout, root, alpha_s, hop_s).parent,
              slowQuickTree(layout, root, alpha_s, hop_s).parent)
        << size << " " << root << " " << alpha_s << " " << hop_s;
  }
}

TEST(HopTable, FollowsTheRulesOfARouteTableAndThenTheLinks) {
  const std::vector<plan::LinkPorts> links = {
      {0, 0, 1, 0}, {1, 0, 2, 0}, {2, 0, 3, 0}, {3, 0, 0, 0}};
  const std::vector<std::vector<int>> walks = {
      {0, 1, 1, 1}, {2, 1, 2, 2}, {3, 3, 2, 3}, {0, 0, 0, 3}};
  const auto row = [](const HopTable& table, int source) {
    std::vector<int> hops;
    for (int target = 0; target < table.servers(); ++target)
      hops.push_back(table.at(source, target));
    return hops;
  };
  EXPECT_EQ(row(HopTable::ofRoutes(4, links, {}, {}, {}), 0), (std::vector<int>{0, 1, 0, 0}));
  EXPECT_EQ(row(HopTable::ofRoutes(4, links, {}, walks, {}), 0), (std::vector<int>{0, 1, 2, 3}));
  const std::vector<plan::StrideRoute> strides = {{{1, 2, 3}, 0.5}, {{1, 1, 1, 3}, 0.5}};
  EXPECT_EQ(row(HopTable::ofRoutes(4, links, strides, walks, {}), 3),
            (std::vector<int>{1, 3, 3, 0}));
  const std::vector<plan::Route> listed = {{{0, 1, 2, 3}, 0.5}, {{0, 3}, 0.5}};
  EXPECT_EQ(row(HopTable::ofRoutes(4, links, strides, walks, listed), 0),
            (std::vector<int>{0, 1, 3, 1}));
  EXPECT_THROW(HopTable::ofRoutes(4, {{0, 0, 4, 0}}, {}, {}, {}), std::invalid_argument);
  EXPECT_THROW(HopTable::ofRoutes(2, {}, {}, {{0, 0}, {1, 1}}, {}), std::invalid_argument);
  EXPECT_THROW(HopTable::ofRoutes(3, {}, {}, {{0, 1}, {0, 1}}, {}), std::invalid_argument);
  EXPECT_THROW(HopTable::ofRoutes(1 << 20, {}, {}, {}, {}), std::invalid_argument);
}

TEST(ChainTree, VisitsTheServersInTheOrderOfTheRing) {
  const GroupLayout layout(4, {{{2, 0, 3, 1}, 1.0}});
  const plan::Ring& ring = layout.rings()[0];
  EXPECT_EQ(chainTree(layout, ring, 0, ChainDirection::kFromRoot, false).parent,
            (std::vector<int>{-1, 3, 1, 0}));
  // Data that comes to 0 along the ring passes 3, 1, 2.
  EXPECT_EQ(chainTree(layout, ring, 0, ChainDirection::kToRoot, false).parent,
            (std::vector<int>{-1, 2, 0, 1}));
  EXPECT_EQ(chainTree(layout, ring, 0, ChainDirection::kFromRoot, true).parent,
            (std::vector<int>{-1, 3, 0, 0}));
}

TEST(Trees, SumAndCopyInAnyOrderOfEvents) {
  TestRandom random(3);
  for (int repeat = 0; repeat < 60; ++repeat) {
    const int size = static_cast<int>(random.between(1, 9));
    const GroupLayout layout = cycle(size);
    const auto pair = doubleBinaryTree(layout);
    const std::vector<TreeShare> trees = {{pair[0], 0.5, 0}, {pair[1], 0.5, 1}};
    const size_t count = random.between(0, 120);
    const size_t element_bytes = random.chance(0.5) ? 8 : 512 << 10;
    const auto schedules = forAll(
        size, [&](int rank) { return treeAllReduceSchedule(trees, rank, count, element_bytes); });
    ScheduleExecutor executor(schedules, element_bytes, random.between(0, 2), random);
    const Values sum = fillInputs(executor, size, count, random);
    ASSERT_EQ(executor.run(), "") << size << " members, " << count << " elements";
    for (int rank = 0; rank < size; ++rank) ASSERT_EQ(executor.member(rank).input, sum);
  }
}

TEST(Doubling, SumsOnAllMembersInAnyOrderOfEvents) {
  TestRandom random(4);
  for (int size = 1; size <= 17; ++size) {
    for (const size_t window : {size_t{0}, size_t{1}, ScheduleExecutor::kUnbounded}) {
      std::vector<int> order = numbers(size);
      std::shuffle(order.begin(), order.end(), random.engine());
      const size_t count = random.between(0, 9);
      const auto schedules =
          forAll(size, [&](int rank) { return doublingAllReduceSchedule(order, rank, count, 8); });
      ScheduleExecutor executor(schedules, 8, window, random);
      const Values sum = fillInputs(executor, size, count, random);
      ASSERT_EQ(executor.run(), "") << size << " members";
      for (int rank = 0; rank < size; ++rank) ASSERT_EQ(executor.member(rank).input, sum);
    }
  }
}

TEST(Doubling, TakesALogarithmOfRounds) {
  for (int size = 2; size <= 17; ++size) {
    size_t most = 0;
    for (int rank = 0; rank < size; ++rank) {
      const Schedule schedule = doublingAllReduceSchedule(numbers(size), rank, 1, 8);
      most = std::max(most, schedule.lanes.at(0).receives.size());
    }
    const size_t rounds = doublingRounds(static_cast<size_t>(size));
    EXPECT_EQ(most, rounds + ((size & (size - 1)) != 0)) << size;
  }
}

}  // namespace
}  // namespace topoopt
