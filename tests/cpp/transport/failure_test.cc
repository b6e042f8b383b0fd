// How failures spread, and channels that close with data on its way.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "support/network.h"
#include "support/traffic.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {
namespace {

// ---- failures ----------------------------------------------------------------------------------

TEST(Failures, ALostLinkFailsAllRanksWithItsName) {
  TestRandom random(208);
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    Traffic traffic;
    std::deque<Outcome> ignored;
    Network network(
        {.size = shape.size, .cables = ofRandomKinds(shape.cables, random), .routes = 2}, random);
    Channel channel(network, 3);
    const size_t cable = random.between(0, shape.cables.size() - 1);
    const Cable& lost = shape.cables[cable];
    network.cut(cable);
    for (int rank = 0; rank < shape.size; ++rank) {
      const std::string why = channel.failure(rank);
      EXPECT_TRUE(why.starts_with("PeerLostError: ")) << why;
      // In a simplex ring the news of one end only reaches half of the others by the way round, but
      // the other end of the cable notifies the rest.
      const auto names = [&](int a, int b) {
        return why.find("server " + std::to_string(a) + " port") != std::string::npos &&
               why.find("-> server " + std::to_string(b) + " port") != std::string::npos;
      };
      EXPECT_TRUE(names(lost.a, lost.b) || names(lost.b, lost.a)) << why;
      network.on(rank, [&](Endpoint& endpoint) {
        const int peer = (rank + 1) % shape.size;
        endpoint.send({peer, 4, 0}, nullptr, 0, 0, ignored.emplace_back().done());
      });
      EXPECT_TRUE(ignored.back().wait("a send after the failure").starts_with("PeerLostError"));
    }
  }
}

// In the middle of long messages, whatever moves their bytes.
TEST(Failures, AFastLinkThatIsLostUnderTrafficFailsAllRanks) {
  TestRandom random(218);
  for (const Moved moved : {Moved::kByThreads, Moved::kWithoutCopy, Moved::kByThreadsWithoutCopy}) {
    SCOPED_TRACE(nameOf(moved));
    std::vector<std::byte> from(4 << 20);
    std::vector<std::byte> into(4 << 20);
    Network network({.size = 3, .cables = ringOf(3), .routes = 1, .moved = moved}, random);
    Channel channel(network, 3);
    Outcome sent;
    Outcome received;
    network.on(0, [&](Endpoint& endpoint) {
      endpoint.send({1, 3, 0}, from.data(), from.size(), 0, sent.done());
    });
    network.on(1, [&](Endpoint& endpoint) {
      endpoint.receive({0, 3, 0}, into.data(), into.size(), 0, received.done());
    });
    network.cut(0);
    for (int rank = 0; rank < 3; ++rank) {
      const std::string why = channel.failure(rank);
      EXPECT_TRUE(why.starts_with("PeerLostError: ")) << why;
    }
  }
}

TEST(Failures, AFailedChannelFailsOnAllRanksAndOtherChannelsGoOn) {
  TestRandom random(209);
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    Traffic traffic;
    Network network({.size = shape.size, .cables = shape.cables}, random);
    Channel failing(network, 7);
    Channel other(network, 8);
    const int who = static_cast<int>(random.between(0, static_cast<size_t>(shape.size) - 1));
    network.on(who, [&](Endpoint& endpoint) { endpoint.failChannel(7, "the disk is full", true); });
    for (int rank = 0; rank < shape.size; ++rank) {
      if (rank == who) continue;
      EXPECT_EQ(failing.failure(rank),
                "PeerLostError: rank " + std::to_string(who) + " failed: the disk is full");
    }
    traffic.addRandom(shape.size, 20, 100000, random);
    traffic.start(network, random);
    ASSERT_NO_FATAL_FAILURE(traffic.check());
  }
}

TEST(Failures, AnEndpointThatFailsTellsAllOthers) {
  TestRandom random(210);
  Network network({.size = 5, .cables = simplexRingOf(5)}, random);
  Channel channel(network, 1);
  network.at(2)->fail("the script crashed");
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(channel.failure(rank), "PeerLostError: rank 2 failed: the script crashed");
  }
}

