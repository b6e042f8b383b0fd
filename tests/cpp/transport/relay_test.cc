// Relays under adversarial mixes: for every order in which ranks receive their messages, no
// relay holds more than one window per flow that crosses it, and everything arrives; a source that
// keeps to no limit fails.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "support/network.h"
#include "support/traffic.h"

namespace topoopt {
namespace {

constexpr uint32_t kChannel = 0;
constexpr uint32_t kFingerprint = 9;

// Every rank sends a message to every other at once, but takes them one after the other: the next
// receive is only posted when the one before is complete.
class OneAtATime {
 public:
  OneAtATime(int size, size_t bytes, TestRandom& random) : size_(size) {
    for (int source = 0; source < size; ++source) {
      for (int target = 0; target < size; ++target) {
        if (source == target) continue;
        Message& message = messages_[{source, target}];
        message.data = randomBytes(bytes, random);
        message.arrived.resize(bytes);
      }
    }
  }

  // `order[rank]` lists the sources in the order in which the rank takes their messages.
  void run(Network& network, const std::vector<std::vector<int>>& order) {
    for (auto& [pair, message] : messages_) {
      const FlowId flow{pair.second, kChannel, 0};
      network.on(pair.first, [&, done = message.sent.done()](Endpoint& endpoint) {
        endpoint.send(flow, message.data.data(), message.data.size(), kFingerprint, done);
      });
    }
    for (int rank = 0; rank < size_; ++rank) {
      network.on(rank, [&](Endpoint& endpoint) { take(endpoint, order[rank], 0); });
    }
    for (auto& [pair, message] : messages_) {
      const std::string what = std::to_string(pair.first) + " to " + std::to_string(pair.second);
      ASSERT_EQ(message.sent.wait("sending from " + what), "");
      ASSERT_EQ(message.received.wait("receiving from " + what), "");
      ASSERT_TRUE(sameBytes(message.arrived, message.data)) << "wrong bytes from " << what;
    }
  }

 private:
  struct Message {
    std::vector<std::byte> data;
    std::vector<std::byte> arrived;
    Outcome sent{};
    Outcome received{};
  };

  void take(Endpoint& endpoint, const std::vector<int>& sources, size_t index) {
    if (index == sources.size()) return;
    Message& message = messages_.at({sources[index], endpoint.rank()});
    endpoint.receive({sources[index], kChannel, 0}, message.arrived.data(), message.arrived.size(),
                     kFingerprint,
                     [this, &endpoint, &sources, index,
                      done = message.received.done()](std::exception_ptr error) {
                       endpoint.reactor().post([this, &endpoint, &sources, index, done, error] {
                         if (!error) take(endpoint, sources, index + 1);
                         done(error);
                       });
                     });
  }

