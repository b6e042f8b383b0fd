// Endpoints on small networks: messages, flow control and relays.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "support/network.h"
#include "support/traffic.h"
#include "transport/endpoint/endpoint.h"
#include "transport/reactor.h"

namespace topoopt {
namespace {

// ---- the reactor -------------------------------------------------------------------------------

TEST(Reactor, FunctionsOfAThreadRunInTheirOrderAndNoneIsLost) {
  for (int repeat = 0; repeat < 10; ++repeat) {
    std::vector<std::vector<int>> seen(4);  // written by the reactor alone, then read after stop()
    {
      Reactor reactor;
      std::vector<std::thread> threads;
      for (size_t thread = 0; thread < seen.size(); ++thread) {
        threads.emplace_back([&, thread] {
          for (int i = 0; i < 200; ++i) {
            reactor.post([&, thread, i] {
              seen[thread].push_back(2 * i);
              reactor.post([&, thread, i] { seen[thread].push_back(2 * i + 1); });
            });
            if (i % 50 == 0) reactor.run([] {});
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      reactor.stop();
    }
    for (const auto& numbers : seen) {
      EXPECT_EQ(numbers.size(), 400u);
      std::vector<int> even;
      std::copy_if(numbers.begin(), numbers.end(), std::back_inserter(even),
                   [](int number) { return number % 2 == 0; });
      EXPECT_TRUE(std::is_sorted(even.begin(), even.end()));
    }
  }
}

TEST(Reactor, WhatIsPostedWhileItStopsStillRuns) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::atomic<int> ran = 0;
    std::atomic<bool> started = false;
    Reactor reactor;
    std::thread poster([&] {
      started = true;
      for (int i = 0; i < 100; ++i) reactor.post([&] { ++ran; });
    });
    while (!started) std::this_thread::yield();
    reactor.stop();
    poster.join();
    EXPECT_EQ(ran, 100);
  }
}

TEST(Reactor, TimersRunInTheOrderOfTheirTimesUnlessCancelled) {
  Reactor reactor;
  std::vector<int> order;
  std::promise<void> last;
  reactor.run([&] {
    const auto now = Reactor::Clock::now();
    reactor.after(std::chrono::milliseconds::max(), [&] { order.push_back(4); });
    reactor.after(std::chrono::milliseconds(30), [&] { last.set_value(); });
    reactor.at(now + std::chrono::milliseconds(2), [&] { order.push_back(2); });
    const auto cancelled =
        reactor.at(now + std::chrono::milliseconds(3), [&] { order.push_back(3); });
    reactor.at(now + std::chrono::milliseconds(1), [&, cancelled] {
      order.push_back(1);
      reactor.cancel(cancelled);
    });
  });
  ASSERT_EQ(last.get_future().wait_for(kWaitLimit), std::future_status::ready);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

// ---- messages ----------------------------------------------------------------------------------

TEST(Endpoints, MessagesOfAnySizeReachEveryRankOverAnyRoutes) {
  TestRandom random(201);
  for (const Shape& shape : shapes()) {
    for (const size_t window : {4 << 10, 64 << 10, 4 << 20}) {
      SCOPED_TRACE(std::string(shape.name) + ", window " + std::to_string(window));
      Traffic traffic;
      traffic.addRandom(shape.size, partOf(80), 1 << 20, random);
      Network network({.size = shape.size,
                       .cables = shape.cables,
                       .window_bytes = window,
                       .routes = random.between(1, 3),
                       .socket_bytes = random.chance(0.5) ? 4096 : 0},
                      random);
      traffic.start(network, random);
      ASSERT_NO_FATAL_FAILURE(traffic.check());
    }
  }
}

TEST(Endpoints, FastLinksCarryAnyMixOfTrafficWhateverMovesTheirBytes) {
  TestRandom random(216);
  for (const Moved moved : {Moved::kByThreads, Moved::kWithoutCopy, Moved::kByThreadsWithoutCopy}) {
    for (const auto& [shape, window] :
         {std::pair{Shape{"ring of 4", ringOf(4), 4}, size_t{4} << 20},
          std::pair{Shape{"line of 4", lineOf(4), 4}, size_t{100} << 10}}) {
      SCOPED_TRACE(std::string(nameOf(moved)) + ", " + shape.name);
      Traffic traffic;
      traffic.addRandom(shape.size, partOf(80), 3 << 20, random);
      Network network({.size = shape.size,
                       .cables = shape.cables,
                       .window_bytes = window,
                       .routes = 2,
                       .moved = moved},
                      random);
      traffic.start(network, random);
      ASSERT_NO_FATAL_FAILURE(traffic.check());
      EXPECT_EQ(network.leaveAll(kWaitLimit),
                std::vector<std::string>(static_cast<size_t>(shape.size), ""));
    }
  }
}

TEST(Endpoints, TinyWindowsStillMoveMessages) {
  TestRandom random(202);
  for (const size_t window : {1, 57, 1000}) {
    Traffic traffic;
    traffic.addRandom(4, partOf(60), 20000, random);
    Network network({.size = 4, .cables = ringOf(4), .window_bytes = window, .routes = 2}, random);
    traffic.start(network, random);
    ASSERT_NO_FATAL_FAILURE(traffic.check());
  }
}

// Ranks with links of several kinds, and routes over all of them.
TEST(Endpoints, LinksOfAllKindsCarryAnyMixOfTraffic) {
  TestRandom random(215);
  for (const Shape& shape : shapes()) {
    for (const size_t window : {1 << 10, 100 << 10, 4 << 20}) {
      SCOPED_TRACE(std::string(shape.name) + ", window " + std::to_string(window));
      Traffic traffic;
      traffic.addRandom(shape.size, partOf(80), 1 << 20, random);
      Network network({.size = shape.size,
                       .cables = ofRandomKinds(shape.cables, random),
                       .window_bytes = window,
                       .routes = random.between(1, 4),
                       .socket_bytes = random.chance(0.5) ? 4096 : 0},
                      random);
      traffic.start(network, random);
      ASSERT_NO_FATAL_FAILURE(traffic.check());
      EXPECT_EQ(network.leaveAll(kWaitLimit),
                std::vector<std::string>(static_cast<size_t>(shape.size), ""));
    }
  }
}

// All of them are in what the link reads at once, and nothing comes after them.
TEST(Endpoints, ManySmallMessagesThatArriveTogetherAreAllTaken) {
  TestRandom random(214);
  Traffic traffic;
  for (int i = 0; i < 200; ++i) traffic.add(0, 1, 0, 0, 1 + i % 3, random);
  Network network({.size = 2, .cables = lineOf(2)}, random);
  traffic.startReceives(network, random);
  network.on(1, [&](Endpoint&) {  // which cannot read meanwhile
    traffic.startSends(network, random);
    traffic.waitForSends(0);
  });
  ASSERT_NO_FATAL_FAILURE(traffic.check());
}

// ---- relays under pressure ---------------------------------------------------------------------

// Everybody floods the far side through relays while receives are posted late: the relays may hold
// one window per flow that crosses them, and no more.
TEST(Endpoints, RelaysHoldNoMoreThanAWindowPerFlow) {
  TestRandom random(203);
  constexpr size_t kWindow = 64 << 10;
  constexpr size_t kStreams = 3;
  for (const Shape& shape : {Shape{"star", starOf(6), 6}, Shape{"ring", ringOf(6), 6},
                             Shape{"line", lineOf(5), 5}, Shape{"simplex", simplexRingOf(5), 5}}) {
    SCOPED_TRACE(shape.name);
    Traffic traffic;
    for (int source = 0; source < shape.size; ++source) {
      for (uint64_t stream = 0; stream < kStreams; ++stream) {
        const int target = (source + shape.size / 2) % shape.size;
        for (int i = 0; i < 3; ++i) traffic.add(source, target, 0, stream, 300000, random);
      }
    }
    Network network({.size = shape.size,
                     .cables = ofRandomKinds(shape.cables, random),
                     .window_bytes = kWindow,
                     .routes = 2,
                     .socket_bytes = 4096},
                    random);
    traffic.startSends(network, random);
    traffic.startReceives(network, random);
    ASSERT_NO_FATAL_FAILURE(traffic.check());
    // Pairs that have a route over a link, but do not start there.
    std::map<std::pair<int, int>, std::set<std::pair<int, int>>> crossing;
    for (const plan::Route& route : network.routes()) {
      const std::pair<int, int> pair{route.servers.front(), route.servers.back()};
      if ((pair.first + shape.size / 2) % shape.size != pair.second) continue;
      for (size_t i = 1; i + 1 < route.servers.size(); ++i) {
        crossing[{route.servers[i], route.servers[i + 1]}].insert(pair);
      }
    }
    uint64_t relayed = 0;
    for (int rank = 0; rank < shape.size; ++rank) {
      for (const LinkTraffic& link : network.at(rank)->traffic()) {
        if (!link.sends) continue;
        relayed += link.relayed_bytes;
        const size_t flows = kStreams * crossing[{rank, link.target}].size();
        EXPECT_LE(link.relay_peak_bytes, flows * (kWindow + kRelayedPayloadBytes));
      }
    }
    EXPECT_GT(relayed, 0u);
  }
}

TEST(Endpoints, CountEveryByteOnEveryHop) {
  TestRandom random(204);
  Traffic traffic;
  Network network({.size = 4, .cables = lineOf(4), .routes = 1}, random);
  traffic.add(0, 3, 0, 0, 100000, random);
  traffic.add(1, 2, 0, 0, 7, random);
  traffic.start(network, random);
  traffic.check();
  uint64_t sent[3] = {};
  uint64_t relayed[3] = {};
  for (int rank = 0; rank < 4; ++rank) {
    for (const LinkTraffic& link : network.at(rank)->traffic()) {
      if (link.target < link.source) {
        EXPECT_EQ(link.sent_bytes, 0u);
        continue;
      }
      sent[link.source] += link.sent_bytes;
      relayed[link.source] += link.relayed_bytes;
    }
  }
  EXPECT_EQ(sent[0], 100000u);
  EXPECT_EQ(sent[1], 100007u);
  EXPECT_EQ(sent[2], 100000u);
  EXPECT_EQ(relayed[0], 0u);
  EXPECT_EQ(relayed[1], 100000u);
  EXPECT_EQ(relayed[2], 100000u);
}

// ---- receiving from any rank -------------------------------------------------------------------

TEST(Endpoints, ReceiveAnyTakesEachMessageOnceWhateverTheOrder) {
  TestRandom random(205);
  for (int repeat = 0; repeat < 6; ++repeat) {
    constexpr size_t kBytes = 100000;  // two frames, which may take different routes
    constexpr int kPerSource = 4;
    struct Arrival {
      std::vector<std::byte> data = std::vector<std::byte>(kBytes);
      int from = -1;
      Outcome outcome;
    };
    std::map<int, std::vector<std::vector<std::byte>>> sent;
    std::deque<Arrival> arrivals(4 * kPerSource);
    std::deque<Outcome> sends;
    Network network({.size = 5, .cables = completeOf(5), .window_bytes = 64 << 10, .routes = 3},
                    random);
    std::vector<std::function<void()>> steps;
    for (int source = 1; source < 5; ++source) {
      for (int i = 0; i < kPerSource; ++i) sent[source].push_back(randomBytes(kBytes, random));
      for (const auto& data : sent[source]) {
        steps.push_back([&, source, done = sends.emplace_back().done()] {
          network.on(source, [&](Endpoint& endpoint) {
            endpoint.send({0, 0, 9}, data.data(), data.size(), 1, done);
          });
        });
      }
    }
    for (Arrival& arrival : arrivals) {
      steps.push_back([&] {
        network.on(0, [&](Endpoint& endpoint) {
          endpoint.receiveAny(
              {1, 2, 3, 4}, 0, 9, arrival.data.data(), kBytes, 1,
              [&](int from) { arrival.from = from; }, arrival.outcome.done());
        });
      });
    }
    // Sends of a rank keep their order, and so do the receives (source 4 here).
    std::vector<size_t> sources;
    for (size_t i = 0; i < steps.size(); ++i)
      sources.push_back(std::min<size_t>(i / kPerSource, 4));
    std::shuffle(sources.begin(), sources.end(), random.engine());
    std::map<size_t, size_t> next;
    for (const size_t source : sources) steps[source * kPerSource + next[source]++]();
    std::map<int, size_t> count;
    for (Arrival& arrival : arrivals) {
      ASSERT_EQ(arrival.outcome.wait("receive from any rank"), "");
      ASSERT_TRUE(arrival.from >= 1 && arrival.from <= 4);
    }
    for (Arrival& arrival : arrivals) {
      const size_t index = count[arrival.from]++;
      ASSERT_LT(index, sent[arrival.from].size());
      EXPECT_TRUE(sameBytes(arrival.data, sent[arrival.from][index]));
    }
    for (Outcome& outcome : sends) EXPECT_EQ(outcome.wait("send"), "");
  }
}

// A frame of the second message is here first; what comes later has to wake both receives.
TEST(Endpoints, ReceiveAnyIsNotForgottenWhenMessagesOvertakeEachOther) {
  TestRandom random(206);
  Network network({.size = 2, .cables = {{0, 1}}}, random);
  const auto frame = [](uint64_t message, uint8_t value) {
    FrameHeader header;
    header.source = 1;
    header.target = 0;
    header.channel = 5;
    header.message = message;
    header.message_bytes = 1;
    header.payload_bytes = 1;
    std::vector<std::byte> bytes(sizeof header + 1, std::byte{value});
    std::memcpy(bytes.data(), &header, sizeof header);
    return bytes;
  };
  std::byte values[3] = {};
  Outcome outcomes[3];
  network.on(0, [&](Endpoint& endpoint) {
    for (int i = 0; i < 3; ++i) {
      endpoint.receiveAny({1}, 5, 0, &values[i], 1, 0, [](int) {}, outcomes[i].done());
    }
  });
  for (const uint64_t message : {2, 1, 0}) {
    const auto bytes = frame(message, static_cast<uint8_t>(message + 10));
    network.write(0, bytes.data(), bytes.size());
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(outcomes[i].wait("receive number " + std::to_string(i)), "");
    EXPECT_EQ(values[i], std::byte(i + 10));
  }
}

// ---- disagreement ------------------------------------------------------------------------------

TEST(Endpoints, ADisagreementIsAMismatchOnWhicheverEndComesSecond) {
  TestRandom random(207);
  std::vector<std::byte> from(200000);
  std::vector<std::byte> into(200000);
  for (const bool receive_first : {true, false}) {
    for (const bool size_differs : {true, false}) {
      Outcome sent;
      Outcome received;
      Network network({.size = 3, .cables = lineOf(3)}, random);
      const auto send = [&] {
        network.on(0, [&](Endpoint& endpoint) {
          endpoint.send({2, 0, 0}, from.data(), from.size(), 1, sent.done());
        });
      };
      const auto receive = [&] {
        network.on(2, [&](Endpoint& endpoint) {
          endpoint.receive({0, 0, 0}, into.data(), into.size() - (size_differs ? 100000 : 0),
                           size_differs ? 1 : 2, received.done());
        });
      };
      receive_first ? receive() : send();
      receive_first ? send() : receive();
      EXPECT_EQ(sent.wait("send"), "");
      const std::string why = received.wait("receive");
      EXPECT_TRUE(why.starts_with("MismatchError: rank 0 and rank 2 disagree")) << why;
      const bool named = why.find("200000") != std::string::npos;
      EXPECT_EQ(named, size_differs) << why;
    }
  }
}

// The relay is far ahead of the ranks whose messages pass through it, or far behind.
TEST(Endpoints, CountBytesForTheIterationInWhichTheirSourceSentThem) {
  for (const int ahead : {0, 1, 40}) {
    SCOPED_TRACE(ahead);
    constexpr size_t kIterations = 6;
    TestRandom random(219);
    std::vector<Traffic> traffic(kIterations);
    Network network({.size = 3, .cables = lineOf(3), .routes = 1}, random);
    for (int i = 0; i < ahead; ++i) network.at(1)->beginIteration();
    std::vector<uint64_t> sizes;
    for (size_t i = 0; i < kIterations; ++i) {
      sizes.push_back(100'000 * i + 7);
      traffic[i].add(0, 2, 0, i, sizes[i], random);
      traffic[i].startSends(network, random);
      network.at(0)->reactor().run([] {});  // until the endpoint has them
      for (int rank : {0, 2}) EXPECT_EQ(network.at(rank)->beginIteration(), i + 1);
    }
    for (Traffic& part : traffic) part.startReceives(network, random);
    for (Traffic& part : traffic) part.check();
    EXPECT_EQ(network.at(0)->ownIterationBytes(0, kIterations), sizes);
    EXPECT_EQ(network.at(1)->ownIterationBytes(0, 60), std::vector<uint64_t>(60, 0));
    for (int rank : {0, 1}) {
      const std::vector<LinkTraffic> links = network.at(rank)->traffic();
      for (size_t link = 0; link < links.size(); ++link) {
        if (links[link].target < rank) continue;
        EXPECT_EQ(network.at(rank)->iterationBytes(0, kIterations)[link], sizes);
        EXPECT_EQ(network.at(rank)->iterationBytes(4, 4)[link],
                  (std::vector<uint64_t>{sizes[4], sizes[5], 0, 0}));
      }
    }
  }
}

TEST(IterationBytes, CountInAnyOrderPastTheRangeOfTheirNumberAndForgetTheOldest) {
  IterationBytes counted;
  constexpr uint64_t kLast = 70'000;
  for (uint64_t i = 0; i < kLast; i += 2) {
    counted.add(static_cast<uint16_t>(i + 1), 10);
    counted.add(static_cast<uint16_t>(i), static_cast<uint32_t>(i % 7));
  }
  const uint64_t first = kLast - IterationBytes::kMost;
  for (uint64_t i = first; i < kLast; i += 997) {
    EXPECT_EQ(counted.from(i, 1)[0], i % 2 == 1 ? 10u : i % 7) << i;
  }
  EXPECT_EQ(counted.from(first - 2, 2), (std::vector<uint64_t>{0, 0}));
  counted.add(static_cast<uint16_t>(first - 1), 10);  // too late to be counted
  EXPECT_EQ(counted.from(first - 1, 1)[0], 0u);
}

TEST(Endpoints, AWindowOfNothingIsRefused) {
  EndpointConfig config;
  config.window_bytes = 0;
  EXPECT_THROW(Endpoint{config}, std::invalid_argument);
}

TEST(Endpoints, CannotBeClosedOnTheirOwnReactorThread) {
  TestRandom random(216);
  Network network({.size = 2, .cables = lineOf(2)}, random);
  network.on(0, [](Endpoint& endpoint) { EXPECT_THROW(endpoint.stop(), std::logic_error); });
  EXPECT_EQ(network.leaveAll(kWaitLimit), std::vector<std::string>(2, ""));
}

TEST(Endpoints, ARouteOverALinkThatIsNotThereIsRefused) {
  EndpointConfig config;
  config.size = 3;
  config.routes = {{{0, 1, 2}, 1.0}};
  EXPECT_THROW(Endpoint{config}, std::invalid_argument);
}

}  // namespace
}  // namespace topoopt