// Ranks end at different times after a failure; what one of them ends is not lost to the others.
TEST(Failures, LinksThatOthersEndAfterAFailureCountAsUp) {
  TestRandom random(232);
  for (const LinkKind kind : {LinkKind::kSocket, LinkKind::kSharedMemory}) {
    Network network({.size = 3, .cables = {{0, 1, true, kind}, {1, 2, true, kind}}}, random);
    Channel channel(network, 1);
    network.at(0)->fail("the disk is full");
    EXPECT_NE(channel.failure(2), "");
    network.at(0)->stop();
    network.at(1)->stop();
    for (const LinkTraffic& link : network.at(2)->traffic()) EXPECT_TRUE(link.up);
  }
}

// The link is full and the neighbour slow, and the rank goes as soon as fail() returns.
TEST(Failures, TheReasonOvertakesWhatWaitsOnACongestedLink) {
  TestRandom random(217);
  for (const LinkKind kind : {LinkKind::kSocket, LinkKind::kSharedMemory}) {
    std::vector<std::byte> from(8 << 20);
    Network network({.size = 3,
                     .cables = {{0, 1, true, kind}, {1, 2, true, kind}},
                     .window_bytes = 64 << 20,
                     .socket_bytes = 4096},
                    random);
    Channel channel(network, 1);
    std::thread failing;
    network.on(1, [&](Endpoint&) {  // which cannot read meanwhile
      network.on(0, [&](Endpoint& endpoint) {
        endpoint.send({2, 9, 0}, from.data(), from.size(), 0, [](std::exception_ptr) {});
      });
      failing = std::thread([&] {
        network.at(0)->fail("the disk is full");
        network.at(0)->stop();
      });
      EXPECT_EQ(channel.failure(0), "PeerLostError: rank 0 failed: the disk is full");
    });
    failing.join();
    for (const int rank : {1, 2}) {
      EXPECT_EQ(channel.failure(rank), "PeerLostError: rank 0 failed: the disk is full");
    }
  }
}

TEST(Failures, BytesThatAreNoFrameFailTheLink) {
  TestRandom random(211);
  Network network({.size = 3, .cables = ringOf(3)}, random);
  Channel channel(network, 1);
  const char garbage[100] = "GET / HTTP/1.1\r\n\r\n";
  network.write(0, garbage, sizeof garbage);
  const std::string why = channel.failure(0);
  EXPECT_NE(why.find("received something that is not a frame"), std::string::npos) << why;
  for (const int rank : {1, 2}) EXPECT_NE(channel.failure(rank), "");
}

// Whether its receive is there or not: nothing may be written outside the message.
TEST(Failures, AFrameThatDoesNotFitItsMessageFailsTheLink) {
  TestRandom random(212);
  for (const bool posted : {true, false}) {
    for (const uint64_t offset : {uint64_t{1}, uint64_t{1} << 40, UINT64_MAX - 3}) {
      std::vector<std::byte> into(64);
      Outcome received;
      Network network({.size = 2, .cables = {{0, 1}}}, random);
      Channel channel(network, 1);
      const auto receive = [&](Endpoint& endpoint) {
        endpoint.receive({1, 0, 0}, into.data(), into.size(), 0, received.done());
      };
      if (posted) network.on(0, receive);
      FrameHeader header;
      header.source = 1;
      header.target = 0;
      header.message_bytes = into.size();
      header.offset = offset;
      header.payload_bytes = 64;
      std::vector<std::byte> bytes(sizeof header + 64);
      std::memcpy(bytes.data(), &header, sizeof header);
      network.write(0, bytes.data(), bytes.size());
      const std::string why = channel.failure(0);
      EXPECT_NE(why.find("does not fit"), std::string::npos) << why;
    }
  }
}

TEST(Failures, AFrameOfRanksThatThereAreNotOrALeaveInThisRanksNameFailsTheLink) {
  TestRandom random(219);
  const auto failureOf = [&](FrameType type, uint16_t source, uint16_t target) {
    Network network({.size = 2, .cables = {{0, 1}}}, random);
    Channel channel(network, 1);
    FrameHeader header;
    header.type = type;
    header.source = source;
    header.target = target;
    network.write(0, &header, sizeof header);
    return channel.failure(0);
  };
  const std::string from = failureOf(FrameType::kData, 2, 0);
  EXPECT_NE(from.find("from rank 2, which is not in 0..1"), std::string::npos) << from;
  const std::string to = failureOf(FrameType::kAck, 1, 7);
  EXPECT_NE(to.find("for rank 7, which is not in 0..1"), std::string::npos) << to;
  const std::string leave = failureOf(FrameType::kLeave, 0, 0);
  EXPECT_NE(leave.find("that this rank, 0, has left"), std::string::npos) << leave;
  const std::string self = failureOf(FrameType::kData, 0, 0);
  EXPECT_NE(self.find("from this rank to itself"), std::string::npos) << self;
}

