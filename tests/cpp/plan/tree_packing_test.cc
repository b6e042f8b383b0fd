// The slowest cut and packings of trees: valid plans whose busiest link takes as long as the cut.

#include "plan/tree_packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "plan/breadth_first.h"
#include "support/seed.h"

namespace topoopt {
namespace {

// A directed graph with integer rates, and the shards of its servers.
struct PackedGraph {
  int servers;
  std::vector<RatedLink> links;
  std::vector<int> shards;

  int64_t shardsIn(uint32_t set) const {
    int64_t sum = 0;
    for (int v = 0; v < servers; ++v) sum += (set >> v & 1) != 0 ? shards[v] : 0;
    return sum;
  }
  double rateOut(uint32_t set) const {
    double sum = 0;
    for (const RatedLink& link : links) {
      if ((set >> link.source & 1) != 0 && (set >> link.target & 1) == 0) sum += link.rate;
    }
    return sum;
  }

  double boundBySubsets() const {
    double most = 0;
    for (uint32_t set = 1; set + 1 < uint32_t{1} << servers; ++set) {
      const int64_t inside = shardsIn(set);
      if (inside > 0) most = std::max(most, static_cast<double>(inside) / rateOut(set));
    }
    return most;
  }
};

void addCable(PackedGraph& graph, int a, int b, double rate = 1) {
  graph.links.push_back({a, b, rate});
  graph.links.push_back({b, a, rate});
}

PackedGraph without(PackedGraph graph, int a, int b) {
  std::erase_if(graph.links, [&](const RatedLink& link) {
    return std::minmax(link.source, link.target) == std::minmax(a, b);
  });
  return graph;
}

PackedGraph circulant(int servers, const std::vector<int>& strides) {
  PackedGraph graph{servers, {}, std::vector<int>(servers, 1)};
  for (const int stride : strides) {
    for (int v = 0; v < servers; ++v) addCable(graph, v, (v + stride) % servers);
  }
  return graph;
}

PackedGraph complete(int servers) {
  PackedGraph graph{servers, {}, std::vector<int>(servers, 1)};
  for (int a = 0; a < servers; ++a) {
    for (int b = 0; b < a; ++b) addCable(graph, a, b);
  }
  return graph;
}

PackedGraph broadcast(PackedGraph graph, int root) {
  std::fill(graph.shards.begin(), graph.shards.end(), 0);
  graph.shards[root] = 1;
  return graph;
}

// Pieces are in order, cover every shard once, and senders have what they send in time.
void expectValid(const GatherPlan& plan, const PackedGraph& graph) {
  using Unit = std::tuple<int, int, int32_t>;  // receiver, origin, unit
  std::map<Unit, int> steps;
  int most = 0;
  ASSERT_EQ(plan.received.size(), static_cast<size_t>(graph.servers));
  for (int to = 0; to < graph.servers; ++to) {
    const auto order = [](const Piece& piece) {
      return std::tuple(piece.step, piece.origin, piece.first);
    };
    EXPECT_TRUE(
        std::is_sorted(plan.received[to].begin(), plan.received[to].end(),
                       [&](const Piece& a, const Piece& b) { return order(a) < order(b); }));
    for (const Piece& piece : plan.received[to]) {
      most = std::max(most, piece.step + 1);
      EXPECT_LT(piece.first, piece.end);
      for (int32_t unit = piece.first; unit < piece.end; ++unit) {
        EXPECT_TRUE(steps.try_emplace(Unit(to, piece.origin, unit), piece.step).second);
      }
    }
  }
  EXPECT_EQ(plan.steps, most);
  size_t wanted = 0;
  for (int origin = 0; origin < graph.servers; ++origin) {
    if (graph.shards[origin] > 0) wanted += static_cast<size_t>(graph.servers - 1) * plan.units;
  }
  EXPECT_EQ(steps.size(), wanted);
  for (int to = 0; to < graph.servers; ++to) {
    for (const Piece& piece : plan.received[to]) {
      EXPECT_NE(to, piece.origin);
      if (piece.sender == piece.origin) continue;
      for (int32_t unit = piece.first; unit < piece.end; ++unit) {
        const auto before = steps.find(Unit(piece.sender, piece.origin, unit));
        ASSERT_NE(before, steps.end());
        EXPECT_LT(before->second, piece.step);
      }
    }
  }
}

double busiest(const GatherPlan& plan, const PackedGraph& graph) {
  std::map<std::pair<int, int>, double> rates;
  std::map<std::pair<int, int>, int64_t> units;
  for (const RatedLink& link : graph.links) rates[{link.source, link.target}] += link.rate;
  for (int to = 0; to < graph.servers; ++to) {
    for (const Piece& piece : plan.received[to]) {
      units[{piece.sender, to}] += int64_t{piece.end - piece.first} * graph.shards[piece.origin];
    }
  }
  double most = 0;
  for (const auto& [pair, number] : units) {
    most = std::max(most, static_cast<double>(number) / plan.units / rates.at(pair));
  }
  return most;
}

// Returns the bound, which the plan reaches.
double packedSeconds(const PackedGraph& graph) {
  const CutBound bound = cutBound(graph.servers, graph.links, graph.shards);
  uint32_t set = 0;
  for (const int server : bound.servers) set |= uint32_t{1} << server;
  EXPECT_DOUBLE_EQ(bound.seconds, static_cast<double>(graph.shardsIn(set)) / graph.rateOut(set));
  const GatherPlan plan = packTrees(graph.servers, graph.links, graph.shards);
  expectValid(plan, graph);
  EXPECT_DOUBLE_EQ(busiest(plan, graph), bound.seconds);
  return bound.seconds;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(TreePacking, KnownGraphs) {
  EXPECT_DOUBLE_EQ(packedSeconds(circulant(5, {1})), 2);
  EXPECT_DOUBLE_EQ(packedSeconds(complete(6)), 1);
  EXPECT_DOUBLE_EQ(packedSeconds(circulant(16, {1, 3})), 15.0 / 4);
  PackedGraph one_way{6, {}, std::vector<int>(6, 1)};
  for (int v = 0; v < 6; ++v) one_way.links.push_back({v, (v + 1) % 6});
  EXPECT_DOUBLE_EQ(packedSeconds(one_way), 5);
  PackedGraph star{5, {}, std::vector<int>(5, 1)};
  for (int leaf = 1; leaf < 5; ++leaf) addCable(star, 0, leaf);
  EXPECT_DOUBLE_EQ(packedSeconds(star), 4);
}

TEST(TreePacking, EveryServerReceivesByAllItsLinks) {
  const GatherPlan plan = packTrees(8, circulant(8, {1, 3}).links, std::vector<int>(8, 1));
  EXPECT_EQ(plan.units, 4);
  for (const auto& pieces : plan.received) {
    std::map<int, int> units;
    for (const Piece& piece : pieces) units[piece.sender] += piece.end - piece.first;
    for (const auto& [sender, number] : units) EXPECT_EQ(number, 7);
    EXPECT_EQ(units.size(), 4u);
  }
}

TEST(TreePacking, SlowestCutBetweenTwoHalves) {
  PackedGraph halves = complete(10);
  for (int a = 0; a < 5; ++a) {
    for (int b = 5; b < 10; ++b) halves = without(halves, a, b);
  }
  addCable(halves, 0, 5, 2);
  EXPECT_DOUBLE_EQ(packedSeconds(halves), 2.5);
  const CutBound bound = cutBound(10, halves.links, halves.shards);
  EXPECT_EQ(bound.servers.size(), 5u);
}

TEST(TreePacking, UnequalRates) {
  PackedGraph graph{3, {{0, 1, 2}, {0, 1, 1}, {1, 2, 5}, {2, 0, 4}, {0, 2, 1}}, {1, 1, 1}};
  EXPECT_DOUBLE_EQ(packedSeconds(graph), graph.boundBySubsets());
  for (RatedLink& link : graph.links) link.rate *= 0.1;
  EXPECT_NEAR(cutBound(3, graph.links, graph.shards).seconds, graph.boundBySubsets(), 1e-12);
  EXPECT_NEAR(busiest(packTrees(3, graph.links, graph.shards), graph), graph.boundBySubsets(),
              1e-12);
}

TEST(TreePacking, RatesRelativeToOneOfThem) {
  TestRandom random(4313);
  PackedGraph graph = circulant(12, {1, 5});
  for (RatedLink& link : graph.links) link.rate = static_cast<double>(random.between(900, 1100));
  const GatherPlan plan = packTrees(12, graph.links, graph.shards);
  for (const double unit : {1 / 907.0, 1e9 / 8, 1 / 3.0}) {
    std::vector<RatedLink> links = graph.links;
    for (RatedLink& link : links) link.rate *= unit;
    EXPECT_EQ(packTrees(12, links, graph.shards).received, plan.received);
  }
}

TEST(TreePacking, RatesWithoutACommonUnit) {
  TestRandom random(4311);
  PackedGraph graph = circulant(12, {1, 5});
  for (RatedLink& link : graph.links) {
    link.rate = 1 + static_cast<double>(random.between(0, 1000000007)) / 1000000007;
  }
  const double bound = cutBound(12, graph.links, graph.shards).seconds;
  EXPECT_NEAR(bound, graph.boundBySubsets(), 1e-5 * bound);
  const GatherPlan plan = packTrees(12, graph.links, graph.shards);
  EXPECT_LE(plan.units, 1 << 20);
  EXPECT_NEAR(busiest(plan, graph), bound, 1e-4 * bound);
}

TEST(TreePacking, LostCables) {
  const PackedGraph one = without(circulant(16, {1, 6}), 3, 4);
  EXPECT_DOUBLE_EQ(packedSeconds(one), 5);
  EXPECT_DOUBLE_EQ(packedSeconds(without(one, 3, 9)), 7.5);
  EXPECT_DOUBLE_EQ(packedSeconds(without(one, 8, 9)), 5);
}

TEST(TreePacking, Broadcast) {
  EXPECT_DOUBLE_EQ(packedSeconds(broadcast(circulant(12, {1, 5}), 7)), 0.25);
  EXPECT_DOUBLE_EQ(packedSeconds(broadcast(complete(6), 0)), 0.2);
  EXPECT_DOUBLE_EQ(packedSeconds(broadcast(without(circulant(12, {1, 5}), 0, 1), 7)), 1.0 / 3);
}

TEST(TreePacking, UnequalShards) {
  PackedGraph graph = circulant(9, {1, 2});
  graph.shards = {4, 0, 2, 1, 0, 6, 2, 2, 3};
  EXPECT_DOUBLE_EQ(packedSeconds(graph), graph.boundBySubsets());
  graph.shards.assign(9, 8);
  EXPECT_DOUBLE_EQ(packedSeconds(graph), 16);
  EXPECT_EQ(packTrees(9, graph.links, graph.shards).received,
            packTrees(9, graph.links, std::vector<int>(9, 1)).received);
}

TEST(TreePacking, RandomGraphs) {
  TestRandom random(4312);
  for (int round = 0; round < 60; ++round) {
    const int servers = static_cast<int>(random.between(2, 9));
    PackedGraph graph{servers, {}, {}};
    std::vector<int> order(servers);
    std::iota(order.begin(), order.end(), 0);
    for (size_t cycles = random.between(1, 3); cycles > 0; --cycles) {
      std::shuffle(order.begin(), order.end(), random.engine());
      for (int i = 0; i < servers; ++i) {
        if (cycles > 1 && random.chance(0.3)) continue;
        const auto rate = static_cast<double>(random.between(1, 12));
        graph.links.push_back({order[i], order[(i + 1) % servers], rate});
      }
    }
    const bool equal = random.chance(0.5);
    for (int v = 0; v < servers; ++v) {
      graph.shards.push_back(equal ? 1 : static_cast<int>(random.between(0, 3)));
    }
    graph.shards[0] = std::max(graph.shards[0], 1);
    EXPECT_DOUBLE_EQ(packedSeconds(graph), graph.boundBySubsets());
  }
}

TEST(TreePacking, TreesAreHardlyHigherThanTheNetworkIsWide) {
  for (const PackedGraph& graph :
       {circulant(32, {1, 7}), without(circulant(32, {1, 7}), 0, 7), circulant(12, {1, 3, 5})}) {
    const GatherPlan shortest = breadthFirst(graph.servers, graph.links);
    EXPECT_LE(packTrees(graph.servers, graph.links, graph.shards).steps, shortest.steps + 2);
  }
}

TEST(TreePacking, OneServer) {
  EXPECT_EQ(cutBound(1, {}, {1}).seconds, 0);
  const GatherPlan plan = packTrees(1, {}, {1});
  EXPECT_EQ(plan.steps, 0);
  EXPECT_EQ(plan.received, std::vector<std::vector<Piece>>(1));
}

TEST(TreePacking, RefusesBadInput) {
  const auto packing = [](int servers, std::vector<RatedLink> links, std::vector<int> shards) {
    return refusal([&] { packTrees(servers, links, shards); });
  };
  EXPECT_NE(packing(0, {}, {}).find("servers"), std::string::npos);
  EXPECT_NE(packing(2, {{0, 1}}, {1, 1}).find("server 0"), std::string::npos);
  EXPECT_NE(packing(3, {{0, 1}, {1, 0}}, {1, 1, 1}).find("server 2"), std::string::npos);
  EXPECT_EQ(packing(2, {{0, 1}}, {1, 0}), "");
  for (const std::vector<int>& shards :
       std::vector<std::vector<int>>{{}, {1}, {0, 0}, {-1, 2}, {1 << 20, 1}, {1, 1031}}) {
    EXPECT_NE(packing(2, {{0, 1}, {1, 0}}, shards).find("shards"), std::string::npos);
  }
  for (const double rate : {0.0, -1.0, HUGE_VAL, std::nan("")}) {
    EXPECT_NE(packing(2, {{0, 1, rate}, {1, 0}}, {1, 1}).find("rate"), std::string::npos);
  }
  EXPECT_NE(packing(2, {{0, 2}, {1, 0}}, {1, 1}).find("0 to 2"), std::string::npos);
  EXPECT_NE(packing(2, {{0, 0}, {1, 0}}, {1, 1}).find("0 to 0"), std::string::npos);
}

}  // namespace
}  // namespace topoopt
