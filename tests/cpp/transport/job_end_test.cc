// The end of a job, of a rank between two others whose links are not real.

#include "transport/endpoint/job_end.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "support/fake_links.h"
#include "support/test_limits.h"

namespace topoopt {
namespace {

// The middle rank of a line of three.
class EndOfAJob : public testing::Test, private JobEnd::Host {
 protected:
  void on(const std::function<void()>& function) { fake_.reactor.run(function); }

  static FrameHeader flooded(FrameType type, int source, uint32_t channel = 0) {
    FrameHeader header;
    header.type = type;
    header.source = static_cast<uint16_t>(source);
    header.channel = channel;
    return header;
  }
  static size_t count(Link& link, FrameType type) {
    size_t frames = 0;
    for (const FrameHeader& header : FakeLinks::take(link)) frames += header.type == type;
    return frames;
  }
  // leave() on a thread of its own; returns when it has begun.
  std::future<std::string> leave() {
    auto result = std::async(std::launch::async, [this] { return end_.leave(kNoHurry); });
    EXPECT_EQ(begun_.get_future().wait_for(kWaitLimit), std::future_status::ready);
    return result;
  }
  static std::string resultOf(std::future<std::string>& result) {
    if (result.wait_for(kWaitLimit) != std::future_status::ready) return "still waiting";
    return result.get();
  }

  bool allConsumed() const override { return consumed_; }
  void requestAcknowledgements() override { begun_.set_value(); }
  void onRankLeft(int rank) override { left_.push_back(rank); }
  void onJobFailed(const std::string& why) override { failures_.push_back(why); }
  void onChannelFailed(uint32_t channel, const std::string& why) override {
    channel_failures_.emplace_back(channel, why);
  }

  FakeLinks fake_{1};
  Link& to_0_ = fake_.add(0);
  Link& to_2_ = fake_.add(2);
  const FlowLimits limits_ = FlowLimits::of(3, 1 << 20, 1 << 20);
  Routes routes_{1, fake_.links, {}, nullptr, limits_, fake_.buffers, [](const std::string&) {}};
  JobEnd end_{1, 3, fake_.reactor, fake_.links, routes_, *this};
  bool consumed_ = true;
  std::promise<void> begun_;
  std::vector<int> left_;
  std::vector<std::string> failures_;
  std::vector<std::pair<uint32_t, std::string>> channel_failures_;
};

TEST_F(EndOfAJob, IsAnnouncedOnlyWhenAllIsConsumed) {
  consumed_ = false;
  auto result = leave();
  on([&] {
    end_.continueLeaving();
    EXPECT_EQ(count(to_0_, FrameType::kLeave), 0u);
    consumed_ = true;
    end_.continueLeaving();
    end_.continueLeaving();
    EXPECT_EQ(count(to_0_, FrameType::kLeave), 1u);
    EXPECT_EQ(count(to_2_, FrameType::kLeave), 1u);
    EXPECT_TRUE(end_.status().hasLeft(1));
    end_.failHere("over");
  });
  EXPECT_EQ(resultOf(result), "over");
}

TEST_F(EndOfAJob, ComesWhenAllHaveLeftAndTheLinksAreDead) {
  auto result = leave();
  on([&] {
    FakeLinks::take(to_0_);
    FakeLinks::take(to_2_);
    end_.onFlooded(to_0_, flooded(FrameType::kLeave, 0), "");
    EXPECT_EQ(count(to_0_, FrameType::kLeave), 0u);
    EXPECT_EQ(count(to_2_, FrameType::kLeave), 1u);
    EXPECT_FALSE(end_.status().closing);
    end_.onFlooded(to_2_, flooded(FrameType::kLeave, 2), "");
    EXPECT_EQ(left_, (std::vector<int>{0, 2}));
    EXPECT_TRUE(end_.status().closing);
    FakeLinks::take(to_0_);
    to_0_.close();
    end_.continueLeaving();
  });
  EXPECT_EQ(result.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  on([&] {
    to_2_.close();
    end_.continueLeaving();
  });
  EXPECT_EQ(resultOf(result), "");
}

TEST_F(EndOfAJob, PassesEachLeaveAndFailureOnOnce) {
  on([&] {
    for (int i = 0; i < 2; ++i) {
      end_.onFlooded(to_0_, flooded(FrameType::kLeave, 0), "");
      end_.onFlooded(to_0_, flooded(FrameType::kFailure, 0, 7), "seven");
    }
    const std::vector<FrameHeader> passed = FakeLinks::take(to_2_);
    ASSERT_EQ(passed.size(), 2u);
    EXPECT_EQ(passed[0].type, FrameType::kLeave);
    EXPECT_EQ(passed[1].type, FrameType::kFailure);
    EXPECT_TRUE(FakeLinks::take(to_0_).empty());
    EXPECT_EQ(left_, std::vector<int>{0});
    ASSERT_EQ(channel_failures_.size(), 1u);
    EXPECT_EQ(channel_failures_[0].first, 7u);
    end_.forgetChannel(7);
    EXPECT_EQ(end_.rememberedEntries(), 0u);
  });
}

TEST_F(EndOfAJob, FailsOnceForTheFirstReason) {
  on([&] {
    end_.failAll("first");
    end_.failAll("second");
    end_.onFlooded(to_0_, flooded(FrameType::kFailure, 0, kAllChannels), "third");
    EXPECT_EQ(failures_, std::vector<std::string>{"first"});
    EXPECT_EQ(end_.status().failure, "first");
    EXPECT_EQ(count(to_0_, FrameType::kFailure), 1u);
    EXPECT_EQ(count(to_2_, FrameType::kFailure), 2u);  // and the other rank's reason
  });
}

TEST_F(EndOfAJob, RemembersWhichLinksWereUpWhenItFailed) {
  on([&] {
    to_0_.close();
    EXPECT_FALSE(end_.wasUp(0));
    end_.failHere("over");
    to_2_.close();
    EXPECT_FALSE(end_.wasUp(0));
    EXPECT_TRUE(end_.wasUp(1));
  });
}

}  // namespace
}  // namespace topoopt
