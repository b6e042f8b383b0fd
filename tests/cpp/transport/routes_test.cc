// The ways of frames, of a rank in a ring of four whose links are not real.

#include "transport/endpoint/routes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "support/fake_links.h"

namespace topoopt {
namespace {

// Rank 0, with routes to rank 2 over rank 1 and over rank 3, and one of rank 3 to rank 1.
class RoutesOfARing : public testing::Test {
 protected:
  static constexpr size_t kLimit = 1 << 20;

  RoutesOfARing() {
    on([](Routes&) {});
  }

  void on(const std::function<void(Routes&)>& function) {
    fake_.reactor.run([&] {
      if (!routes_) {
        routes_.emplace(0, fake_.links, plan_, &graph_, limits_, fake_.buffers,
                        [this](const std::string& why) { failed_.push_back(why); });
      }
      function(*routes_);
    });
  }

  static OutFrame frameTo(int target, const Routes::Ways& ways) {
    OutFrame frame;
    frame.header.target = static_cast<uint16_t>(target);
    frame.header.route = static_cast<uint16_t>(ways.next());
    return frame;
  }
  static void send(Routes& routes, const Routes::Ways& ways, OutFrame frame) {
    const Routes::Hop& hop = ways.hops()[frame.header.route];
    routes.send(hop, std::move(frame));
  }
  // Both ends of a cable have lost it, or have it again.
  void report(int cable, uint64_t generation, bool up) {
    for (const int end : {cable, (cable + 1) % 4}) graph_.take({cable, end, generation, up});
    routes_->findWays();
  }

  FakeLinks fake_{0};
  FakeLink& to_1_ = fake_.add(1, 0);
  FakeLink& to_3_ = fake_.add(3, 3);
  CableGraph graph_{0, 4, FakeLinks::ringCables(4), {}};
  const FlowLimits limits_ = FlowLimits::of(4, kLimit, kLimit);
  const std::vector<plan::Route> plan_{{{0, 1, 2}, 0.75}, {{0, 3, 2}, 0.25}, {{3, 0, 1}, 1.0}};
  std::optional<Routes> routes_;
  std::vector<std::string> failed_;
};

TEST_F(RoutesOfARing, CarryFramesInProportionToTheirWeights) {
  on([&](Routes& routes) {
    Routes::Ways& ways = *routes.waysTo(2);
    for (int i = 0; i < 100; ++i) {
      OutFrame frame = frameTo(2, ways);
      ways.charge(frame.header.route, 1000);
      send(routes, ways, std::move(frame));
    }
    EXPECT_EQ(FakeLinks::take(to_1_).size(), 75u);
    EXPECT_EQ(FakeLinks::take(to_3_).size(), 25u);
    EXPECT_TRUE(ways.relayed());
    EXPECT_EQ(routes.waysTo(0), nullptr);
  });
}

TEST_F(RoutesOfARing, AvoidAPathThatHasLostACableElsewhere) {
  on([&](Routes& routes) {
    Routes::Ways& ways = *routes.waysTo(2);
    OutFrame late = frameTo(2, ways);
    report(1, 1, false);
    for (int i = 0; i < 3; ++i) send(routes, ways, frameTo(2, ways));
    send(routes, ways, std::move(late));
    EXPECT_TRUE(FakeLinks::take(to_1_).empty());
    const std::vector<FrameHeader> sent = FakeLinks::take(to_3_);
    ASSERT_EQ(sent.size(), 4u);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(sent[i].detour, 0);
    EXPECT_EQ(sent[3].detour, 1);
  });
}

TEST_F(RoutesOfARing, KeepAFrameUntilThereIsAWay) {
  on([&](Routes& routes) {
    Routes::Ways& ways = *routes.waysTo(2);
    report(1, 1, false);
    report(2, 1, false);
    send(routes, ways, frameTo(2, ways));
    EXPECT_TRUE(FakeLinks::take(to_1_).empty());
    EXPECT_TRUE(FakeLinks::take(to_3_).empty());
    report(2, 2, true);
    EXPECT_EQ(FakeLinks::take(to_3_).size(), 1u);
  });
}

TEST_F(RoutesOfARing, DropOnlyOwnFramesOfAChannel) {
  on([&](Routes& routes) {
    Routes::Ways& ways = *routes.waysTo(2);
    report(1, 1, false);
    report(2, 1, false);
    for (const uint32_t channel : {7u, 8u}) {
      OutFrame frame = frameTo(2, ways);
      frame.header.channel = channel;
      frame.header.payload_bytes = 100;
      frame.owned = fake_.buffers.take(100);
      send(routes, ways, std::move(frame));
    }
    std::vector<uint32_t> dropped;
    routes.dropOwn(7, [&](const FrameHeader& header) { dropped.push_back(header.channel); });
    EXPECT_EQ(dropped, std::vector<uint32_t>{7});
    report(2, 2, true);
    const std::vector<FrameHeader> sent = FakeLinks::take(to_3_);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].channel, 8u);
  });
}

