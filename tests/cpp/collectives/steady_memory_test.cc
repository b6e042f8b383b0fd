// Messages whose tags change all the time: what is remembered of them is bounded, whatever is
// forgotten, by either end, is no message's loss.

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "support/many_ranks.h"
#include "support/network.h"
#include "transport/frames/flow_limits.h"

namespace topoopt {
namespace {

constexpr uint32_t kChannel = 1;
constexpr uint64_t kFingerprint = 5;
constexpr size_t kRoundMessages = 500;

bool eventually(const std::function<bool()>& condition) {
  const auto limit = std::chrono::steady_clock::now() + kWaitLimit;
  while (!condition() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  return condition();
}

// Rounds of messages between random ranks. Most tags are new; others were used lately, or long ago.
class ChangingTags {
 public:
  using At = std::function<Endpoint&(int rank)>;

  ChangingTags(int size, At at, uint64_t seed, size_t most_bytes)
      : size_(static_cast<size_t>(size)),
        at_(std::move(at)),
        random_(seed),
        sent_(most_bytes + kRoundMessages),
        received_(kRoundMessages, std::vector<uint8_t>(most_bytes)) {
    for (size_t i = 0; i < sent_.size(); ++i) sent_[i] = static_cast<uint8_t>(i * 31 + i / 251);
    for (int rank = 0; rank < size; ++rank) {
      at_(rank).reactor().run([&] { at_(rank).openChannel(kChannel, {[](auto) {}}); });
    }
  }

  // One round, and fails the test unless all of it arrives.
  void round() {
    std::vector<std::vector<std::function<void(Endpoint&)>>> sends(size_);
    std::vector<std::vector<std::function<void(Endpoint&)>>> receives(size_);
    std::vector<size_t> sizes(kRoundMessages);
    left_ = 2 * kRoundMessages;
    for (size_t i = 0; i < kRoundMessages; ++i) {
      const size_t source = random_.between(0, size_ - 1);
      const size_t target = (source + random_.between(1, size_ - 1)) % size_;
      const uint64_t stream = kFirstMessageStream + tag();
      // Few are long: what asks before it comes.
      const size_t most = random_.between(0, 99) == 0 ? received_[i].size() : 300;
      const size_t bytes = sizes[i] = random_.between(0, std::min(most, received_[i].size()));
      sends[source].push_back([this, i, target, stream, bytes](Endpoint& endpoint) {
        endpoint.send({static_cast<int>(target), kChannel, stream}, &sent_[i], bytes, kFingerprint,
                      done());
      });
      receives[target].push_back([this, i, source, stream, bytes](Endpoint& endpoint) {
        endpoint.receive({static_cast<int>(source), kChannel, stream}, received_[i].data(), bytes,
                         kFingerprint, done());
      });
    }
    for (size_t rank = 0; rank < size_; ++rank) {
      Endpoint& endpoint = at_(static_cast<int>(rank));
      auto first = std::move(sends[rank]);
      auto second = std::move(receives[rank]);
      if (random_.between(0, 1) == 0) std::swap(first, second);
      endpoint.reactor().post([&endpoint, first, second] {
        for (const auto& start : first) start(endpoint);
        for (const auto& start : second) start(endpoint);
      });
    }
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, kWaitLimit, [&] { return left_ == 0; }))
        << left_ << " ends of messages are not over";
    ASSERT_EQ(failure_, "");
    for (size_t i = 0; i < kRoundMessages; ++i) {
      ASSERT_EQ(std::memcmp(received_[i].data(), &sent_[i], sizes[i]), 0) << "message " << i;
    }
  }

 private:
  uint64_t tag() {
    const size_t kind = random_.between(0, 9);
    if (kind < 7 || next_tag_ == 0) return next_tag_++;
    const uint64_t lately = kind < 9 ? std::min<uint64_t>(next_tag_, 2000) : next_tag_;
    return next_tag_ - 1 - random_.between(0, lately - 1);
  }

  Done done() {
    return [this](std::exception_ptr error) {
      std::lock_guard lock(mutex_);
      if (error && failure_.empty()) failure_ = describe(error);
      if (--left_ == 0) changed_.notify_all();
    };
  }

  const size_t size_;
  const At at_;
  TestRandom random_;
  std::vector<uint8_t> sent_;
  std::vector<std::vector<uint8_t>> received_;
  uint64_t next_tag_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t left_ = 0;      // guarded by mutex_
  std::string failure_;  // guarded by mutex_
};

// A million: docs/project/development.md has the command.
TEST(SteadyMemory, OfMessagesDoesNotGrowWithTheirTags) {
  constexpr int kSize = 4;
  constexpr size_t kMemory = 1 << 20;
  const auto operations = static_cast<size_t>(testNumber("TOPOOPT_TEST_OPERATIONS", 40'000));
  const ManyRanks ranks({.size = kSize, .strides = {1}, .endpoint = {.memory_bytes = kMemory}});
  ChangingTags tags(kSize, [&](int rank) -> Endpoint& { return *ranks.at(rank); }, 701, 200'000);
  const FlowLimits limits = FlowLimits::of(kSize, EndpointConfig{}.window_bytes, kMemory);
  // To and from each other rank: flows that are not yet acknowledged, and those that may be
  // forgotten, which the sender lists.
  const size_t unacknowledged = limits.ack / sizeof(FrameHeader) + 1;
  const size_t most = (kSize - 1) * (2 * (unacknowledged + kForgottenFlows) + kForgottenFlows) + 1;
  for (size_t round = 0; round < partOf(operations / kRoundMessages); ++round) {
    ASSERT_NO_FATAL_FAILURE(tags.round()) << "round " << round;
    if (round % 10 > 0) continue;
    // Acknowledgements and the names of forgotten flows may be on their way.
    for (int rank = 0; rank < kSize; ++rank) {
      EXPECT_TRUE(eventually([&] { return ranks.at(rank)->rememberedEntries() <= most; }))
          << "rank " << rank << " remembers " << ranks.at(rank)->rememberedEntries()
          << " of at most " << most;
    }
  }
}

// Frames come late and by other ways then, and acknowledgements, too.
TEST(SteadyMemory, WhatIsForgottenIsNoMessagesLossWhenCablesAreLost) {
  TestRandom random(702);
  // One lost cable more than is noticed elsewhere is not the end of a rank here.
  const auto cables = completeOf(4);
  Network network({.size = 4, .cables = cables, .routes = 2, .recovers = true}, random);
  ChangingTags tags(4, [&](int rank) -> Endpoint& { return *network.at(rank); }, 703, 100'000);
  std::atomic<bool> over{false};
  std::atomic<int> faults{0};
  std::thread weather([&, seed = random.word()] {
    TestRandom own(seed);
    while (!over) {
      const size_t cable = own.between(0, cables.size() - 1);
      network.hurt(cable, own.between(0, 1) == 0 ? Fault::kClosed : Fault::kHalf);
      EXPECT_TRUE(eventually([&] { return network.lost(cable); }));
      network.replace(cable);
      EXPECT_TRUE(eventually([&] { return network.up(cable); }));
      ++faults;
    }
  });
  for (size_t round = 0; (round < partOf(40) || faults < 2) && !HasFatalFailure(); ++round) {
    tags.round();
  }
  over = true;
  weather.join();
}

}  // namespace
}  // namespace topoopt
