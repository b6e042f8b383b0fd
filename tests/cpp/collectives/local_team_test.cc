// Collectives in shared memory: members are threads here, each with a mapping of its own or all
// with the same one (so that the thread sanitizer sees what they do to each other).

#include "collectives/memory/local_team.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "collectives/memory/turn_queue.h"
#include "common/errors.h"
#include "support/group_steps.h"
#include "support/network.h"

namespace topoopt {
namespace {

using namespace std::chrono_literals;

class Team {
 public:
  explicit Team(int size, bool one_mapping = false) {
    const int fd = sharedMemory(size);
    auto first = std::make_shared<TeamSegment>(dup(fd), size);
    for (int member = 0; member < size; ++member) {
      auto segment = one_mapping ? first : std::make_shared<TeamSegment>(dup(fd), size);
      ranks_.push_back(10 + member);
      segments_.push_back(std::move(segment));
    }
    close(fd);
    for (int member = 0; member < size; ++member) {
      teams_.push_back(std::make_unique<LocalTeam>(segments_[member], member, ranks_, "test"));
    }
  }

  int size() const { return static_cast<int>(teams_.size()); }
  LocalTeam& operator[](int member) { return *teams_[member]; }
  size_t slotBytes() const { return segments_[0]->slotBytes(); }

  // `function` for each of `members`, each on a thread of its own; what each of them threw.
  std::vector<std::string> run(const std::vector<int>& members,
                               const std::function<void(int)>& function) {
    std::vector<std::string> errors(members.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < members.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          function(members[i]);
        } catch (...) {
          errors[i] = describe(std::current_exception());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
  }
  void runAll(const std::function<void(int)>& function) {
    std::vector<int> all(teams_.size());
    std::iota(all.begin(), all.end(), 0);
    for (const std::string& error : run(all, function)) ASSERT_EQ(error, "");
  }

 private:
  std::vector<int> ranks_;
  std::vector<std::shared_ptr<TeamSegment>> segments_;
  std::vector<std::unique_ptr<LocalTeam>> teams_;
};

// All members give their calls the same numbers and arguments, unless a test wants it otherwise.
CollectiveCall call(CallName name, uint64_t number, uint64_t arguments = 0,
                    std::chrono::milliseconds limit = kNoHurry) {
  return {hashed({.bytes = arguments, .name = name}, arguments), number, limit};
}

using Floats = std::vector<float>;

Floats randomFloats(size_t count, uint64_t seed) {
  auto state = static_cast<uint32_t>(seed * 2 + 1);
  Floats values(count);
  float* const all = values.data();
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525 + 1013904223;
    all[i] = static_cast<float>(state >> 1) * 1e-6f - 500.f;
  }
  return values;
}

// One after the other: with rounding, the order can be seen.
Floats sumInOrder(const std::vector<Floats>& values) {
  Floats sum = values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    std::transform(sum.begin(), sum.end(), values[i].begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

std::vector<Floats> inputsOf(int size, size_t count, uint64_t seed) {
  std::vector<Floats> inputs;
  for (int member = 0; member < size; ++member) {
    inputs.push_back(randomFloats(count, seed * 100 + static_cast<uint64_t>(member)));
  }
  return inputs;
}

// Calls are numbered through all operations of one team.
void checkReductions(Team& team, size_t count, uint64_t& number) {
  const auto inputs = inputsOf(team.size(), count, number);
  const Floats sum = sumInOrder(inputs);
  const int root = static_cast<int>(number % static_cast<uint64_t>(team.size()));
  auto reduced = inputs;
  auto rooted = inputs;
  team.runAll([&](int member) {
    team[member].allReduce(call(CallName::kAllReduce, number), reduced[member].data(), count,
                           DataType::kFloat32, ReduceOp::kSum);
    void* const output = member == root ? rooted[member].data() : nullptr;
    team[member].reduce(call(CallName::kReduce, number + 1), inputs[member].data(), output, count,
                        DataType::kFloat32, ReduceOp::kSum, root);
  });
  for (int member = 0; member < team.size(); ++member) {
    ASSERT_EQ(reduced[member], sum) << "member " << member;
  }
  ASSERT_EQ(rooted[root], sum);
  number += 2;
}

void checkReduceScatter(Team& team, const std::vector<size_t>& counts, uint64_t& number) {
  const size_t count = std::accumulate(counts.begin(), counts.end(), size_t{0});
  const auto inputs = inputsOf(team.size(), count, number);
  const Floats sum = sumInOrder(inputs);
  auto outputs = std::vector<Floats>(inputs.size());
  team.runAll([&](int member) {
    outputs[member].resize(counts[member]);
    if (team.size() == 1) outputs[member] = inputs[member];
    team[member].reduceScatter(call(CallName::kReduceScatter, number), inputs[member].data(),
                               outputs[member].data(), counts, DataType::kFloat32, ReduceOp::kSum);
  });
  auto first = sum.begin();
  for (int member = 0; member < team.size(); ++member) {
    const auto last = first + static_cast<ptrdiff_t>(counts[member]);
    ASSERT_EQ(outputs[member], Floats(first, last)) << "member " << member;
    first = last;
  }
  ++number;
}

void checkMoves(Team& team, const std::vector<size_t>& counts, uint64_t& number) {
  const size_t count = std::accumulate(counts.begin(), counts.end(), size_t{0});
  const Floats all = randomFloats(count, number);
  const int root = static_cast<int>(number % static_cast<uint64_t>(team.size()));
  std::vector<size_t> bytes = counts;
  for (size_t& size : bytes) size *= sizeof(float);
  auto gathered = std::vector<Floats>(static_cast<size_t>(team.size()), Floats(count));
  auto sent = gathered;
  sent[root] = all;
  team.runAll([&](int member) {
    const auto own = std::accumulate(counts.begin(), counts.begin() + member, ptrdiff_t{0});
    std::copy_n(all.begin() + own, counts[member], gathered[member].begin() + own);
    team[member].allGather(call(CallName::kAllGather, number), gathered[member].data(), bytes);
    team[member].broadcast(call(CallName::kBroadcast, number + 1), sent[member].data(),
                           count * sizeof(float), root);
    team[member].barrier(call(CallName::kBarrier, number + 2));
  });
  for (int member = 0; member < team.size(); ++member) {
    ASSERT_EQ(gathered[member], all) << "member " << member;
    ASSERT_EQ(sent[member], all) << "member " << member;
  }
  number += 3;
}

// Member i sends sizes[(i + j) % n] numbers to member j, each of which says where it belongs.
void checkExchange(Team& team, const std::vector<size_t>& sizes, uint64_t& number) {
  const auto count = [&](int from, int to) {
    return from == to ? 0 : sizes[(static_cast<size_t>(from + to)) % sizes.size()];
  };
  auto outputs = std::vector<std::vector<uint32_t>>(static_cast<size_t>(team.size()));
  team.runAll([&](int member) {
    std::vector<uint32_t> input;
    std::vector<size_t> send_bytes;
    std::vector<size_t> receive_bytes;
    for (int other = 0; other < team.size(); ++other) {
      for (size_t k = 0; k < count(member, other); ++k) {
        input.push_back(static_cast<uint32_t>(k * 64 + static_cast<size_t>(member * 8 + other)));
      }
      send_bytes.push_back(count(member, other) * sizeof(uint32_t));
      receive_bytes.push_back(count(other, member) * sizeof(uint32_t));
    }
    auto& output = outputs[member];
    output.resize(std::accumulate(receive_bytes.begin(), receive_bytes.end(), size_t{0}) / 4);
    team[member].exchange(call(CallName::kAllToAll, number), input.data(), send_bytes,
                          output.data(), receive_bytes);
  });
  for (int member = 0; member < team.size(); ++member) {
    size_t at = 0;
    for (int other = 0; other < team.size(); ++other) {
      for (size_t k = 0; k < count(other, member); ++k) {
        ASSERT_EQ(outputs[member][at++], k * 64 + static_cast<size_t>(other * 8 + member));
      }
    }
  }
  ++number;
}

TEST(LocalTeam, EveryOperationGivesTheRightResultAtEverySize) {
  TestRandom random(901);
  for (const int size : {1, 2, 3, 5, 8}) {
    Team team(size, size % 2 == 1);
    const size_t slot = team.slotBytes() / sizeof(float);
    uint64_t number = 0;
    for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1021}, slot / 8,
                               slot / 8 + 1, slot - 1, slot, slot + 1, size_t{200003}}) {
      if (count > slot / 2 && size > 3 && random.chance(1 - partOf(100) / 100.0)) continue;
      SCOPED_TRACE(std::to_string(size) + " members, " + std::to_string(count) + " elements");
      ASSERT_NO_FATAL_FAILURE(checkReductions(team, count, number));
      std::vector<size_t> counts;
      for (int i = 0; i < size; ++i) counts.push_back(random.size(count));
      ASSERT_NO_FATAL_FAILURE(checkReduceScatter(team, counts, number));
      ASSERT_NO_FATAL_FAILURE(checkMoves(team, counts, number));
      ASSERT_NO_FATAL_FAILURE(checkExchange(team, counts, number));
    }
  }
}

TEST(LocalTeam, MembersThatFillTheirSlotsAndMembersThatDoNotExchangeInPiecesOfTheirOwn) {
  Team team(3, false);
  const size_t slot = team.slotBytes() / sizeof(float);
  uint64_t number = 0;
  for (const size_t large : {slot / 2, 2 * slot + 1}) {
    // Each of these is not sent by one member.
    for (const auto& sizes : {std::vector<size_t>{large, 7, 1000}, {7, large, 0}, {1, 2, large}}) {
      ASSERT_NO_FATAL_FAILURE(checkExchange(team, sizes, number));
    }
  }
}

TEST(LocalTeam, AVectorLargerThanTheSegmentIsReducedInOrder) {
  Team team(2, true);
  uint64_t number = 0;
  checkReductions(team, TeamSegment::bytesFor(2) / sizeof(float) + 12345, number);
}

TEST(LocalTeam, MembersThatComeAndGoAtDifferentTimesDoNotDisturbEachOther) {
  TestRandom random(902);
  for (const int size : {2, 3, 5}) {
    Team team(size, random.chance(0.5));
    const size_t kCalls = partOf(60);
    std::vector<size_t> counts;
    for (size_t i = 0; i < kCalls; ++i) counts.push_back(random.size(60000));
    std::vector<uint64_t> seeds;
    for (int member = 0; member < size; ++member) seeds.push_back(random.word());
    std::vector<std::vector<Floats>> results(kCalls);
    for (size_t i = 0; i < kCalls; ++i) results[i] = inputsOf(size, counts[i], i);
    team.runAll([&](int member) {
      std::minstd_rand engine(static_cast<uint32_t>(seeds[member]));
      for (size_t i = 0; i < kCalls; ++i) {
        if (engine() % 4 == 0)
          std::this_thread::sleep_for(std::chrono::microseconds(engine() % 400));
        team[member].allReduce(call(CallName::kAllReduce, i), results[i][member].data(), counts[i],
                               DataType::kFloat32, ReduceOp::kSum);
      }
    });
    for (size_t i = 0; i < kCalls; ++i) {
      const Floats sum = sumInOrder(inputsOf(size, counts[i], i));
      for (int member = 0; member < size; ++member) ASSERT_EQ(results[i][member], sum) << i;
    }
  }
}

TEST(LocalTeam, AllTypesAndOperationsReduceAsOnOneRank) {
  TestRandom random(903);
  Team team(3, true);
  uint64_t number = 0;
  for (const size_t count : {size_t{37}, size_t{30011}}) {
    for (int t = 0; t <= static_cast<int>(DataType::kBool); ++t) {
      const auto type = static_cast<DataType>(t);
      const bool floating = type == DataType::kFloat16 || type == DataType::kBfloat16 ||
                            type == DataType::kFloat32 || type == DataType::kFloat64;
      for (int o = 0; o <= static_cast<int>(floating ? ReduceOp::kMax : ReduceOp::kBitXor); ++o) {
        const auto op = static_cast<ReduceOp>(o);
        std::vector<std::vector<uint8_t>> data;
        for (int member = 0; member < 3; ++member) {
          data.emplace_back(count * elementSize(type));
          for (uint8_t& byte : data.back()) {
            byte =
                static_cast<uint8_t>(type == DataType::kBool ? random.word() % 2 : random.word());
          }
        }
        auto expected = data[0];
        reduceInto(type, op, expected.data(), data[1].data(), count);
        reduceInto(type, op, expected.data(), data[2].data(), count);
        team.runAll([&](int member) {
          team[member].allReduce(call(CallName::kAllReduce, number), data[member].data(), count,
                                 type, op);
        });
        for (int member = 0; member < 3; ++member) {
          ASSERT_EQ(data[member], expected) << "type " << t << ", operation " << o;
        }
        ++number;
      }
    }
  }
}

// ---- failures ----------------------------------------------------------------------------------

TEST(LocalTeam, ATimeoutNamesTheRanksThatAreMissing) {
  Team team(4);
  const auto errors = team.run({0, 2}, [&](int member) {
    float value = 1;  // both call within the limit
    team[member].allReduce(call(CallName::kAllReduce, 0, 0, 1s), &value, 1, DataType::kFloat32,
                           ReduceOp::kSum);
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(
        error,
        "TimeoutError: all_reduce (operation 0 of group test): Timed out after 1000 ms waiting "
        "for data from rank 11, 13; rank 11 has not called it; rank 13 has not called it");
  }
}

TEST(LocalTeam, AFailureWakesAllThatWaitAndEndsWhatComesLater) {
  Team team(3);
  const auto errors = team.run({0, 1, 2}, [&](int member) {
    if (member == 2) {
      team[2].fail("rank 12 failed: the loss is not a number");
    } else {
      team[member].barrier(call(CallName::kBarrier, 0, 0, 0ms));
    }
  });
  EXPECT_EQ(errors[0], "PeerLostError: rank 12 failed: the loss is not a number");
  EXPECT_EQ(errors[1], errors[0]);
  const auto later =
      team.run({0}, [&](int) { team[0].barrier(call(CallName::kBarrier, 1, 0, 0ms)); });
  EXPECT_EQ(later[0], errors[0]);
}

TEST(LocalTeam, WaitingForAMemberThatHasLeftFails) {
  Team team(3);
  const auto errors = team.run({0, 1, 2}, [&](int member) {
    team[member].barrier(call(CallName::kBarrier, 0));
    if (member == 1) return team[1].leave();
    team[member].barrier(call(CallName::kBarrier, 1, 0, 0ms));
  });
  EXPECT_EQ(errors[0], "PeerLostError: rank 11 has left group test");
  EXPECT_EQ(errors[1], "");
  EXPECT_EQ(errors[2], errors[0]);
}

TEST(LocalTeam, LeavingEndsTheOwnOperation) {
  Team team(2);
  std::thread leaver;
  const auto errors = team.run({0, 1}, [&](int member) {
    if (member == 1) return team[0].leave();
    team[0].barrier(call(CallName::kBarrier, 0, 0, 0ms));
  });
  EXPECT_EQ(errors[0], "AbortedError: group test was shut down");
}

TEST(LocalTeam, DifferentArgumentsAreAnErrorOnAllMembers) {
  Team team(3);
  const auto errors = team.run({0, 1, 2}, [&](int member) {
    Floats data(static_cast<size_t>(member == 1 ? 20000 : 10));
    team[member].allReduce(call(CallName::kAllReduce, 0, data.size()), data.data(), data.size(),
                           DataType::kFloat32, ReduceOp::kSum);
  });
  for (const std::string& error : errors) {
    EXPECT_TRUE(error.starts_with("MismatchError: rank 1")) << error;
    EXPECT_NE(error.find("disagree about operation 0 of group test: rank "), std::string::npos);
    for (const char* called :
         {"called all_reduce of 10 uint8", "called all_reduce of 20000 uint8"}) {
      EXPECT_NE(error.find(called), std::string::npos) << error;
    }
  }
}

TEST(LocalTeam, AnUnexpectedSizeOfAMessageIsAnError) {
  Team team(2);
  const auto errors = team.run({0, 1}, [&](int member) {
    std::vector<std::byte> data(64);
    const std::vector<size_t> eight = {8, 8};
    const std::vector<size_t> nine = {9, 9};
    team[member].exchange(call(CallName::kAllToAll, 0), data.data(), eight, data.data(),
                          member == 1 ? nine : eight);
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error,
              "MismatchError: rank 10 and rank 11 disagree in all_to_all (operation 0 of group "
              "test): rank 10 sends 8 uint8, rank 11 receives 9 uint8");
  }
}

TEST(LocalTeam, ASegmentThatIsTooSmallOrOfTooManyMembersIsRefused) {
  const int fd = sharedMemory(2);
  EXPECT_THROW(TeamSegment(fd, 3), std::invalid_argument);
  EXPECT_THROW(TeamSegment(fd, 0), std::invalid_argument);
  EXPECT_THROW(TeamSegment::bytesFor(TeamSegment::kMaxMembers + 1), std::invalid_argument);
  close(fd);
  EXPECT_LE(TeamSegment::bytesFor(8) - MessageRings::bytesFor(8), size_t{17} << 20);
  for (const int size : {2, 8, 64}) EXPECT_LE(MessageRings::bytesFor(size), size_t{66} << 20);
}

// ---- groups ------------------------------------------------------------------------------------

TEST(GroupInSharedMemory, RandomSequencesOfAllOperationsGiveTheRightResults) {
  TestRandom random(904);
  for (const int size : {1, 2, 3, 5}) {
    for (const bool synchronous : {false, true}) {
      Steps steps(size, partOf(40), 60000, random, synchronous);
      Network network({.size = size, .cables = completeOf(size)}, random);
      std::vector<int> ranks(static_cast<size_t>(size));
      std::iota(ranks.begin(), ranks.end(), 0);
      Members members(network, 1, ranks, 1, random, true);
      steps.start(members);
      ASSERT_NO_FATAL_FAILURE(steps.check());
      EXPECT_EQ(members[0].sequenceNumber(), members[size - 1].sequenceNumber());
      members.shutdown();
      for (const std::string& left : network.leaveAll(kNoHurry)) EXPECT_EQ(left, "");
    }
  }
}

TEST(GroupInSharedMemory, AbortWakesWhatWaitsOnAllMembersAndWhatIsQueued) {
  TestRandom random(905);
  Network network({.size = 3, .cables = completeOf(3)}, random);
  Members members(network, 1, {0, 1, 2}, 1, random, true);
  std::vector<Outcome> outcomes(4);
  for (int i = 0; i < 2; ++i) {
    members[i].barrier(0ms, outcomes[2 * i].done());
    members[i].barrier(0ms, outcomes[2 * i + 1].done());
  }
  members[2].abort("the test wants it");
  for (Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.wait("barrier"), "PeerLostError: rank 2 failed: the test wants it");
  }
  Outcome later;
  members[2].barrier({0ms, true}, later.done());
  EXPECT_EQ(later.wait("barrier after abort"), "AbortedError: the test wants it");
}

TEST(GroupInSharedMemory, NothingThatIsCalledAfterAbortRuns) {
  TestRandom random(909);
  for (int round = 0; round < 20; ++round) {
    Network network({.size = 2, .cables = completeOf(2)}, random);
    Members members(network, 1, {0, 1}, 1, random, true);
    Outcome other;
    members[0].barrier(0ms, other.done());
    members[1].abort("the test wants it");
    Outcome own;
    members[1].barrier({0ms, true}, own.done());
    EXPECT_EQ(own.wait("barrier after abort"), "AbortedError: the test wants it");
    EXPECT_EQ(other.wait("barrier"), "PeerLostError: rank 1 failed: the test wants it");
  }
}

TEST(GroupInSharedMemory, ATimeoutFailsTheGroupOnAllMembers) {
  TestRandom random(906);
  Network network({.size = 2, .cables = completeOf(2)}, random);
  Members members(network, 1, {0, 1}, 1, random, true);
  Outcome first;
  members[0].barrier({50ms, true}, first.done());
  EXPECT_EQ(
      first.wait("barrier"),
      "TimeoutError: barrier (operation 0 of group test 1): Timed out after 50 ms waiting for "
      "data from rank 1; rank 1 has not called it");
  Outcome second;
  members[1].barrier(0ms, second.done());
  EXPECT_NE(second.wait("barrier").find("rank 0 failed: barrier (operation 0"), std::string::npos);
}

TEST(GroupInSharedMemory, ShuttingDownEndsWhatIsRunning) {
  TestRandom random(907);
  Network network({.size = 2, .cables = completeOf(2)}, random);
  Members members(network, 1, {0, 1}, 1, random, true);
  Outcome running;
  Outcome queued;
  members[0].barrier(0ms, running.done());
  members[0].barrier(0ms, queued.done());
  members[0].shutdown();
  EXPECT_EQ(running.wait("running"), "AbortedError: the process group was shut down");
  EXPECT_EQ(queued.wait("queued"), "AbortedError: the process group was shut down");
}

TEST(GroupInSharedMemory, ALostNeighbourEndsTheWait) {
  TestRandom random(908);
  Network network({.size = 2, .cables = completeOf(2)}, random);
  Members members(network, 1, {0, 1}, 1, random, true);
  Outcome waiting;
  members[0].barrier(0ms, waiting.done());
  network.cut(0);
  EXPECT_TRUE(waiting.wait("barrier").starts_with("PeerLostError: ")) << waiting.wait("barrier");
}

// ---- turns -------------------------------------------------------------------------------------

TEST(TurnQueue, RunsInOrderAndOnTheThreadOfWhoWaitsIfNothingIsBefore) {
  TurnQueue queue;
  std::promise<void> go;
  std::vector<uint64_t> order;
  std::vector<std::thread::id> threads;
  const auto note = [&](uint64_t number) {
    order.push_back(number);
    threads.push_back(std::this_thread::get_id());
  };
  queue.submit(note, true);
  queue.submit(
      [&](uint64_t number) {
        go.get_future().wait_for(kWaitLimit);
        note(number);
      },
      false);
  queue.submit(note, true);
  go.set_value();
  queue.stop();
  queue.submit(note, false);
  EXPECT_EQ(order, (std::vector<uint64_t>{0, 1, 2, 3}));
  const auto here = std::this_thread::get_id();
  EXPECT_EQ(threads[0], here);
  EXPECT_NE(threads[1], here);
  EXPECT_EQ(threads[1], threads[2]);
  EXPECT_EQ(threads[3], here);
  EXPECT_EQ(queue.count(), 4u);
}

}  // namespace
}  // namespace topoopt
