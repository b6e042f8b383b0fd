// Groups over small networks: random sequences of all operations, and how they fail.

#include "collectives/group/group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>

#include "support/group_steps.h"
#include "support/network.h"

namespace topoopt {
namespace {

std::vector<int> allRanks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void leaveInGoodOrder(Network& network) {
  for (const std::string& result : network.leaveAll(kNoHurry)) EXPECT_EQ(result, "");
}

TEST(Groups, RandomSequencesOfAllOperationsGiveTheRightResults) {
  TestRandom random(401);
  const std::vector<std::pair<int, std::vector<Cable>>> shapes = {
      {1, {}},        {2, lineOf(2)}, {4, ringOf(4)},    {5, simplexRingOf(5)},
      {4, lineOf(4)}, {5, starOf(5)}, {5, completeOf(5)}};
  for (const auto& [size, cables] : shapes) {
    for (const size_t window : {16 << 10, 4 << 20}) {
      SCOPED_TRACE(std::to_string(size) + " ranks, " + std::to_string(cables.size()) +
                   " cables, window " + std::to_string(window));
      Steps steps(size, partOf(25), 60000, random);
      Network network({.size = size,
                       .cables = cables,
                       .window_bytes = window,
                       .routes = 2,
                       .socket_bytes = random.chance(0.5) ? 4096 : 0},
                      random);
      Members members(network, 1, allRanks(size), random.between(1, 3), random);
      steps.start(members);
      ASSERT_NO_FATAL_FAILURE(steps.check());
      members.shutdown();
      leaveInGoodOrder(network);
    }
  }
}

// Cables keep what they have sent until it is acknowledged, which nobody asks for here.
TEST(Groups, NoCollectiveWaitsUntilAcknowledgementsAreLookedAt) {
  TestRandom random(407);
  for (const auto& [size, cables] :
       std::vector<std::pair<int, std::vector<Cable>>>{{4, ringOf(4)}, {5, completeOf(5)}}) {
    Steps steps(size, partOf(40), 60000, random);
    std::vector<std::vector<float>> data(static_cast<size_t>(size), std::vector<float>(8 << 10));
    Network network({.size = size,
                     .cables = cables,
                     .recovers = true,
                     .silence_limit = std::chrono::hours(10),
                     .cable_tick = std::chrono::hours(1)},
                    random);
    Members members(network, 1, allRanks(size), 2, random);
    steps.start(members);
    ASSERT_NO_FATAL_FAILURE(steps.check());
    for (size_t repeat = 0; repeat < partOf(20); ++repeat) {
      std::vector<Outcome> outcomes(data.size());
      for (int member = 0; member < size; ++member) {
        members[member].allReduce(data[member].data(), data[member].size(), DataType::kFloat32,
                                  ReduceOp::kSum, kNoHurry, outcomes[member].done());
      }
      for (Outcome& outcome : outcomes) ASSERT_EQ(outcome.wait("all_reduce of 32 KiB"), "");
    }
  }
}

TEST(Groups, OnDifferentMembersWorkAtTheSameTime) {
  TestRandom random(402);
  for (const auto& cables : {ringOf(6), starOf(6), lineOf(6), simplexRingOf(6)}) {
    Steps of_all(6, partOf(15), 50000, random);
    Steps of_some(4, partOf(15), 50000, random);
    Steps of_two(2, partOf(15), 50000, random);
    Network network(
        {.size = 6, .cables = cables, .window_bytes = 32 << 10, .routes = 2, .socket_bytes = 4096},
        random);
    Members all(network, 1, allRanks(6), 2, random);
    Members some(network, 2, {5, 0, 3, 2}, 2, random);
    Members two(network, 3, {4, 1}, 1, random);
    of_all.start(all);
    of_some.start(some);
    of_two.start(two);
    ASSERT_NO_FATAL_FAILURE(of_all.check());
    ASSERT_NO_FATAL_FAILURE(of_some.check());
    ASSERT_NO_FATAL_FAILURE(of_two.check());
    // Groups go in another order on each rank.
    std::vector<std::string> results(6);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 6; ++rank) {
      threads.emplace_back([&, rank] {
        for (Members* members : {&all, &some, &two}) members->shutdownOn(rank);
        results[rank] = network.at(rank)->leave(kNoHurry);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& result : results) EXPECT_EQ(result, "");
  }
}

// ---- threads -----------------------------------------------------------------------------------

// All calls are alike, so any order is the same on all members; each has its own memory.
TEST(Groups, ManyThreadsMayCallAtOnce) {
  TestRandom random(403);
  constexpr size_t kThreads = 4;
  constexpr size_t kCalls = 20;
  struct Call {
    int64_t value = 1;
    Outcome outcome;
  };
  std::vector<std::deque<Call>> calls(3 * kThreads);
  for (auto& list : calls) list.resize(kCalls);
  Network network({.size = 3, .cables = ringOf(3)}, random);
  Members members(network, 1, allRanks(3), 2, random);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < calls.size(); ++i) {
    threads.emplace_back([&, i] {
      for (Call& call : calls[i]) {
        members[static_cast<int>(i / kThreads)].allReduce(
            &call.value, 1, DataType::kInt64, ReduceOp::kSum, kNoHurry, call.outcome.done());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& list : calls) {
    for (Call& call : list) {
      EXPECT_EQ(call.outcome.wait("all_reduce"), "");
      EXPECT_EQ(call.value, 3);
    }
  }
  EXPECT_EQ(members[0].sequenceNumber(), kThreads * kCalls);
}

// Different operations from several threads, whose order an agreement fixes.
TEST(Groups, ThreadsThatTakeTurnsKeepTheOrder) {
  TestRandom random(404);
  Steps steps(3, 40, 20000, random);
  Network network({.size = 3, .cables = ringOf(3), .window_bytes = 32 << 10}, random);
  Members members(network, 1, allRanks(3), 2, random);
  std::vector<std::thread> threads;
  struct Turn {
    std::mutex mutex;
    std::condition_variable changed;
    size_t next = 0;
  };
  std::deque<Turn> turns(3);
  for (int member = 0; member < 3; ++member) {
    for (size_t thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&, member, thread] {
        Turn& turn = turns[member];
        for (size_t step = thread; step < steps.count(); step += 3) {
          std::unique_lock lock(turn.mutex);
          turn.changed.wait(lock, [&] { return turn.next == step; });
          steps.startOne(step, members[member], member);
          ++turn.next;
          turn.changed.notify_all();
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_NO_FATAL_FAILURE(steps.check());
}

// ---- failures ----------------------------------------------------------------------------------

// One group over a ring in the order of the ranks, and one pending all_reduce per rank.
class PendingAllReduce : public testing::Test {
 protected:
  void call(int rank, Group::Milliseconds limit = kNoHurry) {
    members_[rank].allReduce(data_[rank].data(), data_[rank].size(), DataType::kFloat32,
                             ReduceOp::kSum, limit, outcomes_[rank].done());
  }
  std::string outcome(int rank) {
    return outcomes_[rank].wait("all_reduce on rank " + std::to_string(rank));
  }

  TestRandom random_{405};
  std::vector<std::vector<float>> data_ = std::vector(4, std::vector<float>(300000, 1.f));
  std::vector<Outcome> outcomes_ = std::vector<Outcome>(4);
  Network network_{{.size = 4, .cables = ringOf(4)}, random_};
  Members members_{network_, 1, allRanks(4), {{{0, 1, 2, 3}, 1.0}}};
};

TEST_F(PendingAllReduce, ATimeoutNamesTheRankThatIsMissing) {
  for (const int rank : {0, 1}) {
    call(rank);
    network_.at(rank)->reactor().run([] {});  // it has called
  }
  call(3, Group::Milliseconds(100));  // waits for rank 2
  const std::string why = outcome(3);
  EXPECT_TRUE(why.starts_with("TimeoutError: all_reduce (operation 0 of group test")) << why;
  EXPECT_NE(why.find("Timed out after 100 ms: rank 2 has not called it: it is in no operation"),
            std::string::npos)
      << why;
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(outcome(rank).starts_with("PeerLostError: rank 3 failed: all_reduce")) << rank;
    EXPECT_NE(outcome(rank).find("rank 2 has not called it"), std::string::npos);
  }
  call(2);
  EXPECT_TRUE(outcome(2).starts_with("PeerLostError: rank 3 failed: all_reduce"));
}

TEST_F(PendingAllReduce, APointToPointTimeoutNamesThePeer) {
  char byte;
  members_[0].receive({&byte, 1}, 2, 5, Group::Milliseconds(100), outcomes_[0].done());
  const std::string why = outcome(0);
  EXPECT_TRUE(why.starts_with("TimeoutError: receive from rank 2 in group test")) << why;
  call(1);
  EXPECT_TRUE(outcome(1).starts_with("PeerLostError: rank 0 failed: receive from rank 2"));
}

TEST_F(PendingAllReduce, AnAbortEndsItEverywhere) {
  for (const int rank : {0, 1, 3}) call(rank);
  members_[1].abort("enough");
  EXPECT_EQ(outcome(1), "AbortedError: enough");
  for (const int rank : {0, 3}) EXPECT_EQ(outcome(rank), "PeerLostError: rank 1 failed: enough");
  EXPECT_EQ(describe(members_[1].error()), "AbortedError: enough");
}

TEST_F(PendingAllReduce, OtherArgumentsOnOneRankAreAMismatch) {
  data_[2].resize(299999);
  for (int rank = 0; rank < 4; ++rank) call(rank);
  int mismatches = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const std::string why = outcome(rank);
    EXPECT_NE(why, "");
    mismatches += why.starts_with("MismatchError: ") ? 1 : 0;
  }
  EXPECT_GE(mismatches, 1);
}

TEST_F(PendingAllReduce, OtherOperationsOnOneRankAreAMismatch) {
  for (const int rank : {0, 1, 3}) call(rank);
  members_[2].broadcast(data_[2].data(), data_[2].size() * sizeof(float), 0, kNoHurry,
                        outcomes_[2].done());
  int mismatches = 0;
  for (int rank = 0; rank < 4; ++rank) {
    mismatches += outcome(rank).starts_with("MismatchError: ") ? 1 : 0;
  }
  EXPECT_GE(mismatches, 1);
}

// Its memory is free as soon as shutdown returns, with data of it half sent and half received.
TEST_F(PendingAllReduce, ShutdownFreesItsMemory) {
  for (const int rank : {0, 1, 3}) call(rank);
  for (int rank = 0; rank < 4; ++rank) {
    members_.shutdownOn(rank);
    std::vector<float>().swap(data_[rank]);
  }
  for (const int rank : {0, 1, 3}) {
    EXPECT_EQ(outcome(rank), "AbortedError: the process group was shut down");
  }
  leaveInGoodOrder(network_);
}

TEST_F(PendingAllReduce, ALostLinkFailsItWithTheNameOfTheLink) {
  for (const int rank : {0, 1, 3}) call(rank);
  network_.cut(1);
  for (const int rank : {0, 1, 3}) {
    EXPECT_NE(outcome(rank).find("lost the link server"), std::string::npos) << outcome(rank);
  }
}

TEST_F(PendingAllReduce, ARankThatShutsDownAndLeavesFailsTheOthers) {
  for (const int rank : {0, 1, 3}) call(rank);
  members_.shutdownOn(2);
  std::string result;
  std::thread leaving([&] { result = network_.at(2)->leave(kNoHurry); });
  for (const int rank : {0, 1, 3}) {
    EXPECT_NE(outcome(rank).find("rank 2 has left the job"), std::string::npos) << outcome(rank);
  }
  for (const int rank : {0, 1, 3}) members_.shutdownOn(rank);
  std::vector<std::thread> threads;
  std::vector<std::string> results(4);
  for (const int rank : {0, 1, 3}) {
    threads.emplace_back([&, rank] { results[rank] = network_.at(rank)->leave(kNoHurry); });
  }
  for (std::thread& thread : threads) thread.join();
  leaving.join();
  EXPECT_EQ(result, "");
  for (const std::string& other : results) EXPECT_EQ(other, "");
}

TEST_F(PendingAllReduce, ACallAfterTheEndpointStoppedFailsAtOnce) {
  network_.at(0)->stop();
  call(0);
  EXPECT_EQ(outcome(0), "PeerLostError: the endpoint was closed");
}

// Threads that call while the endpoint stops: each call ends, with an error or not.
TEST(Groups, CallsThatRaceWithTheEndAllComeBack) {
  TestRandom random(406);
  for (int repeat = 0; repeat < 5; ++repeat) {
    struct Call {
      int64_t value = 1;
      Outcome outcome;
    };
    std::deque<Call> calls(100);
    Network network({.size = 2, .cables = lineOf(2)}, random);
    Members members(network, 1, allRanks(2), 1, random);
    std::atomic<int> started = 0;
    std::thread caller([&] {
      for (Call& call : calls) {
        members[0].allReduce(&call.value, 1, DataType::kInt64, ReduceOp::kSum, kNoHurry,
                             call.outcome.done());
        ++started;
      }
    });
    while (started < 10) std::this_thread::yield();
    network.at(0)->stop();
    caller.join();
    for (Call& call : calls) {
      EXPECT_EQ(call.outcome.wait("all_reduce"), "PeerLostError: the endpoint was closed");
    }
  }
}

}  // namespace
}  // namespace topoopt
