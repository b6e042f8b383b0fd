// The flows that rank 0 sends to rank 1, over a link that is not real, and to rank 2 behind it.

#include "transport/endpoint/out_flows.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/fake_links.h"

namespace topoopt {
namespace {

class FlowsFromARank : public testing::Test {
 protected:
  static constexpr size_t kWindow = 1 << 20;
  static constexpr uint32_t kChannel = 5;
  static constexpr uint64_t kTag = kFirstMessageStream;

  void on(const std::function<void()>& function) { fake_.reactor.run(function); }

  void send(int peer, size_t bytes, uint64_t stream = kTag) {
    auto progress = std::make_shared<SendProgress>(SendProgress{bytes, [](std::exception_ptr) {}});
    flows_.send({peer, kChannel, stream}, *routes_.waysTo(peer),
                {memory_.data(), bytes, 0, 0, std::move(progress)});
  }
  // What the receiver has consumed, and how many of its receives are posted.
  void acknowledge(int peer, uint64_t consumed, uint64_t posted, uint32_t generation = 0,
                   uint64_t stream = kTag) {
    FrameHeader header;
    header.type = FrameType::kAck;
    header.source = static_cast<uint16_t>(peer);
    header.channel = kChannel;
    header.stream = stream;
    header.message = posted;
    header.message_bytes = consumed;
    header.generation = generation;
    flows_.onAck(header, false);
  }
  struct Sent {
    size_t cost = 0;
    size_t requests = 0;
    std::vector<FrameHeader> data{};
  };
  Sent sent() {
    Sent sum;
    for (const FrameHeader& header : FakeLinks::take(to_1_)) {
      sum.requests += header.type == FrameType::kRequestToSend;
      if (header.type != FrameType::kData) continue;
      sum.cost += costOf(header.payload_bytes);
      sum.data.push_back(header);
    }
    return sum;
  }

  FakeLinks fake_{0};
  FakeLink& to_1_ = fake_.add(1);
  const FlowLimits limits_ = FlowLimits::of(3, kWindow, 6 << 20);
  const std::vector<plan::Route> plan_{{{0, 1, 2}, 1.0}};
  Routes routes_{0, fake_.links, plan_, nullptr, limits_, fake_.buffers, [](const std::string&) {}};
  OutFlows flows_{0, 3, kWindow, limits_, routes_};
  const std::vector<std::byte> memory_ = std::vector<std::byte>(8 * kWindow);
};

TEST_F(FlowsFromARank, SendNoMoreThanTheirWindow) {
  on([&] {
    acknowledge(1, 0, 0);  // of a flow that does not exist
    send(1, 100);
    acknowledge(1, 0, 2);
    send(1, 4 * kWindow);
    Sent first = sent();
    EXPECT_GE(first.cost, kWindow);
    EXPECT_LT(first.cost, kWindow + costOf(kNeighbourPayloadBytes));
    acknowledge(1, first.cost, 2);
    const Sent second = sent();
    EXPECT_GE(second.cost, kWindow);
    EXPECT_LT(second.cost, kWindow + costOf(kNeighbourPayloadBytes));
    EXPECT_EQ(second.data.front().offset,
              first.data.back().offset + first.data.back().payload_bytes);
  });
}

TEST_F(FlowsFromARank, AskForTheReceiveOfWhatIsTooLongToComeEarly) {
  on([&] {
    send(1, 2 * kWindow);
    const Sent early = sent();
    EXPECT_EQ(early.requests, 1u);
    EXPECT_LE(early.cost, limits_.early_peer);
    acknowledge(1, early.cost, 0);  // consumed, but the next receive is not known
    EXPECT_LE(sent().cost, limits_.early_peer);
    acknowledge(1, early.cost, 1);
    EXPECT_GT(sent().cost, 0u);
    EXPECT_FALSE(flows_.allConsumed());
  });
}

TEST_F(FlowsFromARank, ShareWhatIsRelayed) {
  on([&] {
    for (const uint64_t stream : {kTag, kTag + 1}) {
      send(2, 10, stream);
      acknowledge(2, 0, 2, 0, stream);
    }
    sent();
    size_t cost = 2 * costOf(10);
    for (int i = 0; i < 8; ++i) send(2, kWindow, kTag);
    cost += sent().cost;
    send(2, kWindow, kTag + 1);
    cost += sent().cost;
    EXPECT_LE(cost, limits_.relayed + limits_.early);
    acknowledge(2, cost - costOf(10), 9, 0, kTag);
    const Sent resumed = sent();
    EXPECT_GT(resumed.cost, 0u);
    EXPECT_LE(resumed.cost, limits_.relayed + limits_.early);
  });
}

TEST_F(FlowsFromARank, AreForgottenInBatchesAndBeginANewGeneration) {
  on([&] {
    for (uint64_t stream = kTag; stream < kTag + kForgottenFlows; ++stream) {
      send(1, 10, stream);
      acknowledge(1, costOf(10), 1, 0, stream);
    }
    const std::vector<FrameHeader> all = FakeLinks::take(to_1_);
    EXPECT_EQ(all.front().type, FrameType::kForget);  // control frames come first
    EXPECT_EQ(all.front().generation, 1u);
    EXPECT_EQ(all.front().payload_bytes, kForgottenFlows * sizeof(FlowName));
    EXPECT_EQ(flows_.rememberedEntries(), 0u);
    send(1, 10);
    acknowledge(1, costOf(10), 1, 0);  // a late one, of the old generation
    EXPECT_FALSE(flows_.allConsumed());
    EXPECT_EQ(sent().data.front().generation, 1u);
  });
}

TEST_F(FlowsFromARank, ThatFailHoldNothingBack) {
  on([&] {
    send(1, 2 * kWindow);
    send(2, 2 * kWindow);
    EXPECT_FALSE(flows_.allConsumed());
    EXPECT_EQ(flows_.giveUp(2), std::set<uint32_t>{kChannel});
    flows_.failChannel(kChannel);
    EXPECT_TRUE(flows_.allConsumed());
    sent();
    send(1, 1000);
    EXPECT_EQ(sent().cost, costOf(1000));
  });
}

TEST_F(FlowsFromARank, OfAClosedChannelAreWaitedForUntilTheyAreConsumed) {
  on([&] {
    send(1, 1000);
    const Sent all = sent();
    flows_.closeChannel(kChannel);
    EXPECT_FALSE(flows_.allConsumed());
    JobStatus status;
    flows_.requestAcknowledgements(status);
    EXPECT_EQ(FakeLinks::take(to_1_).size(), 1u);
    flows_.onDropped(all.data.front());
    EXPECT_TRUE(flows_.allConsumed());
  });
}

}  // namespace
}  // namespace topoopt
