// The shutdown handshake of ranks: concurrently, with traffic still on its way, or too early.

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <thread>
#include <utility>

#include "support/network.h"
#include "support/traffic.h"

namespace topoopt {
namespace {

void expectGoodOrder(const std::vector<std::string>& results) {
  for (size_t rank = 0; rank < results.size(); ++rank) EXPECT_EQ(results[rank], "") << rank;
}

void waitUntil(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kWaitLimit;
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), end);
    std::this_thread::yield();
  }
}

TEST(Leaving, OfIdleRanksEndsInGoodOrder) {
  TestRandom random(301);
  for (const auto& [size, cables] :
       std::vector<std::pair<int, std::vector<Cable>>>{{1, {}},
                                                       {2, lineOf(2)},
                                                       {5, ringOf(5)},
                                                       {5, simplexRingOf(5)},
                                                       {4, lineOf(4)},
                                                       {5, starOf(5)},
                                                       {5, completeOf(5)}}) {
    Network network({.size = size, .cables = cables}, random);
    expectGoodOrder(network.leaveAll(kNoHurry));
  }
}

// Each rank leaves as soon as its own sends and receives are over, whatever it still relays.
TEST(Leaving, RightAfterRelayedTrafficLosesNothing) {
  TestRandom random(302);
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (const auto& [size, cables] : std::vector<std::pair<int, std::vector<Cable>>>{
             {6, ringOf(6)}, {5, simplexRingOf(5)}, {5, lineOf(5)}, {5, starOf(5)}}) {
      Traffic traffic;
      for (int i = 0; i < 30; ++i) {
        const int source = static_cast<int>(random.between(0, static_cast<size_t>(size) - 1));
        const int far = (source + 1 + size / 2) % size;
        if (far != source)
          traffic.add(source, far, 0, random.between(0, 2), random.size(200000), random);
      }
      Network network({.size = size,
                       .cables = ofRandomKinds(cables, random),
                       .window_bytes = 64 << 10,
                       .routes = 2,
                       .socket_bytes = 4096},
                      random);
      Channel channel(network, 0);  // fails when a rank leaves too early
      traffic.start(network, random);
      std::vector<std::string> results(static_cast<size_t>(size));
      std::vector<std::thread> threads;
      for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back([&, rank] {
          traffic.waitFor(rank);
          results[rank] = network.at(rank)->leave(kNoHurry);
        });
      }
      for (std::thread& thread : threads) thread.join();
      expectGoodOrder(results);
    }
  }
}

// A send is over when the socket has it. Then most of it is still on its way, and the leave could
// overtake it; or the receiver only wants it when the sender has long been waiting to leave.
TEST(Leaving, WaitsUntilWhatWasSentIsReceived) {
  TestRandom random(303);
  for (const bool late : {false, true}) {
    Traffic traffic;
    for (int i = 0; i < 10; ++i) traffic.add(0, 2, 0, 0, 200000, random);
    Network network({.size = 3, .cables = lineOf(3), .socket_bytes = 4096}, random);
    Channel channel(network, 0);  // fails when a rank leaves too early
    if (!late) traffic.startReceives(network, random);
    traffic.startSends(network, random);
    traffic.waitForSends(0);
    std::vector<std::string> results(3);
    std::vector<std::thread> threads;
    network.on(0, [](Endpoint& endpoint) { endpoint.closeChannel(0, "closed"); });
    for (const int rank : {0, 1}) {
      threads.emplace_back([&, rank] { results[rank] = network.at(rank)->leave(kNoHurry); });
    }
    if (late) traffic.startReceives(network, random);
    traffic.waitFor(2);
    results[2] = network.at(2)->leave(kNoHurry);
    for (std::thread& thread : threads) thread.join();
    expectGoodOrder(results);
  }
}

