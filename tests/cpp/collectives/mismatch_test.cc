// Members that call different things: every pair of calls, on every kind of links and in shared
// memory. Each ends in an error on all members that names both calls, long before a timeout.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/group_steps.h"
#include "support/network.h"

namespace topoopt {
namespace {

constexpr size_t kCount = 12;  // elements that are called with, unless the case is about sizes

// The memory of one member's call.
// What these calls read and write does not matter, and takes time to fill.
struct Memory {
  static constexpr size_t kMost = size_t{1} << 19;
  std::unique_ptr<float[]> numbers{new float[2 * kMost]};
  std::span<float> input{numbers.get(), kMost};
  std::span<float> output{numbers.get() + kMost, kMost};
};

struct NamedCall {
  const char* text;  // as the error names it; ranks are those of the network
  std::function<void(Group&, Memory&, Done)> start;
};

CallTerms floats(CalledOp op = CalledOp::kNone) {
  return CallTerms(kNoHurry).of(DataType::kFloat32, op);
}

std::vector<size_t> blocks(const Group& group, size_t bytes) {
  return std::vector<size_t>(static_cast<size_t>(group.size()), bytes);
}

NamedCall allReduce(const char* text, size_t count, ReduceOp op = ReduceOp::kSum,
                    DataType type = DataType::kFloat32, CalledOp called = CalledOp::kNone) {
  return {text, [=](Group& group, Memory& memory, Done done) {
            group.allReduce(memory.input.data(), count, type, op, floats(called).of(type, called),
                            std::move(done));
          }};
}

NamedCall broadcast(const char* text, int root) {
  return {text, [=](Group& group, Memory& memory, Done done) {
            group.broadcast(memory.input.data(), kCount * 4, root, floats(), std::move(done));
          }};
}

NamedCall reduce(const char* text, int root) {
  return {text, [=](Group& group, Memory& memory, Done done) {
            group.reduce(memory.input.data(), memory.output.data(), kCount, DataType::kFloat32,
                         ReduceOp::kSum, root, floats(), std::move(done));
          }};
}

NamedCall gather(const char* text, int root) {
  return {text, [=](Group& group, Memory& memory, Done done) {
            group.gather(memory.input.data(), memory.output.data(), kCount * 4, root, floats(),
                         std::move(done));
          }};
}

NamedCall scatter(const char* text, int root) {
  return {text, [=](Group& group, Memory& memory, Done done) {
            group.scatter(memory.input.data(), memory.output.data(), kCount * 4, root, floats(),
                          std::move(done));
          }};
}

NamedCall allToAll(const char* text, DataType type) {
  return {text, [=](Group& group, Memory& memory, Done done) {
            group.exchange(CallName::kAllToAll, memory.input.data(), blocks(group, kCount * 4),
                           memory.output.data(), blocks(group, kCount * 4),
                           CallTerms(kNoHurry).of(type), std::move(done));
          }};
}

// Of a group of two.
std::vector<NamedCall> allCalls() {
  return {
      allReduce("all_reduce (sum) of 12 float32", kCount),
      allReduce("all_reduce (maximum) of 12 float32", kCount, ReduceOp::kMax),
      allReduce("all_reduce (average) of 12 float32", kCount, ReduceOp::kSum, DataType::kFloat32,
                CalledOp::kAverage),
      allReduce("all_reduce (sum) of 12 int32", kCount, ReduceOp::kSum, DataType::kInt32),
      allReduce("all_reduce (sum) of 13 float32", 13),
      allReduce("all_reduce (sum) of 400000 float32", 400000),
      broadcast("broadcast of 12 float32 from rank 0", 0),
      broadcast("broadcast of 12 float32 from rank 1", 1),
      reduce("reduce (sum) of 12 float32 to rank 0", 0),
      reduce("reduce (sum) of 12 float32 to rank 1", 1),
      gather("gather of 12 float32 to rank 0", 0),
      gather("gather of 12 float32 to rank 1", 1),
      scatter("scatter of 12 float32 from rank 0", 0),
      scatter("scatter of 12 float32 from rank 1", 1),
      allToAll("all_to_all of 24 float32", DataType::kFloat32),
      allToAll("all_to_all of 24 int32", DataType::kInt32),
      {"all_gather of 24 float32",
       [](Group& group, Memory& memory, Done done) {
         group.allGather(memory.output.data(), blocks(group, kCount * 4), floats(),
                         std::move(done));
       }},
      {"reduce_scatter (sum) of 24 float32",
       [](Group& group, Memory& memory, Done done) {
         group.reduceScatter(memory.input.data(), memory.output.data(), blocks(group, kCount),
                             DataType::kFloat32, ReduceOp::kSum, floats(), std::move(done));
       }},
      {"barrier",
       [](Group& group, Memory&, Done done) { group.barrier(kNoHurry, std::move(done)); }},
  };
}

enum class Engine { kSockets, kRelayed, kShmLinks, kSharedMemory };

class Mismatches : public testing::TestWithParam<Engine> {
 protected:
  static std::vector<Cable> cables() {
    if (GetParam() == Engine::kRelayed) return lineOf(3);
    std::vector<Cable> all = completeOf(3);
    for (Cable& cable : all) {
      if (GetParam() == Engine::kShmLinks) cable.kind = LinkKind::kSharedMemory;
    }
    return all;
  }