TEST_F(RoutesOfARing, RelayFramesOfTheirPairsOnly) {
  on([&](Routes& routes) {
    FrameHeader header;
    header.source = 3;
    header.target = 1;
    routes.relay(header, {});
    EXPECT_EQ(FakeLinks::take(to_1_).size(), 1u);
    EXPECT_TRUE(failed_.empty());
    header.source = 2;
    routes.relay(header, {});
    EXPECT_TRUE(FakeLinks::take(to_1_).empty());
    EXPECT_EQ(failed_.size(), 1u);
  });
}

TEST_F(RoutesOfARing, FailASourceThatHasMoreHereThanItsLimit) {
  on([&](Routes& routes) {
    FrameHeader header;
    header.source = 3;
    header.target = 1;
    header.payload_bytes = kRelayedPayloadBytes;
    const size_t most = 4 * (limits_.early + limits_.relayed);
    size_t accepted = 0;
    while (failed_.empty() && accepted <= 2 * most) {
      routes.relay(header, fake_.buffers.take(header.payload_bytes));
      if (failed_.empty()) accepted += header.payload_bytes;
    }
    EXPECT_LE(accepted, most);
    EXPECT_GT(accepted + kRelayedPayloadBytes, most);
    FakeLinks::take(to_1_);
  });
}

TEST_F(RoutesOfARing, FloodAllNeighboursButOne) {
  on([&](Routes& routes) {
    FrameHeader header;
    header.type = FrameType::kFailure;
    routes.flood(header, "why", &to_1_);
    EXPECT_TRUE(FakeLinks::take(to_1_).empty());
    const std::vector<FrameHeader> sent = FakeLinks::take(to_3_);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].payload_bytes, 3u);
  });
}

// The choices from rank 0 to rank 2 are the paths over rank 1 and over rank 3.
TEST_F(RoutesOfARing, DivideAMessageByItsShares) {
  on([&](Routes& routes) {
    ASSERT_NE(routes.choices(), nullptr);
    EXPECT_EQ(routes.choices()->of(0, 2), (std::vector<RouteChoices::Path>{{0, 1, 2}, {0, 3, 2}}));
    EXPECT_EQ(routes.choices()->of(0, 1), (std::vector<RouteChoices::Path>{{0, 1}, {0, 3, 2, 1}}));
    const size_t bytes = 1'000'001;
    const auto ways = routes.divided(2, {0.3, 0.7}, bytes, 4e6);
    std::vector<size_t> carried(2);
    for (size_t left = bytes; left > 0;) {
      const size_t route = ways->next();
      const size_t payload = std::min(left, ways->framePayload(bytes, route));
      ways->charge(route, payload);
      carried[route] += payload;
      left -= payload;
      OutFrame frame;
      frame.header.target = 2;
      frame.header.route = ways->name(route);
      routes.send(ways->hops()[route], std::move(frame));
    }
    EXPECT_EQ(carried, (std::vector<size_t>{300'000, 700'001}));
    for (const FrameHeader& header : FakeLinks::take(to_1_)) {
      EXPECT_EQ(header.route, RouteName::ofChoice(0, 2));
    }
    EXPECT_FALSE(FakeLinks::take(to_3_).empty());
    const auto whole = routes.divided(2, {0.001, 0.999}, bytes, 1e6);
    for (size_t left = bytes; left > 0;) {
      ASSERT_EQ(whole->next(), 1u);  // the other part is too small for a frame
      const size_t payload = whole->framePayload(bytes, 1);
      whole->charge(1, payload);
      left -= payload;
    }
  });
}

TEST_F(RoutesOfARing, RelayChoicesThatThePlanDoesNotHave) {
  on([&](Routes& routes) {
    FrameHeader header;
    header.source = 1;
    header.target = 3;
    header.route = RouteName::ofChoice(0, 1);  // over rank 0
    routes.relay(header, {});
    EXPECT_EQ(FakeLinks::take(to_3_).size(), 1u);
    EXPECT_TRUE(failed_.empty());
    report(3, 1, false);
    EXPECT_FALSE(routes.intact());
    routes.relay(header, {});
    const std::vector<FrameHeader> sent = FakeLinks::take(to_1_);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].detour, 1);
    report(3, 2, true);
    EXPECT_TRUE(routes.intact());
  });
}

}  // namespace
}  // namespace topoopt
