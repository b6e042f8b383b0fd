// The cables of rank 0 in a ring of four, whose links are not real.

#include "transport/endpoint/local_cables.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <functional>
#include <string>
#include <vector>

#include "support/fake_links.h"
#include "support/test_limits.h"

namespace topoopt {
namespace {

class CablesOfARank : public testing::Test {
 protected:
  void on(const std::function<void()>& function) { fake_.reactor.run(function); }

  // The frames of a type that wait in a link, which has none afterwards.
  static std::vector<FrameHeader> take(Link& link, FrameType type) {
    std::vector<FrameHeader> headers = FakeLinks::take(link);
    std::erase_if(headers, [=](const FrameHeader& header) { return header.type != type; });
    return headers;
  }
  void lose(Loss loss = Loss::kBroken) {
    if (!to_1_.dead()) to_1_.drop(loss, "cut");
    cables_.onLost(to_1_, loss, "cut");
  }
  // Data for rank 1, over the cable to it; the number of a message says which frame it is.
  void send(uint64_t frames) {
    const Routes::Hop hop = routes_.waysTo(1)->hops().front();
    for (uint64_t i = 0; i < frames; ++i) {
      OutFrame frame;
      frame.header.target = 1;
      frame.header.message = i;
      routes_.send(hop, std::move(frame));
    }
  }
  // From the other end of the cable to rank 1.
  static FrameHeader counts(FrameType type, uint64_t generation, uint64_t received) {
    FrameHeader header;
    header.type = type;
    header.source = 1;
    header.message = generation;
    header.offset = received;
    return header;
  }
  bool signalled() const {
    pollfd event{cables_.event(), POLLIN, 0};
    return poll(&event, 1, 0) == 1;
  }

  FakeLinks fake_{0};
  FakeLink& to_1_ = fake_.add(1, 0);
  FakeLink& to_3_ = fake_.add(3, 3);
  CableGraph graph_{0, 4, FakeLinks::ringCables(4), {}};
  const FlowLimits limits_ = FlowLimits::of(4, 1 << 20, 1 << 20);
  std::vector<std::string> failed_;
  JobStatus status_;
  const FailJob fail_ = [this](const std::string& why) {
    failed_.push_back(why);
    status_.failure = why;
  };
  Routes routes_{0, fake_.links, {}, &graph_, limits_, fake_.buffers, fail_};
  CableReports reports_{0, kNoHurry, fake_.reactor, graph_, routes_, status_, fail_, [] {}};
  LocalCables cables_{{0, std::chrono::milliseconds(200), kNoHurry},
                      fake_.reactor,
                      fake_.links,
                      graph_,
                      routes_,
                      reports_,
                      status_,
                      fail_};
};

TEST_F(CablesOfARank, AreReportedWhenTheyAreLost) {
  on([&] {
    EXPECT_FALSE(signalled());
    lose();
    const std::vector<FrameHeader> sent = FakeLinks::take(to_3_);
    ASSERT_EQ(sent.size(), 2u);
    EXPECT_EQ(sent[0].type, FrameType::kCableState);
    EXPECT_EQ(sent[1].type, FrameType::kLinkLost);
    EXPECT_EQ(sent[1].target, 1);
    EXPECT_EQ(cables_.lost(), std::vector<int>{0});
    EXPECT_TRUE(signalled());
    EXPECT_FALSE(graph_.up(0));
  });
}

TEST_F(CablesOfARank, SendAgainWhatTheOtherEndDoesNotHave) {
  on([&] {
    send(3);
    to_1_.write();
    send(1);
    lose();
    EXPECT_EQ(take(to_3_, FrameType::kData).size(), 1u);  // what was not written
    cables_.onLinkLost(counts(FrameType::kLinkLost, 1, 2));
    const std::vector<FrameHeader> again = take(to_3_, FrameType::kData);
    ASSERT_EQ(again.size(), 1u);
    EXPECT_EQ(again[0].message, 2u);
    EXPECT_EQ(again[0].detour, 1);
    cables_.onLinkLost(counts(FrameType::kLinkLost, 1, 2));
    EXPECT_TRUE(take(to_3_, FrameType::kData).empty());
  });
}

TEST_F(CablesOfARank, FailTheJobOverACountThatCannotBe) {
  on([&] {
    send(1);
    to_1_.write();
    lose();
    cables_.onLinkLost(counts(FrameType::kLinkLost, 1, 2));
    EXPECT_EQ(failed_.size(), 1u);
  });
}

TEST_F(CablesOfARank, ComeBackWithANewConnection) {
  on([&] {
    lose();
    FakeLinks::take(to_3_);
    cables_.replace(0, -1, "");
    EXPECT_TRUE(cables_.lost().empty());
    EXPECT_FALSE(to_1_.usable());
    EXPECT_EQ(take(to_1_, FrameType::kLinkHello).size(), 1u);
    cables_.onLinkHello(to_1_, counts(FrameType::kLinkHello, 1, 0));
    EXPECT_TRUE(to_1_.usable());
    const std::vector<FrameHeader> reports = take(to_3_, FrameType::kCableState);
    ASSERT_EQ(reports.size(), 1u);
    EXPECT_EQ(reports[0].message, (CableReport{0, 0, 2, true}.number()));
    EXPECT_EQ(take(to_1_, FrameType::kCableState).size(), 2u);  // flooded and greeted
  });
}

TEST_F(CablesOfARank, MoveWithoutALossForOthers) {
  on([&] {
    ASSERT_TRUE(cables_.beginMove(0));
    lose(Loss::kClosed);
    EXPECT_TRUE(take(to_3_, FrameType::kCableState).empty());
    cables_.replace(0, -1, "");
    cables_.onLinkHello(to_1_, counts(FrameType::kLinkHello, 1, 0));
    EXPECT_TRUE(to_1_.usable());
    EXPECT_TRUE(take(to_3_, FrameType::kCableState).empty());
  });
}

TEST_F(CablesOfARank, AreLostIfTheirMoveFails) {
  on([&] {
    ASSERT_TRUE(cables_.beginMove(0));
    lose(Loss::kClosed);
    cables_.endMove(0);
    EXPECT_EQ(take(to_3_, FrameType::kCableState).size(), 1u);
    EXPECT_FALSE(cables_.beginMove(0));
    EXPECT_FALSE(cables_.beginMove(1));  // a cable of others
  });
}

TEST_F(CablesOfARank, AreDroppedWhenNothingIsAcknowledged) {
  on([&] {
    to_1_.answer = Acknowledged::kNothing;
    cables_.hold();
    for (int i = 0; i < 5; ++i) cables_.tick();
    cables_.letGo();
    for (int i = 0; i < 2; ++i) cables_.tick();
    EXPECT_FALSE(to_1_.dead());
    cables_.tick();
    EXPECT_TRUE(to_1_.dead());
    EXPECT_FALSE(to_3_.dead());
    EXPECT_EQ(fake_.lost, std::vector<std::string>{"nothing is acknowledged"});
  });
}

TEST_F(CablesOfARank, NameACableOfTheGraphEach) {
  FakeLinks other(0);
  other.add(1, 0);
  other.add(3, 0);
  EXPECT_THROW(LocalCables({0, std::chrono::milliseconds(200), kNoHurry}, other.reactor,
                           other.links, graph_, routes_, reports_, status_, fail_),
               std::invalid_argument);
}

}  // namespace
}  // namespace topoopt