TEST(Failures, ARankThatSendsWhatNoReceiveIsPostedForWithoutAskingFailsAndLittleIsKept) {
  TestRandom random(220);
  Network network({.size = 2, .cables = {{0, 1}}}, random);
  Channel channel(network, 1);
  FrameHeader header;
  header.source = 1;
  header.target = 0;
  header.channel = 2;
  header.message_bytes = header.payload_bytes = 64 << 10;
  std::vector<std::byte> bytes(sizeof header + header.payload_bytes);
  const size_t limit = 2 * FlowLimits::of(2, 4 << 20, EndpointConfig{}.memory_bytes).early_peer;
  for (size_t sent = 0; sent <= limit; sent += bytes.size()) {
    std::memcpy(bytes.data(), &header, sizeof header);
    network.write(0, bytes.data(), bytes.size());
    ++header.message;
  }
  const std::string why = channel.failure(0);
  EXPECT_NE(why.find("bytes that no receive was posted for, without asking"), std::string::npos)
      << why;
  EXPECT_LE(network.at(0)->heldMemory().early.peak, limit);
}

// ---- closing a channel with data on its way ----------------------------------------------------

// The address sanitizer watches the memory of both ends, which is gone right after closing.
class Closing : public testing::TestWithParam<Moved> {};

INSTANTIATE_TEST_SUITE_P(AllKinds, Closing,
                         testing::Values(Moved::kPlain, Moved::kByThreads, Moved::kWithoutCopy,
                                         Moved::kByThreadsWithoutCopy),
                         [](const auto& moved) { return nameOf(moved.param); });

TEST_P(Closing, HalfWrittenAndHalfReadMessagesLeaveTheirMemoryAlone) {
  TestRandom random(213);
  constexpr size_t kBytes = 3 << 20;
  const bool plain = GetParam() == Moved::kPlain;
  for (unsigned repeat = 0; repeat < (plain ? 8 : 4); ++repeat) {
    Traffic other;
    other.addRandom(3, 20, 300000, random);
    Network network({.size = 3,
                     .cables = plain ? ofRandomKinds(lineOf(3), random) : lineOf(3),
                     .window_bytes = repeat % 2 ? 64u << 10 : 4u << 20,
                     .socket_bytes = 4096,
                     .moved = GetParam()},
                    random);
    auto from = std::make_unique<std::vector<std::byte>>(kBytes);
    auto into = std::make_unique<std::vector<std::byte>>(kBytes);
    std::atomic<bool> closed[3] = {};
    const auto doneOn = [&](int rank) {
      return [&closed, rank](std::exception_ptr) { EXPECT_FALSE(closed[rank]); };
    };
    network.on(2, [&](Endpoint& endpoint) {
      endpoint.receive({0, 2, 0}, into->data(), kBytes, 0, doneOn(2));
    });
    network.on(0, [&](Endpoint& endpoint) {
      endpoint.send({2, 2, 0}, from->data(), kBytes, 0, doneOn(0));
    });
    other.start(network, random);
    // Wait for some of it, so that both ends are in the middle.
    while (network.at(2)->traffic()[0].received_bytes < 70000u * (repeat % 3)) {
      std::this_thread::yield();
    }
    const int first = repeat % 4 < 2 ? 0 : 2;
    for (const int rank : {first, 2 - first}) {
      network.on(rank, [&](Endpoint& endpoint) {
        endpoint.closeChannel(2, "closed");
        closed[rank] = true;
      });
      (rank == 0 ? from : into).reset();
    }
    ASSERT_NO_FATAL_FAILURE(other.check());  // the other channels do not notice
    EXPECT_EQ(network.leaveAll(kWaitLimit), std::vector<std::string>(3, ""));
  }
}

}  // namespace
}  // namespace topoopt
