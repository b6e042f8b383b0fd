// Chunks over circuits that move, hop after hop.

#include "plan/circuit_schedules.h"

#include <stdexcept>
#include <string>

#include "support/schedule_checks.h"

namespace topoopt {
namespace {

using Sizes = std::vector<std::vector<size_t>>;

// Each topology is one shift, and takes those chunks that it brings to their targets in the fewest
// hops; all hops of one number are in one slot. With `carry`, half of the way is made on the
// topology before: chunks wait at relays while circuits move.
CircuitProgram shifts(int size, const std::vector<int>& by, bool carry) {
  CircuitProgram program(by.size() + (carry ? 1 : 0));
  for (int offset = 1; offset < size; ++offset) {
    size_t best = 0;
    int fewest = size;
    for (size_t i = 0; i < by.size(); ++i) {
      for (int hops = 1; hops < fewest; ++hops) {
        if (hops * by[i] % size == offset) {
          best = i;
          fewest = hops;
        }
      }
    }
    for (int hop = 0; hop < fewest; ++hop) {
      const size_t late = carry && hop >= fewest / 2 ? 1 : 0;
      for (int source = 0; source < size; ++source) {
        const int sender = (source + hop * by[best]) % size;
        program[best + late].push_back(
            {sender, (sender + by[best]) % size, source, (source + offset) % size});
      }
    }
  }
  return program;
}

// Every pair has up to three parts, which follow each other.
CircuitProgram cut(const CircuitProgram& program) {
  CircuitProgram found(program.size());
  for (size_t topology = 0; topology < program.size(); ++topology) {
    for (CircuitHop hop : program[topology]) {
      for (hop.part = 0; hop.part <= (hop.source + 2 * hop.target) % 3; ++hop.part) {
        found[topology].push_back(hop);
      }
    }
  }
  return found;
}

Sizes randomSizes(int size, TestRandom& random) {
  Sizes bytes;
  for (int i = 0; i < size; ++i) bytes.push_back(randomCounts(size, 9, random));
  return bytes;
}

std::vector<size_t> column(const Sizes& bytes, int target) {
  std::vector<size_t> sizes;
  for (const auto& row : bytes) sizes.push_back(row[target]);
  return sizes;
}

// Runs topology after topology, each to its end; buffers are carried over.
std::vector<MemberBuffers> runAll(const CircuitProgram& program, const Sizes& bytes, size_t window,
                                  TestRandom& random) {
  const int size = static_cast<int>(bytes.size());
  std::vector<std::vector<Schedule>> all;
  std::vector<MemberBuffers> buffers(size);
  for (int rank = 0; rank < size; ++rank) {
    all.push_back(circuitSchedules(program, rank, bytes));
    buffers[rank].input = randomValues(total(bytes[rank]), random);
    buffers[rank].output.resize(total(column(bytes, rank)));
    buffers[rank].scratch.resize(all[rank][0].scratch_bytes);
  }
  for (size_t topology = 0; topology < program.size(); ++topology) {
    ScheduleExecutor executor(forAll(size, [&](int rank) { return all[rank][topology]; }), 1,
                              window, random);
    for (int rank = 0; rank < size; ++rank) executor.member(rank) = buffers[rank];
    EXPECT_EQ(executor.run(), "") << "topology " << topology;
    for (int rank = 0; rank < size; ++rank) buffers[rank] = executor.member(rank);
  }
  return buffers;
}

void expectExchanged(const std::vector<MemberBuffers>& buffers, const Sizes& bytes) {
  const int size = static_cast<int>(bytes.size());
  for (int target = 0; target < size; ++target) {
    for (int source = 0; source < size; ++source) {
      const size_t into = startOf(column(bytes, target), source);
      const size_t from = startOf(bytes[source], target);
      const size_t count = bytes[source][target];
      expectWrites(buffers[target].output_writes, into, count, source == target ? 0 : 1);
      for (size_t i = 0; i < count && source != target; ++i) {
        ASSERT_EQ(buffers[target].output[into + i], buffers[source].input[from + i])
            << "from " << source << " to " << target;
      }
    }
  }
}

TEST(CircuitSchedules, BringEveryChunkToItsTargetWhateverTheNetworkDoes) {
  TestRandom random(71);
  for (const size_t window : {size_t{0}, size_t{3}, ScheduleExecutor::kUnbounded}) {
    for (const bool carry : {false, true}) {
      for (const auto& [size, by] : std::vector<std::pair<int, std::vector<int>>>{
               {2, {1}}, {4, {1, 3}}, {5, {1, 4, 2}}, {8, {1, 3, 5}}, {9, {1}}}) {
        const Sizes bytes = randomSizes(size, random);
        const CircuitProgram program = shifts(size, by, carry);
        expectExchanged(runAll(program, bytes, window, random), bytes);
        expectExchanged(runAll(cut(program), bytes, window, random), bytes);
      }
    }
  }
}

TEST(CircuitSchedules, PartsOfAPairTakeRoutesOfTheirOwn) {
  TestRandom random(5);
  Sizes bytes(3, std::vector<size_t>(3, 0));
  const CircuitProgram program = {{{0, 1, 0, 2, 0}, {0, 2, 0, 2, 1}},
                                  {{1, 2, 0, 2, 0}, {0, 2, 0, 2, 2}}};
  for (const size_t size : {0, 1, 2, 3, 10}) {
    bytes[0][2] = size;
    expectExchanged(runAll(program, bytes, 0, random), bytes);
    size_t direct = 0;
    for (const Schedule& schedule : circuitSchedules(program, 0, bytes)) {
      for (const Lane& lane : schedule.lanes) {
        for (const Send& send : lane.sends) direct += send.peer == 2 ? send.from.bytes : 0;
      }
    }
    EXPECT_EQ(direct, size - divide({0, size}, 3, 0).count);
  }
}

TEST(CircuitSchedules, MemoryOfRelayedChunksIsUsedAgainOnLaterTopologies) {
  const Sizes bytes(6, std::vector<size_t>(6, 10));
  const CircuitProgram once = shifts(6, {1}, false);
  const CircuitProgram first(once.begin(), once.end());
  const size_t alone = circuitSchedules(first, 0, bytes)[0].scratch_bytes;
  // The same chunks, each distance on a topology of its own.
  CircuitProgram parted(5);
  for (const CircuitHop& hop : once[0]) {
    parted[(hop.target - hop.source + 6) % 6 - 1].push_back(hop);
  }
  EXPECT_EQ(alone, 10u * (1 + 2 + 3 + 4));
  EXPECT_EQ(circuitSchedules(parted, 0, bytes)[0].scratch_bytes, 10u * 4);
}

TEST(CircuitSchedules, HopsThatDoNotDeliverAreErrors) {
  const Sizes bytes(3, std::vector<size_t>(3, 4));
  const auto wrong = [&](CircuitProgram program, int rank) -> std::string {
    try {
      circuitSchedules(program, rank, bytes);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  CircuitProgram program = shifts(3, {1}, false);
  EXPECT_EQ(wrong(program, 0), "");
  const auto erase = [&](int sender, int source, int target) {
    std::erase_if(program[0], [&](const CircuitHop& hop) {
      return hop.sender == sender && hop.source == source && hop.target == target;
    });
  };
  erase(1, 0, 2);
  EXPECT_EQ(wrong(program, 2), "chunk 0 from member 0 to member 2 never arrives");
  EXPECT_EQ(wrong(program, 1), "chunk 0 from member 0 to member 2 stays at a relay");
  erase(0, 0, 2);
  EXPECT_EQ(wrong(program, 0), "chunk 0 from member 0 to member 2 is never sent");
  program[0].push_back({1, 2, 0, 2});
  EXPECT_EQ(wrong(program, 1),
            "member 1 sends chunk 0 from member 0 to member 2, which it does not have");
  program[0].back() = {0, 1, 0, 1};
  EXPECT_EQ(wrong(program, 1), "chunk 0 from member 0 to member 1 passes a member twice");
  program[0].back() = {0, 3, 0, 1};
  EXPECT_EQ(wrong(program, 0), "there is no member 3");
  program[0].back() = {0, 1, 0, 1, -1};
  EXPECT_EQ(wrong(program, 0), "there is no part -1");
  program = shifts(3, {1}, false);
  program[0].push_back({0, 1, 0, 1, 2});
  EXPECT_EQ(wrong(program, 1), "chunk 1 from member 0 to member 1 never arrives");
}

}  // namespace
}  // namespace topoopt
