// The flows that rank 0 receives from rank 1, over a link that is not real.

#include "transport/endpoint/in_flows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "support/fake_links.h"

namespace topoopt {
namespace {

class FlowsToARank : public testing::Test {
 protected:
  static constexpr uint32_t kChannel = 5;
  static constexpr uint64_t kTag = kFirstMessageStream;
  static constexpr size_t kBytes = 1000;

  void on(const std::function<void()>& function) { fake_.reactor.run(function); }

  static FlowId flow(uint64_t stream = kTag) { return {1, kChannel, stream}; }
  InFlows::ReceiveBuffer into(std::vector<std::byte>& memory, uint64_t fingerprint = 0) {
    return {memory.data(), memory.size(), fingerprint, [this](std::exception_ptr error) {
              ++done_;
              errors_ += error != nullptr;
            }};
  }
  static FrameHeader header(FrameType type, uint64_t message, uint64_t stream = kTag) {
    FrameHeader header;
    header.type = type;
    header.source = 1;
    header.channel = kChannel;
    header.stream = stream;
    header.message = message;
    return header;
  }
  // A message that is one frame; what it is filled with.
  bool arrive(uint64_t message, int value, uint64_t stream = kTag, uint64_t fingerprint = 0) {
    FrameHeader data = header(FrameType::kData, message, stream);
    data.message_bytes = data.payload_bytes = kBytes;
    data.fingerprint = fingerprint;
    std::byte* const place = flows_.placeFor(data);
    PayloadBuffer payload;
    if (place == nullptr) payload = fake_.buffers.take(kBytes);
    std::memset(place != nullptr ? place : payload.data(), value, kBytes);
    return flows_.onData(data, std::move(payload), place != nullptr);
  }
  std::vector<FrameHeader> acks() { return FakeLinks::take(to_1_); }

