// Reports of cables, at rank 0 of a ring of four whose links are not real.

#include "transport/endpoint/cable_reports.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <string>
#include <vector>

#include "support/fake_links.h"
#include "support/test_limits.h"

namespace topoopt {
namespace {

class ReportsOfCables : public testing::Test {
 protected:
  void on(const std::function<void()>& function) { fake_.reactor.run(function); }

  static FrameHeader state(int cable, int end, uint64_t generation, bool up,
                           Loss loss = Loss::kClosed) {
    FrameHeader header;
    header.type = FrameType::kCableState;
    header.source = static_cast<uint16_t>(end);
    header.stream = static_cast<uint64_t>(cable);
    header.message = CableReport{cable, end, generation, up}.number();
    header.offset = static_cast<uint64_t>(loss);
    return header;
  }

  FakeLinks fake_{0};
  Link& to_1_ = fake_.add(1, 0);
  Link& to_3_ = fake_.add(3, 3);
  CableGraph graph_{0, 4, FakeLinks::ringCables(4), {}};
  const FlowLimits limits_ = FlowLimits::of(4, 1 << 20, 1 << 20);
  Routes routes_{0, fake_.links, {}, &graph_, limits_, fake_.buffers, [](const std::string&) {}};
  JobStatus status_;
  std::promise<std::string> failed_;
  std::promise<void> changed_;
  CableReports reports_{0,
                        kNoHurry,
                        fake_.reactor,
                        graph_,
                        routes_,
                        status_,
                        [this](const std::string& why) {
                          status_.failure = why;
                          failed_.set_value(why);
                        },
                        [this] { changed_.set_value(); }};
};

TEST_F(ReportsOfCables, ArePassedOnOnce) {
  on([&] {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(reports_.onState(to_1_, state(1, 1, 1, false)));
    EXPECT_TRUE(FakeLinks::take(to_1_).empty());
    EXPECT_EQ(FakeLinks::take(to_3_).size(), 1u);
    EXPECT_FALSE(graph_.up(1));
    EXPECT_FALSE(reports_.onState(to_1_, state(4, 1, 1, false)));
  });
}

TEST_F(ReportsOfCables, ReachALinkThatMissedThem) {
  on([&] {
    reports_.onState(to_1_, state(1, 1, 1, false));
    reports_.reportSpeed(0, 0.5);
    FakeLinks::take(to_1_);
    FakeLinks::take(to_3_);
    reports_.greet(to_3_);
    const std::vector<FrameHeader> sent = FakeLinks::take(to_3_);
    ASSERT_EQ(sent.size(), 2u);
    EXPECT_EQ(sent[0].type, FrameType::kCableState);
    EXPECT_EQ(sent[1].type, FrameType::kCableSpeed);
  });
}

TEST_F(ReportsOfCables, NumberTheSpeedsOfACable) {
  on([&] {
    reports_.reportSpeed(0, 0.5);
    reports_.reportSpeed(0, 1.0);
    EXPECT_EQ(FakeLinks::take(to_1_).size(), 2u);
    EXPECT_TRUE(graph_.intact());
  });
}

// A second notice would set the promise again, which throws.
TEST_F(ReportsOfCables, NotifyTheGroupsOnceForChangesThatComeTogether) {
  on([&] {
    for (const int cable : {1, 2}) {
      reports_.onState(to_1_, state(cable, cable, 1, false, Loss::kSilent));
      reports_.react();
    }
  });
  EXPECT_EQ(changed_.get_future().wait_for(kWaitLimit), std::future_status::ready);
}

TEST_F(ReportsOfCables, FailTheJobWhenARankIsGone) {
  on([&] {
    for (const int cable : {1, 2}) {
      reports_.onState(to_1_, state(cable, cable == 1 ? 1 : 3, 1, false));
      reports_.react();
    }
  });
  auto failed = failed_.get_future();
  ASSERT_EQ(failed.wait_for(kWaitLimit), std::future_status::ready);
  EXPECT_NE(failed.get().find("rank 2 is gone"), std::string::npos);
}

TEST_F(ReportsOfCables, LetARankComeBackThatMayStillRun) {
  on([&] {
    for (const int cable : {1, 2}) {
      reports_.onState(to_1_, state(cable, cable == 1 ? 1 : 3, 1, false, Loss::kSilent));
      reports_.react();
    }
    EXPECT_EQ(graph_.unreachable(), std::vector<int>{2});
    for (const int end : {1, 2}) reports_.onState(to_1_, state(1, end, 2, true));
    reports_.react();
    EXPECT_TRUE(graph_.unreachable().empty());
    EXPECT_FALSE(status_.failed());
  });
}

}  // namespace
}  // namespace topoopt