TEST(Leaving, FailsThoseWhoStillWaitForTheRankThatLeft) {
  TestRandom random(304);
  for (const bool any : {false, true}) {
    std::vector<std::byte> into(100);
    Outcome never;
    Network network({.size = 4, .cables = ringOf(4)}, random);
    Channel channel(network, 3);
    network.on(2, [&](Endpoint& endpoint) {
      if (any) return endpoint.receiveAny({0}, 3, 0, into.data(), 100, 0, [](int) {}, never.done());
      endpoint.receive({0, 3, 0}, into.data(), 100, 0, never.done());
    });
    std::vector<std::string> results(4);
    std::vector<std::thread> threads;
    threads.emplace_back([&] { results[0] = network.at(0)->leave(kNoHurry); });
    EXPECT_EQ(channel.failure(2), "PeerLostError: rank 0 has left the job");
    for (const int rank : {1, 3}) {
      EXPECT_EQ(channel.failure(rank), "PeerLostError: rank 2 failed: rank 0 has left the job");
    }
    for (const int rank : {1, 2, 3}) {
      threads.emplace_back([&, rank] { results[rank] = network.at(rank)->leave(kNoHurry); });
    }
    for (std::thread& thread : threads) thread.join();
    expectGoodOrder(results);
  }
}

TEST(Leaving, WhatIsAskedOfARankThatLeftFailsAtOnce) {
  TestRandom random(305);
  std::byte byte{};
  Outcome outcomes[3];
  Network network({.size = 3, .cables = lineOf(3)}, random);
  Channel channel(network, 1);
  std::byte unused{};
  Outcome waits;
  network.on(2,
             [&](Endpoint& endpoint) { endpoint.receive({0, 1, 0}, &unused, 1, 0, waits.done()); });
  std::string result;
  std::thread leaving([&] { result = network.at(0)->leave(kNoHurry); });
  EXPECT_NE(channel.failure(2), "");  // by now rank 2 knows
  network.on(2, [&](Endpoint& endpoint) {
    endpoint.send({0, 2, 0}, &byte, 1, 0, outcomes[0].done());
    endpoint.receive({0, 2, 0}, &byte, 1, 0, outcomes[1].done());
    endpoint.receiveAny({0}, 2, 0, &byte, 1, 0, [](int) {}, outcomes[2].done());
  });
  for (Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.wait("an operation with a rank that left"),
              "PeerLostError: rank 0 has left the job");
  }
  std::string others[2];
  std::thread middle([&] { others[0] = network.at(1)->leave(kNoHurry); });
  others[1] = network.at(2)->leave(kNoHurry);
  middle.join();
  leaving.join();
  EXPECT_EQ(result + others[0] + others[1], "");
}

// Dropped bytes never come: the sender must not wait until they are received, and a rank that waits
// for them must be notified.
TEST(Leaving, DoesNotWaitForTheRestOfASendThatWasGivenUp) {
  TestRandom random(306);
  for (const bool posted : {true, false}) {
    constexpr size_t kBytes = 2 << 20;
    std::vector<std::byte> from(kBytes);
    std::vector<std::byte> into(kBytes);
    Network network({.size = 2, .cables = lineOf(2), .socket_bytes = 4096}, random);
    Channel channel(network, 1);
    Channel other(network, 2);
    std::byte unused{};
    if (posted) {
      network.on(1, [&](Endpoint& endpoint) {
        endpoint.receive({0, 1, 0}, into.data(), kBytes, 0, [](std::exception_ptr) {});
      });
    }
    network.on(1, [&](Endpoint&) {  // cannot read meanwhile, so the socket does not take it all
      network.on(0, [&](Endpoint& endpoint) {
        endpoint.send({1, 1, 0}, from.data(), kBytes, 0, [](std::exception_ptr) {});
      });
      network.on(0, [&](Endpoint& endpoint) { endpoint.closeChannel(1, "closed"); });
    });
    std::string results[2];
    std::thread sender([&] { results[0] = network.at(0)->leave(kNoHurry); });
    // Its first acknowledgement says that rank 1 has got all that rank 0 did send.
    waitUntil([&] { return network.at(1)->traffic()[0].overhead_bytes > 0; });
    if (posted) {
      EXPECT_EQ(channel.failure(1), "PeerLostError: rank 0 has left the job");
    } else {
      // Rank 0 waits while another rank may still need it.
      network.on(1, [&](Endpoint& endpoint) {
        endpoint.receive({0, 2, 0}, &unused, 1, 0, [](std::exception_ptr) {});
        endpoint.closeChannel(1, "closed");
      });
      EXPECT_EQ(other.failure(1), "PeerLostError: rank 0 has left the job");
    }
    results[1] = network.at(1)->leave(kNoHurry);
    sender.join();
    EXPECT_EQ(results[0] + results[1], "");
  }
}