  FakeLinks fake_{0};
  FakeLink& to_1_ = fake_.add(1);
  const FlowLimits limits_ = FlowLimits::of(2, 64 << 10, 1 << 20);
  Routes routes_{0, fake_.links, {}, nullptr, limits_, fake_.buffers, [](const std::string&) {}};
  JobStatus status_;
  std::vector<std::string> failed_;
  InFlows flows_{0, 2, limits_, fake_.links, routes_, status_, [this](const std::string& why) {
                   failed_.push_back(why);
                 }};
  std::vector<std::byte> first_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> second_ = std::vector<std::byte>(kBytes);
  int done_ = 0;
  int errors_ = 0;
};

TEST_F(FlowsToARank, CompleteReceivesInTheirOrder) {
  on([&] {
    flows_.post(flow(), into(first_));
    flows_.post(flow(), into(second_));
    arrive(1, 2);
    EXPECT_EQ(done_, 0);
    arrive(0, 1);
    EXPECT_EQ(done_, 2);
    EXPECT_EQ(first_.back(), std::byte{1});
    EXPECT_EQ(second_.back(), std::byte{2});
    EXPECT_EQ(flows_.consumedOf(flow()), 2 * costOf(kBytes));
  });
}

TEST_F(FlowsToARank, KeepWhatComesBeforeItsReceive) {
  on([&] {
    arrive(0, 7);
    EXPECT_EQ(flows_.early().now, costOf(kBytes));
    flows_.post(flow(), into(first_));
    EXPECT_EQ(done_, 1);
    EXPECT_EQ(first_.back(), std::byte{7});
    EXPECT_EQ(flows_.early().now, 0u);
  });
}

TEST_F(FlowsToARank, FailASenderThatKeepsTooMuchHere) {
  on([&] {
    for (uint64_t message = 0; failed_.empty() && message < 10'000; ++message) arrive(message, 0);
    EXPECT_EQ(failed_.size(), 1u);
    EXPECT_LE(flows_.early().peak, 2 * limits_.early_peer);
  });
}

TEST_F(FlowsToARank, AnswerASenderThatWaitsAsSoonAsTheReceiveIsPosted) {
  on([&] {
    flows_.onRequestToSend(header(FrameType::kRequestToSend, 0));
    EXPECT_TRUE(acks().empty());
    flows_.post(flow(), into(first_));
    const std::vector<FrameHeader> sent = acks();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].type, FrameType::kAck);
    EXPECT_EQ(sent[0].message, 1u);
    EXPECT_EQ(sent[0].offset, 1u);
  });
}

TEST_F(FlowsToARank, AcknowledgeWhatIsConsumedBeforeItFillsTheWindow) {
  on([&] {
    uint64_t message = 0;
    while (acks().empty() && message < 10'000) {
      flows_.post(flow(), into(first_));
      arrive(message++, 0);
    }
    EXPECT_LE(message * costOf(kBytes), limits_.ack + costOf(kBytes));
    flows_.onAckRequest(header(FrameType::kAckRequest, 0));
    EXPECT_EQ(acks().size(), 1u);
    flows_.post(flow(), into(first_));
    arrive(message, 0);
    EXPECT_EQ(acks().size(), 1u);  // at once from now on
  });
}

TEST_F(FlowsToARank, RefuseAMessageOfAnotherOperation) {
  on([&] {
    flows_.post(flow(), into(first_, 1));
    arrive(0, 0, kTag, 2);
    EXPECT_EQ(errors_, 1);
  });
}

TEST_F(FlowsToARank, GiveAMessageToAReceiveOfAnyRank) {
  on([&] {
    std::vector<int> from;
    const auto record = [&from](int peer) { from.push_back(peer); };
    flows_.postAny({{1}, kChannel, kTag, record, into(first_)});
    flows_.postAny({{1}, kChannel, kTag, record, into(second_)});
    arrive(0, 1);
    EXPECT_EQ(from, std::vector<int>{1});
    arrive(1, 2);
    EXPECT_EQ(done_, 2);
    EXPECT_EQ(first_.back(), std::byte{1});
    EXPECT_EQ(second_.back(), std::byte{2});
  });
}

TEST_F(FlowsToARank, ReportALanesMessageWithoutReceiveOnce) {
  on([&] {
    const uint64_t fingerprint = laneFingerprint(9, 0);
    EXPECT_TRUE(arrive(0, 0, 0, fingerprint));
    EXPECT_FALSE(arrive(1, 0));  // a tag's may wait
    EXPECT_EQ(flows_.senderWithoutReceive(kChannel, 9), std::optional<int>(1));
    flows_.post(flow(0), into(first_, fingerprint));
    EXPECT_EQ(flows_.senderWithoutReceive(kChannel, 9), std::nullopt);
  });
}

TEST_F(FlowsToARank, ForgetAnOlderGeneration) {
  on([&] {
    flows_.post(flow(), into(first_));
    arrive(0, 1);
    acks();
    FrameHeader forget = header(FrameType::kForget, 0);
    forget.generation = 1;
    PayloadBuffer names = fake_.buffers.take(sizeof(FlowName));
    const FlowName name{kTag, kChannel};
    std::memcpy(names.data(), &name, sizeof name);
    flows_.onForget(forget, names);
    EXPECT_EQ(flows_.rememberedEntries(), 0u);
  });
}

TEST_F(FlowsToARank, OfAClosedChannelAreAcknowledgedInFull) {
  on([&] {
    arrive(0, 0);
    flows_.closeChannel(kChannel);
    std::vector<FrameHeader> sent = acks();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].message_bytes, kEverything);
    EXPECT_EQ(flows_.early().now, 0u);
    EXPECT_EQ(flows_.rememberedEntries(), 0u);
    flows_.refuse(header(FrameType::kData, 1));
    sent = acks();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].message_bytes, kEverything);
  });
}

TEST_F(FlowsToARank, OfARankThatLeftFail) {
  on([&] {
    flows_.post(flow(), into(first_));
    status_.left.insert(1);
    EXPECT_EQ(flows_.waitingFor(1), std::set<uint32_t>{kChannel});
    flows_.post(flow(kTag + 1), into(second_));
    EXPECT_EQ(errors_, 1);
  });
}

}  // namespace
}  // namespace topoopt
