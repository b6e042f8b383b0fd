// Blocks of a collective over circuits that move, topology after topology.

#include "plan/circuit_collectives.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "support/schedule_checks.h"

namespace topoopt {
namespace {

constexpr size_t kLong = 100'000;  // bytes of an element: blocks have several chunks

// Weight and factor; the product of the factors is the number of members.
using Digits = std::vector<std::pair<int, int>>;

int wrapped(int member, int size) { return ((member % size) + size) % size; }

// Each digit has a topology, on which member x sends to x + weight.
BlockProgram gatherProgram(int size, const Digits& digits, int parts = 1) {
  BlockProgram program{parts, size, {}};
  std::vector<int> window = {0};  // distances of the blocks that a member has
  for (const auto& [weight, factor] : digits) {
    auto& hops = program.topologies.emplace_back();
    std::vector<int> grown = window;
    for (int step = 1; step < factor; ++step) {
      for (const int near : window) {
        const int far = near + step * weight;
        grown.push_back(far);
        for (int part = 0; part < parts; ++part) {
          for (int x = 0; x < size; ++x) {
            hops.push_back(
                {x, wrapped(x + weight, size), wrapped(x + weight - far, size), part, false});
          }
        }
      }
    }
    window = grown;
  }
  return program;
}

// The reverse: blocks that a member would get are sent back and added.
BlockProgram reduceScatter(int size, const Digits& digits, int parts = 1) {
  const BlockProgram gathered = gatherProgram(size, digits, parts);
  BlockProgram program{parts, size, {}};
  for (auto hops = gathered.topologies.rbegin(); hops != gathered.topologies.rend(); ++hops) {
    auto& back = program.topologies.emplace_back();
    for (auto hop = hops->rbegin(); hop != hops->rend(); ++hop) {
      back.push_back({hop->receiver, hop->sender, hop->block, hop->part, true});
    }
  }
  return program;
}

BlockProgram allReduce(int size, const Digits& digits, int parts = 1) {
  BlockProgram program = reduceScatter(size, digits, parts);
  for (auto& hops : gatherProgram(size, digits, parts).topologies)
    program.topologies.push_back(hops);
  return program;
}

// Parts of the whole message, from member to member.
BlockProgram chainProgram(int size, int parts) {
  BlockProgram program{parts, 1, {{}}};
  for (int part = 0; part < parts; ++part) {
    for (int x = 0; x + 1 < size; ++x) program.topologies[0].push_back({x, x + 1, 0, part, false});
  }
  return program;
}

struct DigitCase {
  int size;
  Digits digits;
};
const std::vector<DigitCase> kDigitCases = {
    {2, {{1, 2}}}, {5, {{1, 5}}}, {6, {{1, 3}, {3, 2}}}, {8, {{1, 2}, {2, 2}, {4, 2}}}};

GroupLayout on(const std::vector<int>& servers) {
  std::vector<int> leaders;
  for (size_t member = 0; member < servers.size(); ++member) {
    const auto first = std::find(servers.begin(), servers.end(), servers[member]);
    if (first - servers.begin() == static_cast<std::ptrdiff_t>(member)) {
      leaders.push_back(static_cast<int>(member));
    }
  }
  return GroupLayout(static_cast<int>(servers.size()), {{leaders, 1.0}}, servers);
}

// Every member on a server of its own.
GroupLayout alone(int size) {
  std::vector<int> servers(size);
  std::iota(servers.begin(), servers.end(), 0);
  return on(servers);
}

// Runs topology after topology, each to its end; buffers are carried over.
std::vector<MemberBuffers> runProgram(const BlockProgram& program, const GroupLayout& layout,
                                      const ScheduleKey& key, std::vector<MemberBuffers> buffers,
                                      size_t window, TestRandom& random) {
  const int size = layout.size();
  std::vector<std::vector<Schedule>> all;
  for (int rank = 0; rank < size; ++rank) {
    all.push_back(circuitCollectiveSchedules(program, layout, rank, key));
    buffers[rank].scratch.resize(all[rank][0].scratch_bytes / key.element_bytes);
  }
  for (size_t topology = 0; topology < program.topologies.size(); ++topology) {
    ScheduleExecutor executor(forAll(size, [&](int rank) { return all[rank][topology]; }),
                              key.element_bytes, window, random);
    for (int rank = 0; rank < size; ++rank) executor.member(rank) = buffers[rank];
    EXPECT_EQ(executor.run(), "") << "topology " << topology;
    for (int rank = 0; rank < size; ++rank) buffers[rank] = executor.member(rank);
  }
  return buffers;
}

std::vector<MemberBuffers> inputsOf(int size, size_t count, TestRandom& random) {
  std::vector<MemberBuffers> buffers(size);
  for (MemberBuffers& member : buffers) member.input = randomValues(count, random);
  return buffers;
}

Values sumOf(const std::vector<MemberBuffers>& buffers) {
  Values sum(buffers[0].input.size(), 0);
  for (const MemberBuffers& member : buffers) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += member.input[i];
  }
  return sum;
}

// Inputs stay, and every member has its part of the sum.
void expectScattered(const std::vector<MemberBuffers>& before,
                     const std::vector<MemberBuffers>& after, const std::vector<size_t>& counts) {
  const Values sum = sumOf(before);
  for (int rank = 0; rank < static_cast<int>(before.size()); ++rank) {
    EXPECT_EQ(after[rank].input, before[rank].input);
    const auto first = sum.begin() + static_cast<std::ptrdiff_t>(startOf(counts, rank));
    EXPECT_EQ(after[rank].output, Values(first, first + static_cast<std::ptrdiff_t>(counts[rank])));
  }
}

// Calls check(size, digits, parts, window, element_bytes) for many networks and sizes.
template <typename Check>
void forMany(const Check& check) {
  for (const auto& [size, digits] : kDigitCases) {
    for (const int parts : {1, 3}) {
      for (const size_t window : {size_t{0}, size_t{3}, ScheduleExecutor::kUnbounded}) {
        for (const size_t element_bytes : {size_t{8}, kLong}) {
          check(size, digits, parts, window, element_bytes);
        }
      }
    }
  }
}

TEST(CircuitCollectives, AnAllReduceAddsEverythingOnAllMembers) {
  TestRandom random(31);
  forMany([&](int size, const Digits& digits, int parts, size_t window, size_t element_bytes) {
    for (const size_t count : {size_t{1}, size_t{97}}) {
      const ScheduleKey key{
          .collective = Collective::kAllReduce, .counts = {count}, .element_bytes = element_bytes};
      const auto before = inputsOf(size, count, random);
      const auto after =
          runProgram(allReduce(size, digits, parts), alone(size), key, before, window, random);
      for (const MemberBuffers& member : after) EXPECT_EQ(member.input, sumOf(before));
    }
  });
}

TEST(CircuitCollectives, AReduceScatterLeavesItsInputAndWritesEachSumOnce) {
  TestRandom random(32);
  forMany([&](int size, const Digits& digits, int parts, size_t window, size_t element_bytes) {
    const std::vector<size_t> counts = randomCounts(size, 20, random);
    const ScheduleKey key{
        .collective = Collective::kReduceScatter, .counts = counts, .element_bytes = element_bytes};
    auto before = inputsOf(size, total(counts), random);
    for (int rank = 0; rank < size; ++rank) before[rank].output.resize(counts[rank]);
    const auto after =
        runProgram(reduceScatter(size, digits, parts), alone(size), key, before, window, random);
    expectScattered(before, after, counts);
  });
}

TEST(CircuitCollectives, AnAllGatherBringsEveryBlockOnce) {
  TestRandom random(33);
  forMany([&](int size, const Digits& digits, int parts, size_t window, size_t element_bytes) {
    const std::vector<size_t> counts = randomCounts(size, 20, random);
    const ScheduleKey key{
        .collective = Collective::kAllGather, .counts = counts, .element_bytes = element_bytes};
    const Values all = randomValues(total(counts), random);
    std::vector<MemberBuffers> before(size);
    for (int rank = 0; rank < size; ++rank) {
      before[rank].output.resize(all.size());
      for (size_t i = 0; i < counts[rank]; ++i) {
        const size_t at = startOf(counts, rank) + i;
        before[rank].output[at] = all[at];
      }
    }
    const auto after =
        runProgram(gatherProgram(size, digits, parts), alone(size), key, before, window, random);
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(after[rank].output, all);
      for (int other = 0; other < size; ++other) {
        expectWrites(after[rank].output_writes, startOf(counts, other), counts[other],
                     other == rank ? 0 : 1);
      }
    }
  });
}