  Members members(const std::vector<int>& ranks) {
    return Members(network_, ++channel_, ranks, 1, random_, GetParam() == Engine::kSharedMemory);
  }

  // One may be done before it knows; then its next operation ends with the error.
  std::string error(Group& group, Outcome& outcome) {
    const std::string why = outcome.wait("the call");
    if (!why.empty()) return why;
    Outcome next;
    group.barrier(kNoHurry, next.done());
    return next.wait("the next operation");
  }

  // Both members make their calls; `late` is the second one.
  void expectMismatch(const NamedCall& first, const NamedCall& second, int late) {
    SCOPED_TRACE(std::string(first.text) + " and " + second.text);
    Members pair = members({0, 2});  // relayed, where ranks form a line
    std::vector<Memory> memory(2);
    std::vector<Outcome> outcomes(2);
    for (const int member : {1 - late, late}) {
      (member == 0 ? first : second).start(pair[member], memory[member], outcomes[member].done());
    }
    for (int member = 0; member < 2; ++member) {
      const std::string why = error(pair[member], outcomes[member]);
      for (const char* text : {first.text, second.text}) {
        std::string named = text;  // the second member of the group is rank 2 of the network
        if (named.ends_with("rank 1")) named.replace(named.size() - 1, 1, "2");
        EXPECT_NE(why.find("called " + named), std::string::npos) << why;
      }
    }
  }

