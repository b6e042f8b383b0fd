// Groups whose members agree on other rings when cables are lost, slow and back, between any two
// collectives.

#include "collectives/links/ring_agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>
#include <thread>

#include "support/group_steps.h"
#include "support/network.h"

namespace topoopt {
namespace {

std::vector<int> upTo(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<plan::Ring> bothWays(const std::vector<int>& order) {
  return {{order, 0.5}, {{order.rbegin(), order.rend()}, 0.5}};
}

// A ring of cables and its chords to the server three further: two rings, both ways.
std::vector<Cable> twoRingsOfEight() {
  std::vector<Cable> cables;
  for (const int stride : {1, 3}) {
    for (int i = 0; i < 8; ++i) cables.push_back({i, (i + stride) % 8});
  }
  return cables;
}

std::vector<plan::Ring> ringsOfEight() {
  std::vector<plan::Ring> rings;
  for (const int stride : {1, 3}) {
    std::vector<int> order;
    for (int i = 0; i < 8; ++i) order.push_back(i * stride % 8);
    for (plan::Ring& ring : bothWays(order)) rings.push_back({ring.servers, 0.25});
  }
  return rings;
}

using Groups = std::vector<std::shared_ptr<Group>>;

// Of all ranks, opened on some of them; all_reduce takes the rings, if nothing else is said.
Groups openGroups(Network& network, const std::vector<plan::Ring>& rings,
                  const std::vector<int>& on, const std::string& algorithm = "multi_ring",
                  uint32_t channel = 1) {
  Groups groups;
  for (const int rank : on) {
    GroupConfig config{.name = "test",
                       .channel = channel,
                       .rank = rank,
                       .ranks = upTo(network.size()),
                       .rings = rings};
    config.algorithm = algorithm;
    groups.push_back(Group::open(network.at(rank), config));
  }
  return groups;
}

void end(Network& network, const Groups& groups) {
  for (const auto& group : groups) group->shutdown();
  for (const std::string& why : network.leaveAll(kWaitLimit)) EXPECT_EQ(why, "");
}

// An all_reduce of ones on all members.
void sumOnes(const Groups& groups, size_t count = 4000) {
  const auto size = static_cast<int32_t>(groups.size());
  std::vector<std::vector<int32_t>> data(groups.size(), std::vector<int32_t>(count, 1));
  std::vector<Outcome> outcomes(groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i]->allReduce(data[i].data(), count, DataType::kInt32, ReduceOp::kSum, kNoHurry,
                         outcomes[i].done());
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    ASSERT_EQ(outcomes[i].wait("all_reduce"), "");
    ASSERT_EQ(data[i], std::vector<int32_t>(count, size));
  }
}

// Bytes that each ring has carried since the last call.
class CarriedBytes {
 public:
  explicit CarriedBytes(Group& group) : group_(group) { take(); }

  std::map<std::vector<int>, uint64_t> take() {
    std::map<std::vector<int>, uint64_t> sums;
    for (const RingCounters& ring : group_.counters()) {
      if (ring.kind == "ring") sums[ring.ranks] += ring.sent_bytes;
    }
    std::map<std::vector<int>, uint64_t> more;
    for (const auto& [ranks, bytes] : sums) {
      if (bytes > before_[ranks]) more[ranks] = bytes - before_[ranks];
    }
    before_ = sums;
    return more;
  }