TEST(CircuitCollectives, ABroadcastComesFromItsRoot) {
  TestRandom random(34);
  for (const int root : {0, 2}) {
    for (const size_t element_bytes : {size_t{1}, kLong}) {
      const ScheduleKey key{.collective = Collective::kBroadcast,
                            .counts = {50},
                            .element_bytes = element_bytes,
                            .root = root};
      const auto before = inputsOf(5, 50, random);
      const auto after = runProgram(chainProgram(5, 4), alone(5), key, before, 3, random);
      for (const MemberBuffers& member : after) EXPECT_EQ(member.input, before[root].input);
    }
  }
}

// ---- several members on a server ---------------------------------------------------------------

// The servers of the members; all have three servers.
const std::vector<std::vector<int>> kShared = {
    {7, 7, 8, 8, 9, 9}, {7, 8, 9, 7, 8, 9}, {7, 7, 7, 8, 9, 9}, {9, 7, 7, 8, 9, 9, 7}};
const Digits kThree = {{1, 3}};

// Calls check(layout, window, element_bytes).
template <typename Check>
void forShared(const Check& check) {
  for (const auto& servers : kShared) {
    for (const size_t window : {size_t{0}, size_t{3}, ScheduleExecutor::kUnbounded}) {
      for (const size_t element_bytes : {size_t{8}, kLong}) {
        check(on(servers), window, element_bytes);
      }
    }
  }
}

