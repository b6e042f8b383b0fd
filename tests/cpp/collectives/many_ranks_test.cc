// What grows with the number of ranks.

#include "support/many_ranks.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace topoopt {
namespace {

void expectNoErrors(const std::vector<std::string>& errors) {
  for (size_t i = 0; i < errors.size(); ++i) EXPECT_EQ(errors[i], "") << "member " << i;
}

TEST(ManyRanks, AThousandStartAndMakeAGroupAndRunItsCollectives) {
  constexpr rlim_t kDescriptors = 9000;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const int size = partOf(2) == 2 && limit.rlim_cur >= kDescriptors ? 1024 : 64;
  std::vector<int> offsets;  // of recursive doubling and of what a barrier sends
  for (int distance = 1; distance < size; distance *= 2) {
    offsets.push_back(distance);
    offsets.push_back(size - distance);
  }
  const ManyRanks ranks({.size = size, .strides = {1, 8, 64}, .offsets = offsets});
  const auto members = ranks.openGroup(1, "doubling");
  std::vector<uint64_t> sums(static_cast<size_t>(size));
  std::iota(sums.begin(), sums.end(), 0);
  expectNoErrors(ManyRanks::onAll(members, [&](Group& group, int member, Done done) {
    group.allReduce(&sums[member], 1, DataType::kInt64, ReduceOp::kSum, kNoHurry, std::move(done));
  }));
  const auto expected = static_cast<uint64_t>(size) * static_cast<uint64_t>(size - 1) / 2;
  EXPECT_EQ(sums, std::vector<uint64_t>(static_cast<size_t>(size), expected));
  expectNoErrors(ManyRanks::onAll(
      members, [&](Group& group, int, Done done) { group.barrier(kNoHurry, std::move(done)); }));
  for (const auto& group : members) group->shutdown();
}

// An exchange of all pairs, of which each rank starts its part when it is told to. All send the
// same bytes, and each receives all of its messages into one buffer, so that many ranks fit here.
class Exchange {
 public:
  Exchange(const ManyRanks& ranks, size_t pair_bytes)
      : ranks_(ranks), sent_(pair_bytes), outcomes_(static_cast<size_t>(ranks.size())) {
    for (size_t i = 0; i < pair_bytes; ++i) sent_[i] = static_cast<uint8_t>(i * 7 + i / 251);
    received_.resize(outcomes_.size(), std::vector<uint8_t>(pair_bytes));
    for (int rank = 0; rank < ranks.size(); ++rank) {
      ranks.at(rank)->reactor().run([&] { ranks.at(rank)->openChannel(1, {[](auto) {}}); });
    }
  }

  void start(int rank) {
    std::vector<Outcome>& outcomes = outcomes_[rank];
    outcomes.resize(2 * static_cast<size_t>(ranks_.size() - 1));
    Endpoint& endpoint = *ranks_.at(rank);
    endpoint.reactor().run([&] {
      for (int distance = 1; distance < ranks_.size(); ++distance) {
        const int source = (rank + ranks_.size() - distance) % ranks_.size();
        endpoint.receive({source, 1, 0}, received_[rank].data(), sent_.size(), 1,
                         outcomes[2 * distance - 2].done());
      }
      for (int distance = 1; distance < ranks_.size(); ++distance) {
        const int target = (rank + distance) % ranks_.size();
        endpoint.send({target, 1, 0}, sent_.data(), sent_.size(), 1,
                      outcomes[2 * distance - 1].done());
      }
    });
  }

  void check() {
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      for (Outcome& outcome : outcomes_[rank]) {
        ASSERT_EQ(outcome.wait("rank " + std::to_string(rank)), "");
      }
      EXPECT_EQ(received_[rank], sent_) << "rank " << rank;
    }
  }

 private:
  const ManyRanks& ranks_;
  std::vector<uint8_t> sent_;
  std::vector<std::vector<uint8_t>> received_;
  std::vector<std::vector<Outcome>> outcomes_;
};

