// Open and closed channels of rank 0, whose link is not real.

#include "transport/endpoint/channels.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/fake_links.h"

namespace topoopt {
namespace {

class ChannelsOfARank : public testing::Test {
 protected:
  void on(const std::function<void()>& function) { fake_.reactor.run(function); }

  ChannelEvents events() {
    return {
        .failed = [this](std::exception_ptr) { ++failed_; },
        .control = [this](const FrameHeader& header,
                          const std::string&) { controls_.push_back(header.type); },
        .unmatched = [this](int peer, uint32_t number) { unmatched_.emplace_back(peer, number); }};
  }
  static FrameHeader from1(FrameType type, uint32_t channel) {
    FrameHeader header;
    header.type = type;
    header.source = 1;
    header.channel = channel;
    return header;
  }

  FakeLinks fake_{0};
  Link& to_1_ = fake_.add(1);
  const FlowLimits limits_ = FlowLimits::of(2, 1 << 20, 1 << 20);
  Routes routes_{0, fake_.links, {}, nullptr, limits_, fake_.buffers, [](const std::string&) {}};
  Channels channels_{fake_.reactor, routes_};
  int failed_ = 0;
  std::vector<FrameType> controls_;
  std::vector<std::pair<int, uint32_t>> unmatched_;
};

TEST_F(ChannelsOfARank, StayClosed) {
  on([&] {
    channels_.open(5, events());
    EXPECT_FALSE(channels_.isClosed(5));
    EXPECT_TRUE(channels_.close(5, "first"));
    EXPECT_FALSE(channels_.close(5, "second"));
    EXPECT_TRUE(channels_.isClosed(5));
    EXPECT_EQ(channels_.whyClosed(5), "first");
    EXPECT_FALSE(channels_.failureHandler(5));
    channels_.failAll("over");
    EXPECT_EQ(failed_, 0);
  });
}

TEST_F(ChannelsOfARank, MayBeClosedByTheCallOfAnOwner) {
  on([&] {
    for (const uint32_t channel : {5u, 6u}) {
      ChannelEvents closing = events();
      closing.failed = [this](std::exception_ptr) {
        ++failed_;
        channels_.close(5, "failed");
        channels_.close(6, "failed");
      };
      channels_.open(channel, closing);
    }
    channels_.failAll("over");
    EXPECT_EQ(failed_, 2);
  });
}

TEST_F(ChannelsOfARank, AreForgottenWhenManyCloseLater) {
  on([&] {
    std::optional<uint32_t> forgotten;
    uint32_t channel = 0;
    for (; !forgotten && channel < 100'000; ++channel) {
      channels_.close(channel, "over");
      forgotten = channels_.forgetOldest();
    }
    EXPECT_EQ(forgotten, std::optional<uint32_t>(0));
    EXPECT_FALSE(channels_.isClosed(0));
    EXPECT_TRUE(channels_.isClosed(1));
    EXPECT_FALSE(channels_.forgetOldest());
  });
}

TEST_F(ChannelsOfARank, KeepWhatComesBeforeTheyAreOpen) {
  on([&] {
    channels_.onControl(from1(FrameType::kRings, 5), "");
    channels_.onControl(from1(FrameType::kCall, 5), "");
    channels_.open(5, events());
    EXPECT_EQ(controls_, std::vector<FrameType>{FrameType::kRings});
  });
}

TEST_F(ChannelsOfARank, AnswerForClosedOnes) {
  on([&] {
    channels_.open(5, events());
    EXPECT_TRUE(channels_.finishCall(5, 41));
    channels_.close(5, "over");
    EXPECT_FALSE(channels_.finishCall(5, 42));
    channels_.onControl(from1(FrameType::kRings, 5), "");
    channels_.onControl(from1(FrameType::kStateRequest, 5), "");
    const std::vector<FrameHeader> sent = FakeLinks::take(to_1_);
    ASSERT_EQ(sent.size(), 2u);
    EXPECT_EQ(sent[0].type, FrameType::kRingsAnswer);
    EXPECT_EQ(sent[0].offset, 42u);
    EXPECT_EQ(sent[1].type, FrameType::kState);
  });
}

TEST_F(ChannelsOfARank, ReportMessagesOfCollectivesThatAreOver) {
  on([&] {
    channels_.open(5, events());
    channels_.finishCall(5, 7);
    for (const uint64_t number : {7, 8}) {
      FrameHeader header = from1(FrameType::kData, 5);
      header.fingerprint = laneFingerprint(number, 0);
      channels_.reportIfOver(header);
    }
    EXPECT_TRUE(unmatched_.empty());  // later, as this may be in the middle of a receive
  });
  on([&] { EXPECT_EQ(unmatched_, (std::vector<std::pair<int, uint32_t>>{{1, 7}})); });
}

}  // namespace
}  // namespace topoopt