// Rank 0 of two; the test itself plays rank 1, on the other end of the cable.
class AgainstBareSocket : public testing::Test {
 protected:
  AgainstBareSocket() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    EndpointConfig config;
    config.size = 2;
    config.links = {{{0, 0, 1, 0}, fds[0], true}};
    endpoint_ = std::make_unique<Endpoint>(std::move(config));
    peer_ = fds[1];
  }
  ~AgainstBareSocket() override { closePeer(); }

  void closePeer() {
    if (peer_ >= 0) ::close(std::exchange(peer_, -1));
  }

  bool write(FrameType type, const std::string& payload = "") {
    FrameHeader header;
    header.type = type;
    header.source = 1;
    header.channel = type == FrameType::kData ? 0 : kAllChannels;
    header.message_bytes = header.payload_bytes = static_cast<uint32_t>(payload.size());
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    bytes += payload;
    return ::send(peer_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // Until the endpoint ends its side.
  void readToEnd() {
    std::byte buffer[4096];
    while (recv(peer_, buffer, sizeof buffer, 0) > 0) {
    }
  }

  std::unique_ptr<Endpoint> endpoint_;
  int peer_;
};

// An answer would find its side of the link ended already; the link must not be lost by that, since
// the other side may still have something to say.
TEST_F(AgainstBareSocket, WhatComesAfterTheLeaveIsReadButNotAnswered) {
  std::string result;
  std::thread leaving([&] { result = endpoint_->leave(kNoHurry); });
  EXPECT_TRUE(write(FrameType::kLeave));
  readToEnd();
  EXPECT_TRUE(write(FrameType::kAckRequest));
  EXPECT_TRUE(write(FrameType::kData, "x"));
  waitUntil([&] { return endpoint_->traffic()[0].received_bytes == 1; });
  EXPECT_TRUE(write(FrameType::kAckRequest));  // it is still open
  closePeer();
  leaving.join();
  EXPECT_EQ(result, "");
}

// Writing finds the socket closed before reading does; the reason lies there unread.
TEST_F(AgainstBareSocket, WhyAPeerClosedIsReadBeforeTheLinkIsLost) {
  Outcome failure;
  const std::byte byte{};
  endpoint_->reactor().run([&] {
    endpoint_->openChannel(1, {[&, done = failure.done()](std::exception_ptr error) {
                             endpoint_->failChannel(1, "", false);
                             done(error);
                           }});
    EXPECT_TRUE(write(FrameType::kFailure, "the disk is full"));
    closePeer();
    endpoint_->send({1, 1, 0}, &byte, 1, 0, [](std::exception_ptr) {});
  });
  EXPECT_EQ(failure.wait("the failure"), "PeerLostError: rank 1 failed: the disk is full");
}

TEST(Leaving, ATimeLimitEndsTheWaitForARankThatStays) {
  TestRandom random(307);
  Network network({.size = 2, .cables = lineOf(2)}, random);
  const std::string result = network.at(0)->leave(std::chrono::milliseconds(50));
  EXPECT_EQ(result, "other ranks had not left after the time limit");
}

TEST(Leaving, ALostLinkEndsTheWaitWithItsName) {
  TestRandom random(308);
  Network network({.size = 3, .cables = lineOf(3)}, random);
  std::string results[2];
  std::thread first([&] { results[0] = network.at(0)->leave(kNoHurry); });
  std::thread second([&] { results[1] = network.at(1)->leave(kNoHurry); });
  network.cut(1);
  first.join();
  second.join();
  for (const std::string& result : results) {
    EXPECT_NE(result.find("lost the link"), std::string::npos) << result;
  }
}

// One rank stops without leave, as a process that is killed does.
TEST(Leaving, ARankThatStopsInsteadFailsTheOthers) {
  TestRandom random(309);
  Network network({.size = 4, .cables = ringOf(4)}, random);
  Channel channel(network, 1);
  network.at(1)->stop();
  for (const int rank : {0, 2, 3}) {
    const std::string why = channel.failure(rank);
    EXPECT_NE(why.find("lost the link"), std::string::npos) << why;
  }
  for (const int rank : {0, 2, 3}) EXPECT_NE(network.at(rank)->leave(kNoHurry), "");
}

}  // namespace
}  // namespace topoopt