 private:
  Group& group_;
  std::map<std::vector<int>, uint64_t> before_;
};

bool passes(const std::vector<int>& ring, int a, int b) {
  for (size_t i = 0; i < ring.size(); ++i) {
    if (std::minmax(ring[i], ring[(i + 1) % ring.size()]) == std::minmax(a, b)) return true;
  }
  return false;
}

// Offers and ends overtake each other where cables are lost between them.
TEST(OfferedRings, NothingIsHeldOnceAllHasComeInAnyOrder) {
  constexpr int kVersions = 3;
  std::vector<int> order(2 * kVersions);  // 2 v: the offer of version v; 2 v + 1: its end
  std::iota(order.begin(), order.end(), 0);
  do {
    OfferedRings offered;
    std::set<int> came;
    for (const int event : order) {
      const auto version = static_cast<uint64_t>(event / 2);
      const bool other_came = came.contains(event ^ 1);
      if (event % 2 == 0) {
        EXPECT_EQ(offered.offer(version, {ringsOfEight(), {}}), !other_came);
      } else {
        EXPECT_EQ(offered.end(version).has_value(), other_came);
      }
      came.insert(event);
      const bool held = std::any_of(came.begin(), came.end(), [&](int had) {
        return had % 2 == 0 && !came.contains(had + 1);
      });
      ASSERT_EQ(offered.any(), held);
    }
    ASSERT_FALSE(offered.any());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(RingAgreement, CollectivesLeaveALostCableAndComeBackToIt) {
  TestRandom random(811);
  const std::vector<Cable> cables = twoRingsOfEight();
  Network network({.size = 8, .cables = cables, .recovers = true}, random);
  const Groups groups = openGroups(network, ringsOfEight(), upTo(8));
  CarriedBytes carried(*groups[0]);
  sumOnes(groups);
  EXPECT_EQ(carried.take().size(), 4u);
  for (const size_t lost : {size_t{0}, size_t{9}}) {
    const auto [a, b, duplex, kind] = cables[lost];
    network.hurt(lost, kernelCountsConnections() ? Fault::kSilent : Fault::kClosed);
    eventually("rings avoid the cable", [&, a = a, b = b] {
      sumOnes(groups);
      const auto rings = carried.take();
      return std::none_of(rings.begin(), rings.end(),
                          [&](const auto& ring) { return passes(ring.first, a, b); });
    });
    network.replace(lost);
    eventually("the planned rings are back", [&] {
      sumOnes(groups);
      std::vector<std::vector<int>> planned;
      for (const plan::Ring& ring : ringsOfEight()) planned.push_back(ring.servers);
      const auto rings = carried.take();
      return rings.size() == planned.size() &&
             std::all_of(planned.begin(), planned.end(),
                         [&](const auto& ring) { return rings.contains(ring); });
    });
  }
  end(network, groups);
}

// Bytes that ranks have relayed for others.
uint64_t relayedBytes(Network& network) {
  uint64_t bytes = 0;
  for (int rank = 0; rank < network.size(); ++rank) {
    for (const LinkTraffic& link : network.at(rank)->traffic()) bytes += link.relayed_bytes;
  }
  return bytes;
}

// Without new plans, ranks would relay what was planned for the lost link.
TEST(RingAgreement, PlansOverTheGraphUseOnlyTheLinksThatAreLeft) {
  for (const std::string algorithm : {"packing", "breadth_first"}) {
    SCOPED_TRACE(algorithm);
    TestRandom random(816);
    Network network({.size = 8, .cables = twoRingsOfEight(), .recovers = true}, random);
    const Groups groups = openGroups(network, ringsOfEight(), upTo(8), algorithm);
    sumOnes(groups);
    EXPECT_EQ(relayedBytes(network), 0u);
    network.hurt(0, Fault::kClosed);
    eventually("no rank relays for the others", [&] {
      const uint64_t before = relayedBytes(network);
      sumOnes(groups);
      return network.lost(0) && relayedBytes(network) == before;
    });
    end(network, groups);
  }
}

// Sums of numbers of very different sizes, whose bits depend on the order of additions.
std::vector<float> sumOfFractions(const Groups& groups) {
  constexpr size_t kCount = 1000;
  std::vector<std::vector<float>> data(groups.size());
  std::vector<Outcome> outcomes(groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    TestRandom random(static_cast<uint32_t>(900 + i));
    for (size_t k = 0; k < kCount; ++k) {
      data[i].push_back(static_cast<float>(random.between(1, 1'000'000)) / 7.0f);
    }
    groups[i]->allReduce(data[i].data(), kCount, DataType::kFloat32, ReduceOp::kSum, kNoHurry,
                         outcomes[i].done());
  }
  for (Outcome& outcome : outcomes) EXPECT_EQ(outcome.wait("all_reduce"), "");
  for (const auto& other : data) EXPECT_EQ(other, data[0]);
  return data[0];
}

TEST(RingAgreement, TreesAndDoublingKeepTheirBits) {
  for (const std::string algorithm : {"tree", "doubling"}) {
    TestRandom random(815);
    Network network({.size = 8, .cables = twoRingsOfEight(), .recovers = true}, random);
    const Groups groups = openGroups(network, ringsOfEight(), upTo(8), algorithm);
    const std::vector<float> intact = sumOfFractions(groups);
    network.hurt(0, Fault::kClosed);
    eventually("other rings are used", [&] {
      EXPECT_EQ(sumOfFractions(groups), intact);
      size_t rings = 0;
      for (const RingCounters& ring : groups[0]->counters()) rings += ring.kind == "ring";
      return rings > ringsOfEight().size();
    });
    end(network, groups);
  }
}

TEST(RingAgreement, AnyCollectivesMayBeUnderWay) {
  TestRandom random(812);
  struct Case {
    const char* name;
    int size;
    std::vector<Cable> cables;
    std::vector<plan::Ring> rings;
  };
  const Fault rare = kernelCountsConnections() ? Fault::kSilent : Fault::kClosed;
  const std::vector<Case> cases{{"two rings of 8", 8, twoRingsOfEight(), ringsOfEight()},
                                {"ring of 5", 5, ringOf(5), bothWays(upTo(5))},
                                {"complete 4", 4, completeOf(4), bothWays(upTo(4))}};
  for (const Case& shape : cases) {
    SCOPED_TRACE(shape.name);
    Steps steps(shape.size, partOf(30), 60000, random);
    Network network({.size = shape.size, .cables = shape.cables, .recovers = true}, random);
    Members members(network, 1, upTo(shape.size), shape.rings);
    std::atomic<bool> over{false};
    std::thread weather([&, seed = random.word()] {
      TestRandom own(seed);
      while (!over) {
        const size_t cable = own.between(0, shape.cables.size() - 1);
        network.hurt(cable, own.chance(0.8) ? Fault::kClosed : rare);
        eventually("a fault is noticed", [&] { return network.lost(cable); });
        if (own.chance(0.5)) std::this_thread::yield();
        network.replace(cable);
        eventually("a cable comes back", [&] { return network.up(cable); });
      }
    });
    steps.start(members);
    steps.check();
    over = true;
    weather.join();
    if (HasFatalFailure()) return;
    members.shutdown();
    for (const std::string& why : network.leaveAll(kWaitLimit)) EXPECT_EQ(why, "");
  }
}

TEST(RingAgreement, AMemberThatComesLateOrLeavesEarlyKeepsNobodyWaiting) {
  TestRandom random(813);
  Network network({.size = 8, .cables = twoRingsOfEight(), .recovers = true}, random);
  network.hurt(0, Fault::kClosed);
  eventually("the cable is lost", [&] { return network.lost(0); });
  // Opened one after the other, while the first member proposes.
  const Groups groups = openGroups(network, ringsOfEight(), upTo(8));
  const Groups others = openGroups(network, ringsOfEight(), upTo(8), "multi_ring", 2);
  CarriedBytes carried(*others[0]);
  eventually("rings avoid the cable", [&] {
    sumOnes(groups);
    sumOnes(others);
    const auto rings = carried.take();
    return std::none_of(rings.begin(), rings.end(),
                        [&](const auto& ring) { return passes(ring.first, 0, 1); });
  });
  // The root of a broadcast is done before the others, and may be gone when they change rings.
  std::vector<std::vector<int32_t>> data(8, std::vector<int32_t>(1000, 7));
  std::vector<Outcome> outcomes(8);
  groups[3]->broadcast(data[3].data(), 4000, 3, kNoHurry, outcomes[3].done());
  ASSERT_EQ(outcomes[3].wait("broadcast"), "");
  groups[3]->shutdown();
  network.replace(0);
  // The other group changes at the same time as this one, whose others have not begun the
  // broadcast.
  eventually("the planned rings are back", [&] {
    sumOnes(others);
    const auto rings = carried.take();
    const std::vector<plan::Ring> planned = ringsOfEight();
    return network.up(0) && std::all_of(planned.begin(), planned.end(), [&](const auto& ring) {
             return rings.contains(ring.servers);
           });
  });
  for (const int i : {0, 1, 2, 4, 5, 6, 7}) {
    groups[i]->broadcast(data[i].data(), 4000, 3, kNoHurry, outcomes[i].done());
  }
  for (const int i : {0, 1, 2, 4, 5, 6, 7}) EXPECT_EQ(outcomes[i].wait("broadcast"), "");
  for (const auto& group : others) group->shutdown();
  end(network, groups);
}

TEST(RingAgreement, AMemberThatHasNotCreatedTheGroupGetsTheProposalThen) {
  TestRandom random(814);
  Network network({.size = 3, .cables = ringOf(3), .recovers = true}, random);
  const std::vector<plan::Ring> rings = bothWays(upTo(3));
  Groups groups = openGroups(network, rings, {0, 1});
  network.hurt(1, Fault::kClosed);
  eventually("the cable is lost", [&] { return network.lost(1); });
  // Messages do not wait for an agreement.
  for (int k = 0; k < 200; ++k) {
    int32_t value = k;
    Outcome sent;
    Outcome received;
    groups[0]->send({&value, sizeof value}, 1, 0, kNoHurry, sent.done());
    int32_t copy = -1;
    groups[1]->receive({&copy, sizeof copy}, 0, 0, kNoHurry, received.done());
    ASSERT_EQ(sent.wait("send"), "");
    ASSERT_EQ(received.wait("receive"), "");
    ASSERT_EQ(copy, k);
  }
  groups.push_back(openGroups(network, rings, {2}).front());
  for (int k = 0; k < 20; ++k) ASSERT_NO_FATAL_FAILURE(sumOnes(groups));
  end(network, groups);
}

}  // namespace
}  // namespace topoopt
