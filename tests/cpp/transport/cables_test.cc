// Cables that are lost in the middle of everything, and come back: nothing is lost, nothing comes
// twice, and nobody fails while a way is left.

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "support/network.h"
#include "support/traffic.h"
#include "transport/endpoint/cable_graph.h"
#include "transport/tls/session.h"

namespace topoopt {
namespace {

constexpr char kNoCounters[] = "no counters of connections (TCP_INFO)";

// The faults that ranks notice with this kernel.
std::vector<Fault> noticedFaults() {
  if (!kernelCountsConnections()) return {Fault::kClosed, Fault::kHalf};
  return {Fault::kClosed, Fault::kHalf, Fault::kSilent, Fault::kOneWay};
}

// Of plain cables, fast ones of all kinds and, where this build has TLS, encrypted ones.
class Cables : public testing::TestWithParam<Moved> {
 protected:
  void SetUp() override {
    if (GetParam() == Moved::kEncrypted && tlsLibrary().empty()) {
      GTEST_SKIP() << "a build without TLS";
    }
  }
  NetworkOptions thatRecovers(const Shape& shape) const {
    return {.size = shape.size,
            .cables = shape.cables,
            .routes = 2,
            .recovers = true,
            .moved = GetParam()};
  }
};

INSTANTIATE_TEST_SUITE_P(AllKinds, Cables,
                         testing::Values(Moved::kPlain, Moved::kEncrypted, Moved::kByThreads,
                                         Moved::kWithoutCopy),
                         [](const auto& moved) { return nameOf(moved.param); });

// ---- ways around -------------------------------------------------------------------------------

TEST_P(Cables, WhatIsOnItsWayArrivesOverOtherWays) {
  TestRandom random(601);
  std::vector<Shape> rings{{"ring of 4", ringOf(4), 4}};
  if (GetParam() == Moved::kPlain) rings.push_back({"complete 5", completeOf(5), 5});
  for (const Shape& shape : rings) {
    for (const Fault fault : noticedFaults()) {
      SCOPED_TRACE(shape.name + std::string(", fault ") + std::to_string(static_cast<int>(fault)));
      Traffic traffic;
      Network network(thatRecovers(shape), random);
      traffic.addRandom(shape.size, 60, 2 << 20, random);
      const size_t cable = random.between(0, shape.cables.size() - 1);
      traffic.startSends(network, random);
      network.hurt(cable, fault);
      traffic.startReceives(network, random);
      ASSERT_NO_FATAL_FAILURE(traffic.check());
      for (const std::string& why : network.leaveAll(kWaitLimit)) EXPECT_EQ(why, "");
    }
  }
}

TEST_P(Cables, TheyComeAndGoUnderTraffic) {
  TestRandom random(602);
  const std::vector<Fault> kinds = noticedFaults();
  std::vector<Shape> rings{{"ring of 4", ringOf(4), 4}, {"complete 5", completeOf(5), 5}};
  if (kernelCountsConnections()) rings.push_back({"line of 3", lineOf(3), 3});
  for (size_t round = 0; round < partOf(GetParam() == Moved::kPlain ? 4 : 2); ++round) {
    const Shape& shape = rings[round % rings.size()];
    SCOPED_TRACE(shape.name);
    Traffic traffic;
    NetworkOptions options = thatRecovers(shape);
    options.window_bytes = size_t{1} << random.between(10, 22);
    Network network(options, random);
    traffic.addRandom(shape.size, 150, 1 << 20, random);
    std::atomic<bool> over{false};
    std::atomic<int> faults{0};
    std::thread weather([&, seed = random.word()] {
      TestRandom own(seed);
      do {
        // One at a time, so that a ring stays in one piece; in a line all wait for the cable.
        const size_t cable = own.between(0, shape.cables.size() - 1);
        // The end of a connection means that a process is gone, where no other way says more.
        const bool line = shape.cables.size() + 1 == static_cast<size_t>(shape.size);
        network.hurt(cable, line ? Fault::kSilent : kinds[own.between(0, kinds.size() - 1)]);
        ++faults;
        eventually("a fault is noticed", [&] { return network.lost(cable); });
        network.replace(cable);
        eventually("a cable comes back", [&] { return network.up(cable); });
      } while (!over);
    });
    traffic.start(network, random);
    traffic.check();
    over = true;
    weather.join();
    if (HasFatalFailure()) return;
    for (const std::string& why : network.leaveAll(kWaitLimit)) EXPECT_EQ(why, "");
    EXPECT_GT(faults, 0);
  }
}

TEST_P(Cables, BytesThatAreNoFrameCostTheCableOnly) {
  TestRandom random(606);
  Traffic traffic;
  Network network(thatRecovers({"", ringOf(4), 4}), random);
  network.hurt(2, Fault::kCorrupted);
  eventually("the cable is lost", [&] { return network.lost(2); });
  traffic.addRandom(4, 30, 100000, random);
  traffic.start(network, random);
  ASSERT_NO_FATAL_FAILURE(traffic.check());
}

// ---- moves -------------------------------------------------------------------------------------

TEST_P(Cables, TheyMoveUnderTrafficAndNoOtherRankIsNotified) {
  TestRandom random(607);
  const std::vector<Shape> rings{{"simplex ring of 3", simplexRingOf(3), 3},
                                 {"ring of 4", ringOf(4), 4}};
  for (const Shape& shape : rings) {
    SCOPED_TRACE(shape.name);
    Traffic traffic;
    Network network(thatRecovers(shape), random);
    traffic.addRandom(shape.size, 100, 1 << 20, random);
    std::atomic<bool> over{false};
    int moves = 0;
    std::thread mover([&, seed = random.word()] {
      TestRandom own(seed);
      do {
        const size_t cable = own.between(0, shape.cables.size() - 1);
        // The other end, whose proof is complete first, mostly has the new connection first.
        const Cable& ends = shape.cables[cable];
        network.move(cable, moves % 8 == 7 ? ends.a : ends.b);
        ++moves;
      } while (!over && !HasFatalFailure());
    });
    traffic.start(network, random);
    traffic.check();
    over = true;
    mover.join();
    if (HasFatalFailure()) return;
    for (int rank = 0; rank < shape.size; ++rank) {
      network.on(rank, [](Endpoint& endpoint) {
        EXPECT_TRUE(endpoint.cables()->allUp());
        EXPECT_TRUE(endpoint.cables()->reports().empty());
      });
    }
    for (const std::string& why : network.leaveAll(kWaitLimit)) EXPECT_EQ(why, "");
    EXPECT_GT(moves, 0);
  }
}

TEST_P(Cables, AMoveThatFailsHalfwayIsALossAndNothingElse) {
  TestRandom random(608);
  Traffic traffic;
  Network network(thatRecovers({"", ringOf(4), 4}), random);
  traffic.addRandom(4, 60, 1 << 20, random);
  traffic.startSends(network, random);
  ASSERT_TRUE(network.at(0)->beginMove(0));
  EXPECT_TRUE(network.at(0)->beginMove(0));  // once more, as it is in use
  network.at(0)->endMove(0);
  EXPECT_TRUE(network.at(0)->lostCables().empty());
  ASSERT_TRUE(network.at(0)->beginMove(0));
  network.hurt(0, Fault::kClosed);  // as when the other end has the new connection, alone
  network.at(0)->endMove(0);
  eventually("both ends have lost it", [&] { return network.lost(0); });
  EXPECT_FALSE(network.at(0)->beginMove(0));
  network.replace(0);
  traffic.startReceives(network, random);
  ASSERT_NO_FATAL_FAILURE(traffic.check());
  eventually("it is back", [&] { return network.up(0); });
  for (const std::string& why : network.leaveAll(kWaitLimit)) EXPECT_EQ(why, "");
}

// ---- no way left -------------------------------------------------------------------------------

TEST_P(Cables, ARankWhoseConnectionsAllEndIsGone) {
  TestRandom random(603);
  Network network(thatRecovers({"", ringOf(4), 4}), random);
  Channel channel(network, 1);
  for (const size_t cable : {1, 2}) network.hurt(cable, Fault::kClosed);
  for (const int rank : {0, 1, 3}) {
    const std::string why = channel.failure(rank);
    EXPECT_NE(why.find("rank 2 is gone: lost the link "), std::string::npos) << why;
  }
}

TEST_P(Cables, ARankThatHearsNothingIsNotGone) {
  if (!kernelCountsConnections()) GTEST_SKIP() << kNoCounters;
  TestRandom random(609);
  Traffic traffic;
  Network network(thatRecovers({"", ringOf(4), 4}), random);
  traffic.addRandom(4, 60, 1 << 20, random);
  traffic.startSends(network, random);
  // Nothing arrives at rank 2, which gives up both cables; all that it sends does.
  network.hurt(1, Fault::kOneWay);
  network.hurt(2, Fault::kOtherWay);
  for (const size_t cable : {1, 2}) {
    eventually("the cable is lost", [&] { return network.lost(cable); });
  }
  for (const int rank : {0, 1, 3}) {
    std::vector<int> unreachable;
    eventually("the rank is unreachable", [&] {
      network.on(rank, [&](Endpoint& endpoint) { unreachable = endpoint.cables()->unreachable(); });
      return !unreachable.empty();
    });
    EXPECT_EQ(unreachable, std::vector<int>{2});
    network.on(rank,
               [](Endpoint& endpoint) { EXPECT_TRUE(endpoint.cables()->cut().gone.empty()); });
  }
  for (const size_t cable : {1, 2}) network.replace(cable);
  traffic.startReceives(network, random);
  ASSERT_NO_FATAL_FAILURE(traffic.check());
  for (const size_t cable : {1, 2}) {
    eventually("it is back", [&] { return network.up(cable); });
  }
  for (const std::string& why : network.leaveAll(kWaitLimit)) EXPECT_EQ(why, "");
}

TEST(LostCables, ARankThatIsCutOffMayComeBackUntilTheLimit) {
  if (!kernelCountsConnections()) GTEST_SKIP() << kNoCounters;
  TestRandom random(604);
  Network network({.size = 3,
                   .cables = lineOf(3),
                   .recovers = true,
                   .silence_limit = limitOf(std::chrono::milliseconds(1500))},
                  random);
  Channel channel(network, 1);
  network.hurt(1, Fault::kSilent);
  for (const int rank : {0, 1}) {
    const std::string why = channel.failure(rank);
    EXPECT_NE(why.find("rank 2 is unreachable: lost the link "), std::string::npos) << why;
  }
}

TEST(LostCables, AProcessThatStandsStillIsNotALostCable) {
  TestRandom random(605);
  Network network({.size = 3,
                   .cables = ringOf(3),
                   .recovers = true,
                   .silence_limit = limitOf(std::chrono::milliseconds(1000))},
                  random);
  Channel channel(network, 1);
  std::string why;
  network.on(1, [&](Endpoint&) { why = channel.failure(0); });
  EXPECT_NE(why.find("rank 1 is stopped"), std::string::npos) << why;
}

TEST(LostCables, AProcessThatStandsStillIsNamedWhereLinksAreNoCables) {
  TestRandom random(607);
  for (const LinkKind kind : {LinkKind::kSocket, LinkKind::kSharedMemory}) {
    std::vector<Cable> cables = ringOf(3);
    for (Cable& cable : cables) cable.kind = kind;
    Network network(
        {.size = 3, .cables = cables, .silence_limit = limitOf(std::chrono::milliseconds(1000))},
        random);
    Channel channel(network, 1);
    std::string why;
    network.on(1, [&](Endpoint&) { why = channel.failure(0); });
    EXPECT_NE(why.find("rank 1 is stopped"), std::string::npos) << why;
  }
}

// ---- the graph ---------------------------------------------------------------------------------

TEST(CableGraph, TheNewestReportOfAnEndCounts) {
  CableGraph graph(0, 3, {{{}, 0, 1}, {{}, 1, 2}, {{}, 2, 0}}, {});
  EXPECT_TRUE(graph.allUp());
  EXPECT_EQ(graph.nextHop(1), 1);
  EXPECT_TRUE(graph.take({0, 1, 1, false, Loss::kSilent}));
  EXPECT_FALSE(graph.take({0, 1, 1, false, Loss::kSilent}));
  EXPECT_FALSE(graph.up(0));
  EXPECT_EQ(graph.nextHop(1), 2);
  EXPECT_TRUE(graph.take({0, 1, 2, true}));
  EXPECT_FALSE(graph.up(0)) << "the other end is in an older generation";
  EXPECT_TRUE(graph.take({0, 0, 2, true}));
  EXPECT_FALSE(graph.take({0, 0, 1, false})) << "an older generation";
  EXPECT_TRUE(graph.allUp());
  EXPECT_EQ(graph.nextHop(1), 1);
}

TEST(CableGraph, WaysLeaveOutSlowDirectionsIfTheyCan) {
  CableGraph graph(0, 3, {{{}, 0, 1}, {{}, 1, 2}, {{}, 2, 0}}, {});
  EXPECT_TRUE(graph.takeSpeed({0, 0, 1, 0.1}));
  EXPECT_FALSE(graph.takeSpeed({0, 0, 1, 1.0})) << "not newer";
  EXPECT_FALSE(graph.takeSpeed({0, 2, 2, 0.1})) << "not an end of the cable";
  EXPECT_FALSE(graph.takeSpeed({0, 1, 1, 0.0})) << "not possible";
  EXPECT_FALSE(graph.intact());
  EXPECT_EQ(graph.nextHop(1), 2);
  EXPECT_FALSE(graph.linked(0, 1));
  EXPECT_TRUE(graph.linked(1, 0));
  EXPECT_EQ(graph.linksLeft().size(), 5u);
  // Without another way it is used, at what it carries.
  graph.take({2, 2, 1, false, Loss::kClosed});
  EXPECT_EQ(graph.nextHop(1), 1);
  EXPECT_TRUE(graph.unreachable().empty());
  const std::vector<LinkLeft> left = graph.linksLeft();
  ASSERT_EQ(left.size(), 4u);
  EXPECT_NEAR(left[0].rate, 0.1, 1e-9);
  EXPECT_TRUE(graph.takeSpeed({0, 0, 2, 1.0}));
  EXPECT_EQ(graph.linksLeft()[0].rate, 1.0);
}

TEST(CableGraph, ReportsThatCannotBeAreNotTaken) {
  CableGraph graph(0, 3, {{{}, 0, 1}, {{}, 1, 2}}, {});
  EXPECT_FALSE(graph.take({-1, 0, 2, false}));
  EXPECT_FALSE(graph.take({2, 0, 2, false}));
  EXPECT_FALSE(graph.take({0, 2, 2, false})) << "not an end of the cable";
  EXPECT_THROW(CableGraph(0, 2, {{{}, 0, 2}}, {}), std::invalid_argument);
  EXPECT_THROW(CableGraph(0, 2, {{{}, 0, 1}}, {0}), std::invalid_argument);
}

TEST(CableGraph, ASimplexRingWithAGapIsInPieces) {
  CableGraph graph(0, 3, {{{}, 0, 1, false}, {{}, 1, 2, false}, {{}, 2, 0, false}}, {});
  EXPECT_TRUE(graph.unreachable().empty());
  graph.take({1, 2, 1, false, Loss::kClosed});
  EXPECT_EQ(graph.unreachable(), (std::vector<int>{1, 2}));
}

TEST(CableGraph, ARankThatGaveUpASilentCableIsNotGone) {
  CableGraph graph(0, 3, {{{}, 0, 1, false}, {{}, 1, 2, false}, {{}, 2, 0, false}}, {});
  ASSERT_TRUE(graph.take({0, 0, 1, false, Loss::kClosed}));
  EXPECT_EQ(graph.cut().gone, std::vector<int>{1});
  ASSERT_TRUE(graph.take({0, 1, 1, false, Loss::kSilent}));
  EXPECT_EQ(graph.cut().silent, std::vector<int>{1});
  EXPECT_TRUE(graph.cut().gone.empty());
}

TEST(CableGraph, WaysGoThroughTheRanksOfAServer) {
  // Ranks 0, 1 on one server, 2, 3 on another; the leaders 0 and 2 have the cable.
  CableGraph graph(1, 4, {{{}, 0, 2}}, {0, 0, 1, 1});
  EXPECT_EQ(graph.nextHop(3), 0);
  EXPECT_TRUE(graph.linked(1, 0));
  EXPECT_FALSE(graph.linked(1, 2));
  graph.take({0, 0, 1, false, Loss::kClosed});
  EXPECT_EQ(graph.unreachable(), (std::vector<int>{2, 3}));
  EXPECT_EQ(graph.cut().gone, std::vector<int>{2});
}

}  // namespace
}  // namespace topoopt
