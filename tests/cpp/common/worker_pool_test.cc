// Threads that share the pieces of tasks, the reductions that they make, and where threads stay.

#include "common/worker_pool.h"

#include <gtest/gtest.h>
#include <net/if.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <numeric>

#include "support/group_steps.h"
#include "support/network.h"
#include "transport/near_processors.h"

namespace topoopt {
namespace {

TEST(WorkerPool, EveryPieceRunsOnceAndDoneComesAfterTheLast) {
  constexpr size_t kTasks = 20;
  std::vector<std::vector<std::atomic<int>>> runs;
  for (size_t task = 0; task < kTasks; ++task) runs.emplace_back(1 + task % 7);
  std::atomic<size_t> whole = 0;
  {
    WorkerPool pool(3);
    for (std::vector<std::atomic<int>>& pieces : runs) {
      pool.run(
          pieces.size(), [&](size_t number) { ++pieces[number]; },
          [&] {
            whole +=
                std::all_of(pieces.begin(), pieces.end(), [](const auto& n) { return n == 1; });
          });
    }
  }
  EXPECT_EQ(whole, kTasks);
}

// ---- sums of collectives -----------------------------------------------------------------------

constexpr int kMembers = 3;
constexpr size_t kElements = 900001;  // chunks are longer than what workers are given

std::vector<std::vector<float>> values(TestRandom& random) {
  std::vector<std::vector<float>> lists(kMembers, std::vector<float>(kElements));
  for (auto& list : lists) {
    for (float& value : list) {
      value = static_cast<float>(random.between(0, 1 << 24)) / 3.0F - 2.5e6F;
    }
  }
  return lists;
}

class Sums : public testing::Test {
 protected:
  static NetworkOptions options(size_t workers) {
    return {.size = kMembers,
            .cables = ringOf(kMembers),
            .moved = workers > 0 ? Moved::kByThreads : Moved::kPlain,
            .workers = workers};
  }
  void call(Members& members, std::vector<std::vector<float>>& data, size_t from = 0) {
    for (int member = static_cast<int>(from); member < kMembers; ++member) {
      members[member].allReduce(data[member].data(), kElements, DataType::kFloat32, ReduceOp::kSum,
                                kNoHurry, outcomes_[member].done());
    }
  }

  TestRandom random_{411};
  std::vector<Outcome> outcomes_{kMembers};
  const std::vector<plan::Ring> rings_{{{0, 1, 2}, 1.0}};
};

TEST_F(Sums, HaveTheSameBitsWhoeverAddsThem) {
  const auto given = values(random_);
  std::vector<float> expected;
  for (const size_t workers : {0, 1, 3}) {
    SCOPED_TRACE(workers);
    auto data = given;
    outcomes_ = std::vector<Outcome>(kMembers);
    Network network(options(workers), random_);
    Members members(network, 1, {0, 1, 2}, rings_);
    call(members, data);
    for (Outcome& outcome : outcomes_) ASSERT_EQ(outcome.wait("all_reduce"), "");
    if (workers == 0) expected = data[0];
    for (const auto& list : data) {
      EXPECT_EQ(std::memcmp(list.data(), expected.data(), kElements * sizeof(float)), 0);
    }
  }
}

// At whatever point it is: chunks are under way, or are being added.
TEST_F(Sums, AnAbortFreesTheirMemory) {
  for (int round = 0; round < 6; ++round) {
    auto data = std::make_unique<std::vector<std::vector<float>>>(values(random_));
    outcomes_ = std::vector<Outcome>(kMembers);
    Network network(options(2), random_);
    Members members(network, 1, {0, 1, 2}, rings_);
    call(members, *data);
    const int aborts = round % kMembers;
    const auto sent = [&] {
      uint64_t bytes = 0;
      for (const LinkTraffic& link : network.at(aborts)->traffic()) bytes += link.sent_bytes;
      return bytes;
    };
    // Of 4.8 MB.
    while (sent() < static_cast<uint64_t>(round) * 300000) std::this_thread::yield();
    members[aborts].abort("enough");
    for (Outcome& outcome : outcomes_) outcome.wait("all_reduce");
    data.reset();
  }
}

// ---- where threads stay ------------------------------------------------------------------------

std::vector<size_t> numbersOf(const std::optional<cpu_set_t>& processors) {
  std::vector<size_t> numbers;
  for (size_t i = 0; processors && i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &*processors)) numbers.push_back(i);
  }
  return numbers;
}

TEST(NearProcessors, AreListedAsTheKernelWritesThem) {
  EXPECT_EQ(numbersOf(processorsOf("0-3,8")), (std::vector<size_t>{0, 1, 2, 3, 8}));
  EXPECT_EQ(numbersOf(processorsOf("5\n")), std::vector<size_t>{5});
  for (const char* text : {"", "x", "3-1", "-2", "0-99999", "1-", "1;2"}) {
    EXPECT_FALSE(processorsOf(text)) << text;
  }
}

TEST(NearProcessors, AreThoseOfTheInterfaceIfItHasAPlace) {
  const int loopback = static_cast<int>(if_nametoindex("lo"));
  const std::filesystem::path system =
      std::filesystem::path(testing::TempDir()) / ("near_processors_" + std::to_string(getpid()));
  const std::filesystem::path device = system / "class" / "net" / "lo" / "device";
  std::filesystem::create_directories(device);
  std::ofstream(device / "local_cpulist") << "0,2-3\n";
  EXPECT_FALSE(processorsNear(loopback, system));
  std::ofstream(device / "numa_node") << "-1\n";
  EXPECT_FALSE(processorsNear(loopback, system)) << "a machine that does not know";
  std::ofstream(device / "numa_node") << "1\n";
  EXPECT_EQ(numbersOf(processorsNear(loopback, system)), (std::vector<size_t>{0, 2, 3}));
  EXPECT_FALSE(processorsNear(0, system)) << "no interface";
  std::filesystem::remove_all(system);
  EXPECT_FALSE(processorsNear(loopback)) << "a real one without a device";
}

TEST(NearProcessors, AThreadStaysOnThoseThatItMayUse) {
  std::thread([] {
    cpu_set_t before;
    ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    const size_t last = numbersOf(before).back();
    cpu_set_t wanted;
    CPU_ZERO(&wanted);
    CPU_SET(CPU_SETSIZE - 1, &wanted);
    cpu_set_t now;
    if (last != CPU_SETSIZE - 1) {
      stayOn(wanted);
      ASSERT_EQ(sched_getaffinity(0, sizeof now, &now), 0);
      EXPECT_TRUE(CPU_EQUAL(&now, &before)) << "none of them";
    }
    CPU_SET(last, &wanted);
    stayOn(wanted);
    ASSERT_EQ(sched_getaffinity(0, sizeof now, &now), 0);
    EXPECT_EQ(numbersOf(now), std::vector<size_t>{last});
  }).join();
}

}  // namespace
}  // namespace topoopt