// docs/project/development.md has the command for 128 ranks.
TEST(ManyRanks, AnExchangeOfAllPairsWithALateRankKeepsToTheMemoryOfARank) {
  const auto size = static_cast<int>(testNumber("TOPOOPT_TEST_RANKS", 24));
  const auto memory = static_cast<size_t>(testNumber("TOPOOPT_TEST_MEMORY_MIB", 9)) << 20;
  const auto pair_bytes = static_cast<size_t>(testNumber("TOPOOPT_TEST_PAIR_KIB", 600)) << 10;
  const ManyRanks ranks(
      {.size = size, .strides = {1, size / 5}, .endpoint = {.memory_bytes = memory}});
  const FlowLimits limits = FlowLimits::of(size, 4 << 20, memory);
  const size_t sources = static_cast<size_t>(size);
  ASSERT_LE(sources * (limits.early + limits.relayed), memory + (memory >> 4));
  Exchange exchange(ranks, pair_bytes);
  const int late = size / 2;
  for (int rank = 0; rank < size; ++rank) {
    if (rank != late) exchange.start(rank);
  }
  // The late rank starts when the others have been through some rounds of another channel.
  const auto members = ranks.openGroup(2, "doubling");
  for (int round = 0; round < 20; ++round) {
    expectNoErrors(ManyRanks::onAll(
        members, [&](Group& group, int, Done done) { group.barrier(kNoHurry, std::move(done)); }));
  }
  exchange.start(late);
  exchange.check();
  uint64_t most = 0;
  for (int rank = 0; rank < size; ++rank) {
    const HeldMemory held = ranks.at(rank)->heldMemory();
    EXPECT_LE(held.early.peak, sources * limits.early) << "rank " << rank;
    EXPECT_LE(held.relayed.peak, sources * (limits.early + limits.relayed)) << "rank " << rank;
    EXPECT_LE(held.buffers.peak, memory) << "rank " << rank;
    EXPECT_EQ(held.early.now, 0u) << "rank " << rank;
    EXPECT_EQ(held.relayed.now, 0u) << "rank " << rank;
    most = std::max(most, held.buffers.peak);
  }
  EXPECT_GT(ranks.at(late)->heldMemory().early.peak, 0u);
  RecordProperty("most_bytes", std::to_string(most));
  for (const auto& group : members) group->shutdown();
}

// Beyond the early bytes that a source may send, a receive from any rank finds a message of which
// nothing has come yet.
TEST(ManyRanks, AReceiveFromAnyRankFindsAMessageThatOnlyAsksToCome) {
  const ManyRanks ranks({.size = 4, .strides = {1}, .endpoint = {.memory_bytes = 1 << 20}});
  constexpr size_t kBytes = 700'000;
  constexpr size_t kMessages = 3;
  const std::vector<uint8_t> sent(kBytes, 7);
  std::vector<uint8_t> received(kBytes);
  std::vector<Outcome> sends(kMessages);
  for (int rank = 0; rank < 4; ++rank) {
    ranks.at(rank)->reactor().run([&] { ranks.at(rank)->openChannel(1, {[](auto) {}}); });
  }
  ranks.at(2)->reactor().run([&] {
    for (size_t i = 0; i < kMessages; ++i) {
      ranks.at(2)->send({0, 1, i}, sent.data(), kBytes, 1, sends[i].done());
    }
  });
  for (size_t i = kMessages; i-- > 0;) {
    Outcome outcome;
    int from = -1;
    received.assign(kBytes, 0);
    ranks.at(0)->reactor().run([&] {
      ranks.at(0)->receiveAny(
          {1, 2, 3}, 1, i, received.data(), kBytes, 1, [&](int peer) { from = peer; },
          outcome.done());
    });
    ASSERT_EQ(outcome.wait("receive from any"), "");
    EXPECT_EQ(from, 2);
    EXPECT_EQ(received, sent);
    ASSERT_EQ(sends[i].wait("send"), "");
  }
}

TEST(ManyRanks, WhatIsRememberedOfGroupsDoesNotGrowWithTheirNumber) {
  const ManyRanks ranks({.size = 3, .strides = {1}});
  const auto runGroups = [&](uint32_t first, uint32_t count) {
    for (uint32_t channel = first; channel < first + count; ++channel) {
      const auto members = ranks.openGroup(channel, "doubling");
      expectNoErrors(ManyRanks::onAll(members, [&](Group& group, int, Done done) {
        group.barrier(kNoHurry, std::move(done));
      }));
      for (const auto& group : members) group->shutdown();
    }
  };
  constexpr uint32_t kMany = 4200;  // more than are remembered
  runGroups(1, kMany);
  const size_t entries = ranks.at(1)->rememberedEntries();
  runGroups(1 + kMany, 300);
  EXPECT_LE(ranks.at(1)->rememberedEntries(), entries + 100);
}

}  // namespace
}  // namespace topoopt
