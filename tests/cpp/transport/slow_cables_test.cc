// Links that have become slow, on connections whose rates are limited.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <array>
#include <atomic>

#include "support/network.h"

namespace topoopt {
namespace {

using std::chrono::milliseconds;

// Of an interface that is no loopback device; 0 if there is none. What this machine sends there
// stays on it, and yet the connections share an interface, as those of a cable do.
uint32_t ownAddress() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return 0;
  uint32_t address = 0;
  for (const ifaddrs* one = all; one != nullptr && address == 0; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_LOOPBACK) || !(one->ifa_flags & IFF_UP)) continue;
    address = ntohl(reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr.s_addr);
  }
  freeifaddrs(all);
  return address;
}

// Two ranks, and one link between them that has several connections.
class Pair {
 public:
  static constexpr int kConnections = 2;

  explicit Pair(uint32_t address) {
    std::array<EndpointConfig, 2> configs;
    for (int rank = 0; rank < 2; ++rank) {
      configs[rank].rank = rank;
      configs[rank].size = 2;
      configs[rank].cable_tick = milliseconds(40);
    }
    for (int number = 0; number < kConnections; ++number) {
      const auto [near, far] = connectedPair(address);
      for (EndpointConfig& config : configs) {
        const bool first = config.rank == 0;
        LinkSpec spec{.link = {first ? 0 : 1, 0, first ? 1 : 0, 0}};
        spec.fd = first ? near : far;
        spec.cable = number;
        config.links.push_back(spec);
        config.cables.push_back({.link = {0, 0, 1, 0}, .a = 0, .b = 1, .rate = 1.0});
        config.routes.push_back({{0, 1}, 0.5});
        config.routes.push_back({{1, 0}, 0.5});
      }
    }
    for (int rank = 0; rank < 2; ++rank) {
      ends_[rank] = std::make_unique<Endpoint>(std::move(configs[rank]));
      ends_[rank]->reactor().run(
          [&, rank] { ends_[rank]->openChannel(1, {.failed = [](std::exception_ptr) {}}); });
    }
    for (int i = 0; i < kUnderWay; ++i) {
      again(0, i);
      again(1, i);
    }
  }
  ~Pair() {
    ending_ = true;
    for (auto& end : ends_) end->reactor().run([&] { end->closeChannel(1); });
    for (auto& end : ends_) end->stop();
  }

  // Of what rank 0 sends, all its connections together.
  void limit(uint64_t bytes_per_s) {
    for (int i = 0; i < kConnections; ++i) ends_[0]->limitCable(i, bytes_per_s / kConnections);
  }
  std::vector<int> slow() { return ends_[0]->slowCables(); }
  uint64_t received() const { return received_; }

 private:
  static constexpr int kUnderWay = 8;
  static constexpr size_t kBytes = 64 << 10;

  // Rank 0 sends messages to rank 1 all the time.
  void again(int rank, int slot) {
    ends_[rank]->reactor().post([this, rank, slot] {
      if (ending_) return;
      const FlowId flow{1 - rank, 1, static_cast<uint64_t>(slot)};
      auto next = [this, rank, slot](std::exception_ptr error) {
        if (error) return;
        if (rank == 1) received_ += kBytes;
        again(rank, slot);
      };
      std::vector<std::byte>& memory = memory_[rank][slot];
      memory.resize(kBytes);
      if (rank == 0) return ends_[0]->send(flow, memory.data(), kBytes, 7, next);
      ends_[1]->receive(flow, memory.data(), kBytes, 7, next);
    });
  }

  std::array<std::array<std::vector<std::byte>, kUnderWay>, 2> memory_;
  std::array<std::unique_ptr<Endpoint>, 2> ends_;
  std::atomic<uint64_t> received_ = 0;
  std::atomic<bool> ending_ = false;
};

// By itself each of the connections may carry anything, as long as the others carry the rest.
TEST(SlowCables, ALinkOfSeveralConnectionsIsNoticed) {
  const uint32_t address = ownAddress();
  if (address == 0) GTEST_SKIP() << "no interface but the loopback device has an IPv4 address";
  if (!kernelCountsConnections()) GTEST_SKIP() << "no counters of connections (TCP_INFO)";
  constexpr uint64_t kUsual = 40'000'000;
  Pair pair(address);
  pair.limit(kUsual);
  const uint64_t before = pair.received();
  eventually("a second's bytes have come", [&] { return pair.received() > before + kUsual; });
  EXPECT_EQ(pair.slow(), std::vector<int>{});
  pair.limit(kUsual / 20);
  eventually("both connections are slow", [&] { return pair.slow() == std::vector{0, 1}; });
}

}  // namespace
}  // namespace topoopt