  const int size_;
  std::map<std::pair<int, int>, Message> messages_;
};

std::vector<int> othersThan(int rank, int size) {
  std::vector<int> others(static_cast<size_t>(size));
  std::iota(others.begin(), others.end(), 0);
  std::erase(others, rank);
  return others;
}

// Every rank starts with the source that is furthest away on the routes, or nearest, or at random.
std::vector<std::vector<int>> orders(const Network& network, int kind, TestRandom& random) {
  std::vector<std::vector<int>> list;
  for (int rank = 0; rank < network.size(); ++rank) {
    std::vector<int> sources = othersThan(rank, network.size());
    std::shuffle(sources.begin(), sources.end(), random.engine());
    const auto hops = [&](int source) {
      for (const plan::Route& route : network.routes()) {
        if (route.servers.front() == source && route.servers.back() == rank)
          return route.servers.size();
      }
      return size_t{2};
    };
    if (kind > 0) {
      std::stable_sort(sources.begin(), sources.end(), [&](int a, int b) {
        return kind == 1 ? hops(a) > hops(b) : hops(a) < hops(b);
      });
    }
    list.push_back(std::move(sources));
  }
  return list;
}

// Flows that cross each link without starting there.
std::map<std::pair<int, int>, size_t> relayedFlows(const Network& network) {
  std::map<std::pair<int, int>, size_t> flows;
  for (const plan::Route& route : network.routes()) {
    for (size_t i = 1; i + 1 < route.servers.size(); ++i) {
      ++flows[{route.servers[i], route.servers[i + 1]}];
    }
  }
  return flows;
}

void expectBoundedRelays(Network& network, size_t window_bytes) {
  const auto flows = relayedFlows(network);
  uint64_t relayed = 0;
  for (int rank = 0; rank < network.size(); ++rank) {
    for (const LinkTraffic& link : network.at(rank)->traffic()) {
      if (!link.sends) continue;
      relayed += link.relayed_bytes;
      const auto crossing = flows.find({rank, link.target});
      // A flow whose window is not full yet sends one more frame.
      const size_t bound =
          crossing == flows.end() ? 0 : crossing->second * (window_bytes + kMaxPayloadBytes);
      EXPECT_LE(link.relay_peak_bytes, bound) << textOf(link);
    }
  }
  EXPECT_GT(relayed, 0u);
}

TEST(Relays, AnAllToAllEndsInAnyOrderOfReceivesAndRelaysHoldAWindowPerFlow) {
  TestRandom random(401);
  std::vector<Cable> tree{{0, 1}, {0, 2}, {1, 3}, {1, 4}, {2, 5}, {2, 6}};
  for (const Shape& shape : {Shape{"line", lineOf(6), 6}, Shape{"ring", ringOf(6), 6},
                             Shape{"simplex ring", simplexRingOf(5), 5}, Shape{"tree", tree, 7}}) {
    for (const size_t window : {size_t{1}, size_t{4000}, size_t{100} << 10}) {
      for (int kind = 0; kind < 3; ++kind) {
        SCOPED_TRACE(std::string(shape.name) + ", window " + std::to_string(window) + ", order " +
                     std::to_string(kind));
        OneAtATime exchange(shape.size, partOf(150'000), random);
        Network network({.size = shape.size,
                         .cables = shape.cables,
                         .window_bytes = window,
                         .routes = 1,
                         .socket_bytes = 4096},
                        random);
        const auto order = orders(network, kind, random);
        ASSERT_NO_FATAL_FAILURE(exchange.run(network, order));
        expectBoundedRelays(network, window);
      }
    }
  }
}

// A neighbour that keeps to no limits, and one that reads nothing.
TEST(Relays, ASourceThatSendsMoreThanItsPartFailsAndLittleIsKept) {
  int source[2];
  int target[2];
  for (int* pair : {source, target}) {
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  }
  const Descriptor from(source[1]);
  const Descriptor to(target[1]);
  EndpointConfig config;
  config.rank = 1;
  config.size = 3;
  config.links = {{.link = {1, 0, 0, 0}, .fd = source[0]}, {.link = {1, 1, 2, 0}, .fd = target[0]}};
  config.routes = {{{0, 1, 2}, 1.0}};
  config.memory_bytes = 1 << 20;
  const FlowLimits limits = FlowLimits::of(3, config.window_bytes, config.memory_bytes);
  const size_t most = 4 * (limits.early + limits.relayed);
  Endpoint endpoint(std::move(config));
  Outcome failed;
  endpoint.reactor().run([&] { endpoint.openChannel(1, {failed.done()}); });
  FrameHeader header;
  header.source = 0;
  header.target = 2;
  header.channel = 1;
  header.message_bytes = header.payload_bytes = kRelayedPayloadBytes;
  std::vector<std::byte> bytes(costOf(header.payload_bytes));
  // What the system takes for the target counts for nothing here.
  for (size_t sent = 0; sent <= most + (4 << 20); sent += bytes.size()) {
    std::memcpy(bytes.data(), &header, sizeof header);
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t put = ::send(from.get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      ASSERT_GT(put, 0);
      at += static_cast<size_t>(put);
    }
    ++header.message;
  }
  const std::string why = failed.wait("the failure of the channel");
  EXPECT_NE(why.find("rank 0 has sent more than"), std::string::npos) << why;
  EXPECT_NE(why.find("that rank 1 has not passed on yet"), std::string::npos) << why;
  EXPECT_LE(endpoint.heldMemory().relayed.peak, most);
}

}  // namespace
}  // namespace topoopt