// Bytes from a server to another go from leader to leader, and each crosses the circuits once.
void expectLeadersOnCircuits(const BlockProgram& program, const GroupLayout& layout,
                             const ScheduleKey& key) {
  for (int rank = 0; rank < layout.size(); ++rank) {
    for (const Schedule& schedule : circuitCollectiveSchedules(program, layout, rank, key)) {
      for (const Lane& lane : schedule.lanes) {
        for (const Send& send : lane.sends) {
          const bool inside = layout.placeOf(send.peer) == layout.placeOf(rank);
          EXPECT_EQ(lane.part == kInsideServer, inside);
          if (inside) continue;
          EXPECT_EQ(layout.leaderOf(rank), rank);
          EXPECT_EQ(layout.leaderOf(send.peer), send.peer);
        }
      }
    }
  }
}

TEST(CircuitCollectives, AnAllReduceAddsEverythingOfServersWithSeveralMembers) {
  TestRandom random(35);
  forShared([&](const GroupLayout& layout, size_t window, size_t element_bytes) {
    for (const int parts : {1, 2}) {
      const ScheduleKey key{
          .collective = Collective::kAllReduce, .counts = {61}, .element_bytes = element_bytes};
      const auto before = inputsOf(layout.size(), 61, random);
      const BlockProgram program = allReduce(3, kThree, parts);
      for (const auto& member : runProgram(program, layout, key, before, window, random)) {
        EXPECT_EQ(member.input, sumOf(before));
      }
      expectLeadersOnCircuits(program, layout, key);
    }
  });
}