  TestRandom random_{1401};
  Network network_{{.size = 3, .cables = cables()}, random_};
  uint32_t channel_ = 0;
};

TEST_P(Mismatches, EveryPairOfCallsNamesBoth) {
  const std::vector<NamedCall> calls = allCalls();
  for (size_t i = 0; i < calls.size(); ++i) {
    for (size_t j = 0; j < calls.size(); ++j) {
      if (i == j || random_.chance(1 - testNumber("TOPOOPT_TEST_SHARE", 0.3))) continue;
      ASSERT_NO_FATAL_FAILURE(expectMismatch(calls[i], calls[j], static_cast<int>((i + j) % 2)));
    }
  }
}

// All three members notice, whichever of them is the one that differs.
TEST_P(Mismatches, AreAnErrorOnMembersThatAgree) {
  const NamedCall sum = allReduce("all_reduce (sum) of 12 float32", kCount);
  const NamedCall other = broadcast("broadcast of 12 float32 from rank 1", 1);
  for (int different = 0; different < 3; ++different) {
    Members all = members({0, 1, 2});
    std::vector<Memory> memory(3);
    std::vector<Outcome> outcomes(3);
    for (int member = 0; member < 3; ++member) {
      const NamedCall& call = member == different ? other : sum;
      call.start(all[member], memory[member], outcomes[member].done());
    }
    for (int member = 0; member < 3; ++member) {
      const std::string why = error(all[member], outcomes[member]);
      for (const char* text : {sum.text, other.text}) {
        EXPECT_NE(why.find(std::string("called ") + text), std::string::npos) << why;
      }
    }
  }
}

// Nothing is sent where nothing is expected to be sent.
TEST_P(Mismatches, OfWhatPairsExchangeNameBothSizes) {
  for (const size_t sent : {size_t{0}, size_t{8}}) {
    Members pair = members({0, 2});
    std::vector<Memory> memory(2);
    std::vector<Outcome> outcomes(2);
    for (int member = 0; member < 2; ++member) {
      pair[member].exchange(CallName::kAllToAllSingle, memory[member].input.data(),
                            member == 0 ? std::vector<size_t>{4, sent} : std::vector<size_t>{4, 4},
                            memory[member].output.data(),
                            member == 0 ? std::vector<size_t>{4, 4} : std::vector<size_t>{12, 4},
                            floats(), outcomes[member].done());
    }
    for (int member = 0; member < 2; ++member) {
      const std::string why = error(pair[member], outcomes[member]);
      EXPECT_NE(why.find("disagree in all_to_all_single (operation 0"), std::string::npos) << why;
      EXPECT_NE(why.find("rank 0 sends " + std::to_string(sent / 4) +
                         " float32, rank 2 receives 3 float32"),
                std::string::npos)
          << why;
    }
  }
}

TEST_P(Mismatches, OfAMessageNameBothTypesAndSizes) {
  const std::vector<std::pair<size_t, DataType>> others = {
      {48, DataType::kInt32}, {52, DataType::kFloat32}, {0, DataType::kFloat32}};
  for (const auto& [bytes, type] : others) {
    for (const bool from_any : {false, true}) {
      Members pair = members({0, 2});
      std::vector<Memory> memory(2);
      std::vector<Outcome> outcomes(2);
      pair[0].send({memory[0].input.data(), 48, DataType::kFloat32}, 1, 7, kNoHurry,
                   outcomes[0].done());
      const MessageBuffer into{memory[1].output.data(), bytes, type};
      if (from_any) {
        pair[1].receiveAny(into, 7, kNoHurry, [](int) {}, outcomes[1].done());
      } else {
        pair[1].receive(into, 0, 7, kNoHurry, outcomes[1].done());
      }
      for (int member = 0; member < 2; ++member) {
        const std::string why = error(pair[member], outcomes[member]);
        EXPECT_NE(why.find("rank 0 sent 12 float32, rank 2 receives " + textOf(bytes, type) +
                           " (tag 7, group test"),
                  std::string::npos)
            << why;
      }
    }
  }
}

// Calls that were compared while one was missing.
TEST_P(Mismatches, AreNoneWhereAMemberIsLate) {
  Members all = members({0, 1, 2});
  std::vector<Memory> memory(3);
  std::vector<Outcome> outcomes(3);
  const NamedCall sum = allReduce("", kCount);
  for (const int member : {0, 1}) {
    sum.start(all[member], memory[member], outcomes[member].done());
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  sum.start(all[2], memory[2], outcomes[2].done());
  for (Outcome& outcome : outcomes) EXPECT_EQ(outcome.wait("all_reduce"), "");
}

TEST(CallHistory, KnowsTheLastCalls) {
  CallHistory history;
  EXPECT_FALSE(history.at(0));
  for (uint64_t number = 0; number < 3000; ++number) {
    history.add(number, hashed({.bytes = number, .name = CallName::kBroadcast}, number));
  }
  EXPECT_FALSE(history.at(3000));
  EXPECT_FALSE(history.at(1975));
  EXPECT_EQ(history.at(1976)->bytes, 1976u);
  EXPECT_EQ(history.at(2999)->bytes, 2999u);
}

INSTANTIATE_TEST_SUITE_P(Engines, Mismatches,
                         testing::Values(Engine::kSockets, Engine::kRelayed, Engine::kShmLinks,
                                         Engine::kSharedMemory));

}  // namespace
}  // namespace topoopt