TEST(CircuitCollectives, AReduceScatterGivesEachMemberOfAServerItsSum) {
  TestRandom random(36);
  forShared([&](const GroupLayout& layout, size_t window, size_t element_bytes) {
    const int size = layout.size();
    const std::vector<size_t> counts = randomCounts(size, 20, random);
    const ScheduleKey key{
        .collective = Collective::kReduceScatter, .counts = counts, .element_bytes = element_bytes};
    auto before = inputsOf(size, total(counts), random);
    for (int rank = 0; rank < size; ++rank) before[rank].output.resize(counts[rank]);
    const auto after = runProgram(reduceScatter(3, kThree), layout, key, before, window, random);
    expectScattered(before, after, counts);
  });
}

TEST(CircuitCollectives, AnAllGatherBringsTheBlocksOfAllMembersOfAllServers) {
  TestRandom random(37);
  forShared([&](const GroupLayout& layout, size_t window, size_t element_bytes) {
    const int size = layout.size();
    const std::vector<size_t> counts = randomCounts(size, 20, random);
    const ScheduleKey key{
        .collective = Collective::kAllGather, .counts = counts, .element_bytes = element_bytes};
    const Values all = randomValues(total(counts), random);
    std::vector<MemberBuffers> before(size);
    for (int rank = 0; rank < size; ++rank) {
      before[rank].output.resize(all.size());
      const auto first = static_cast<std::ptrdiff_t>(startOf(counts, rank));
      std::copy_n(all.begin() + first, counts[rank], before[rank].output.begin() + first);
    }
    const auto after = runProgram(gatherProgram(3, kThree), layout, key, before, window, random);
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(after[rank].output, all);
      for (int other = 0; other < size; ++other) {
        expectWrites(after[rank].output_writes, startOf(counts, other), counts[other],
                     other == rank ? 0 : 1);
      }
    }
  });
}

TEST(CircuitCollectives, ABroadcastMayComeFromAnyMemberOfAServer) {
  TestRandom random(38);
  forShared([&](const GroupLayout& layout, size_t window, size_t element_bytes) {
    for (int root = 0; root < layout.size(); ++root) {
      const ScheduleKey key{.collective = Collective::kBroadcast,
                            .counts = {23},
                            .element_bytes = element_bytes,
                            .root = root};
      const auto before = inputsOf(layout.size(), 23, random);
      const auto after = runProgram(chainProgram(3, 2), layout, key, before, window, random);
      for (const MemberBuffers& member : after) EXPECT_EQ(member.input, before[root].input);
    }
  });
}

std::string refusalOf(const BlockProgram& program, const ScheduleKey& key, int size) {
  try {
    const GroupLayout layout = alone(size);
    for (int rank = 0; rank < size; ++rank) circuitCollectiveSchedules(program, layout, rank, key);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(CircuitCollectives, HopsThatDoNotFitAreErrors) {
  const ScheduleKey gathers{.collective = Collective::kAllGather, .counts = {4, 4, 4}};
  const Digits ring = {{1, 3}};
  EXPECT_EQ(refusalOf(gatherProgram(3, ring), gathers, 3), "");
  BlockProgram short_of_one = gatherProgram(3, ring);
  short_of_one.topologies[0].pop_back();
  EXPECT_NE(refusalOf(short_of_one, gathers, 3).find("never arrives"), std::string::npos);
  BlockProgram twice = gatherProgram(3, ring);
  twice.topologies.push_back(twice.topologies[0]);
  EXPECT_NE(refusalOf(twice, gathers, 3).find("twice"), std::string::npos);
  BlockProgram unknown = gatherProgram(3, ring);
  unknown.topologies[0][0].block = 1;
  EXPECT_NE(refusalOf(unknown, gathers, 3).find("does not have"), std::string::npos);
  EXPECT_NE(refusalOf(reduceScatter(3, ring), gathers, 3).find("may not send"), std::string::npos);
  EXPECT_NE(refusalOf(chainProgram(3, 1), gathers, 3).find("1 blocks"), std::string::npos);
  BlockProgram outside = gatherProgram(3, ring);
  outside.topologies[0][0].receiver = 3;
  EXPECT_NE(refusalOf(outside, gathers, 3).find("no member 3"), std::string::npos);
}

}  // namespace
}  // namespace topoopt
