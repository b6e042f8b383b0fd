// The choice of an algorithm, and the schedules that are kept.

#include "plan/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "plan/schedule_cache.h"

namespace topoopt {
namespace {

// Twelve servers, strides 1 and 5, both ways round: four rings.
std::vector<plan::Ring> fourRings() {
  std::vector<plan::Ring> rings;
  for (const int stride : {1, 11, 5, 7}) {
    plan::Ring& ring = rings.emplace_back();
    ring.share = 0.25;
    for (int i = 0; i < 12; ++i) ring.servers.push_back(i * stride % 12);
  }
  return rings;
}

const CostModel kModel{.alpha_s = 20e-6,
                       .per_hop_latency_s = 20e-6,
                       .beta_s_per_byte = 1e-8,
                       .gamma_s_per_byte = 2e-10};

class Choice : public testing::Test {
 protected:
  Algorithm chosen(Collective collective, size_t bytes, const std::string& forced = "auto",
                   bool commutative = true) {
    return estimate_.choose({collective, bytes, 3, commutative}, algorithmNamed(forced));
  }

  GroupLayout layout_{12, fourRings()};
  CostEstimate estimate_{layout_, kModel};
};

TEST_F(Choice, FewBytesTakeFewRoundsAndManyTakeAllRings) {
  EXPECT_EQ(chosen(Collective::kAllReduce, 8), Algorithm::kDoubling);
  EXPECT_EQ(chosen(Collective::kAllReduce, 8, "auto", false), Algorithm::kTree);
  EXPECT_EQ(chosen(Collective::kAllReduce, 64 << 20), Algorithm::kMultiRing);
  EXPECT_EQ(chosen(Collective::kBroadcast, 8), Algorithm::kTree);
  EXPECT_EQ(chosen(Collective::kBroadcast, 64 << 20), Algorithm::kMultiRing);
  EXPECT_EQ(chosen(Collective::kReduce, 64 << 20), Algorithm::kMultiRing);
  EXPECT_EQ(chosen(Collective::kAllGather, 100), Algorithm::kRing);
  EXPECT_EQ(chosen(Collective::kAllGather, 64 << 20), Algorithm::kMultiRing);
  EXPECT_EQ(chosen(Collective::kReduceScatter, 64 << 20), Algorithm::kMultiRing);
  EXPECT_EQ(chosen(Collective::kBarrier, 0), Algorithm::kDoubling);
  EXPECT_EQ(chosen(Collective::kExchange, 1 << 20), Algorithm::kDirect);
}

class Measured : public testing::Test {
 protected:
  static CostModel timed() {
    CostModel model = kModel;
    model.all_reduce = {{"tree", 1000, 1e-3},
                        {"tree", 100'000, 100e-3},
                        {"multi_ring", 1000, 4e-3},
                        {"multi_ring", 100'000, 25e-3},
                        {"doubling", 1000, 2e-3}};
    return model;
  }
  static Request request(size_t bytes, bool commutative = true) {
    return {Collective::kAllReduce, bytes, 3, commutative};
  }
  Algorithm chosen(const Request& request) { return estimate_.choose(request, std::nullopt); }

  GroupLayout layout_{12, fourRings()};
  CostEstimate estimate_{layout_, timed()};
};

TEST_F(Measured, TimesGoBeforeTheModel) {
  EXPECT_EQ(chosen(request(8)), Algorithm::kTree);  // by the model it is doubling
  EXPECT_EQ(chosen(request(64 << 20)), Algorithm::kMultiRing);
  EXPECT_EQ(estimate_.seconds(request(8), Algorithm::kTree), 1e-3);
  EXPECT_EQ(estimate_.seconds(request(1000), Algorithm::kMultiRing), 4e-3);
  EXPECT_EQ(estimate_.seconds(request(100'000), Algorithm::kMultiRing), 25e-3);
}

TEST_F(Measured, BetweenTwoSizesTimesAreOnAStraightLine) {
  EXPECT_NEAR(estimate_.seconds(request(10'000), Algorithm::kTree), 10e-3, 1e-9);
  EXPECT_NEAR(estimate_.seconds(request(34'000), Algorithm::kMultiRing), 11e-3, 1e-9);
  EXPECT_EQ(chosen(request(4'000, false)), Algorithm::kTree);  // they cross at 4 802 bytes
  EXPECT_EQ(chosen(request(6'000, false)), Algorithm::kMultiRing);
}

TEST_F(Measured, BeyondTheLastSizeTheyGrowByTheByteButNoFasterThanLinksAreRated) {
  const double slope_s = 75e-3 / 99'000;
  CostModel slow = timed();
  slow.all_reduce[1].seconds = 76e-3;
  EXPECT_NEAR(CostEstimate(layout_, slow).seconds(request(1'100'000), Algorithm::kTree),
              76e-3 + 1e6 * slope_s, 1e-9);
  CostModel rated = timed();
  rated.beta_s_per_byte = 1e-3;
  const CostEstimate estimate(layout_, rated);
  const CostEstimate model(layout_, [&] {
    CostModel without = rated;
    without.all_reduce.clear();
    return without;
  }());
  const auto of_model = [&](size_t bytes) {
    return model.seconds(request(bytes), Algorithm::kMultiRing);
  };
  EXPECT_NEAR(estimate.seconds(request(1'100'000), Algorithm::kMultiRing),
              25e-3 + of_model(1'100'000) - of_model(100'000), 1e-6);
}

TEST_F(Measured, WhatWasNotTimedIsNotChosenUnlessNothingElseWas) {
  EXPECT_EQ(chosen(request(8, false)), Algorithm::kTree);
  CostModel doubling = kModel;
  doubling.all_reduce = {{"doubling", 1000, 1.0}};
  const CostEstimate estimate(layout_, doubling);
  EXPECT_EQ(estimate.choose(request(8), std::nullopt), Algorithm::kDoubling);
  EXPECT_EQ(estimate.choose(request(64 << 20), std::nullopt), Algorithm::kMultiRing);
}

TEST_F(Measured, GatheringAndScatteringAreHalvesOfRings) {
  for (const Collective half : {Collective::kAllGather, Collective::kReduceScatter}) {
    EXPECT_EQ(estimate_.seconds({half, 1000, 0, true}, Algorithm::kMultiRing), 2e-3);
  }
}

TEST_F(Choice, AForcedAlgorithmIsTakenWhereItCanServe) {
  EXPECT_EQ(chosen(Collective::kAllReduce, 8, "ring"), Algorithm::kRing);
  EXPECT_EQ(chosen(Collective::kAllReduce, 64 << 20, "tree"), Algorithm::kTree);
  EXPECT_EQ(chosen(Collective::kBroadcast, 8, "both_ways"), Algorithm::kBothWays);
  EXPECT_EQ(chosen(Collective::kAllGather, 64 << 20, "tree"), Algorithm::kMultiRing);
  // Recursive doubling would need scratch for every round.
  EXPECT_EQ(chosen(Collective::kAllReduce, 64 << 20, "doubling"), Algorithm::kMultiRing);
}

// In a group of some servers, routes of its rings and pairs may share links.
TEST(RouteLoads, BoundTheTimeOfRingsAndOfMessagesBetweenPairs) {
  GroupLayout layout{4, {{.servers = {0, 1, 2, 3}}}};
  LinkSet links;
  for (int i = 0; i < 4; ++i) {
    links.push_back({i, (i + 1) % 4, 1.0});
    links.push_back({(i + 1) % 4, i, 1.0});
  }
  layout.setLinks(links);
  GroupLayout loaded = layout;
  loaded.setRouteLoads({.first_ring = 3, .rings = 3, .pairs = 10});
  const CostEstimate even{layout, kModel};
  const CostEstimate uneven{loaded, kModel};
  const size_t bytes = size_t{1} << 30;
  const Request request{Collective::kAllGather, bytes};
  const double shard_s = static_cast<double>(bytes) / 4 * kModel.beta_s_per_byte;
  EXPECT_NEAR(uneven.seconds(request, Algorithm::kOneShot) / shard_s, 10, 1e-3);
  EXPECT_NEAR(uneven.seconds(request, Algorithm::kRing) / shard_s, 9, 1e-3);
  for (const Algorithm each : {Algorithm::kOneShot, Algorithm::kRing}) {
    EXPECT_LT(even.seconds(request, each), uneven.seconds(request, each));
  }
}

// Four servers with three links each may have six rings, of which each link carries two.
TEST(OddPorts, ATreeHasTheLinksOfAServerNotItsRings) {
  std::vector<plan::Ring> rings;
  for (const std::vector<int>& order : std::vector<std::vector<int>>{
           {0, 1, 2, 3}, {0, 3, 2, 1}, {0, 2, 1, 3}, {0, 3, 1, 2}, {0, 1, 3, 2}, {0, 2, 3, 1}}) {
    rings.push_back({.servers = order, .share = 1.0 / 6});
  }
  GroupLayout layout{4, rings};
  LinkSet links;
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      if (i != j) links.push_back({i, j, 1.0});
    }
  }
  const size_t bytes = size_t{1} << 30;
  const Request request{Collective::kAllReduce, bytes, 0, true};
  const double unknown_s = CostEstimate(layout, kModel).seconds(request, Algorithm::kTree);
  layout.setLinks(links);
  const CostEstimate estimate{layout, kModel};
  // a server sends up and down at least what three links carry
  const double least_s = 2.0 * 3 / 4 * static_cast<double>(bytes) / 3 * kModel.beta_s_per_byte;
  EXPECT_GE(estimate.seconds(request, Algorithm::kTree), least_s);
  EXPECT_GT(estimate.seconds(request, Algorithm::kTree), unknown_s);
  EXPECT_NE(estimate.choose(request, std::nullopt), Algorithm::kTree);
}

TEST(ForcedChoice, AllRingsOfAGroupWithOneAreThatRing) {
  CostModel fast_tree = kModel;
  fast_tree.all_reduce = {{"tree", 64 << 20, 1e-3}, {"ring", 64 << 20, 1.0}};
  const GroupLayout one_ring{4, {{.servers = {0, 1, 2, 3}}}};
  const CostEstimate estimate{one_ring, fast_tree};
  const Request request{Collective::kAllReduce, 64 << 20, 0, true};
  EXPECT_EQ(estimate.choose(request, std::nullopt), Algorithm::kTree);
  EXPECT_EQ(estimate.choose(request, Algorithm::kMultiRing), Algorithm::kRing);
}

TEST(ForcedChoice, AGroupSaysWhatItNeverTakes) {
  const GroupLayout one_way{4, {{.servers = {0, 1, 2, 3}}}};
  const CostEstimate lacking{one_way, kModel};
  EXPECT_NE(lacking.whyNever(Algorithm::kTorus), "");
  EXPECT_NE(lacking.whyNever(Algorithm::kBothWays), "");
  for (const Algorithm some :
       {Algorithm::kRing, Algorithm::kMultiRing, Algorithm::kTree, Algorithm::kDoubling}) {
    EXPECT_EQ(lacking.whyNever(some), "");
  }
  const GroupLayout both{4, {{{0, 1, 2, 3}, 0.5}, {{0, 3, 2, 1}, 0.5}}, {}, {}, {{0, 1}, {2, 3}}};
  const CostEstimate has_both{both, kModel};
  EXPECT_EQ(has_both.whyNever(Algorithm::kTorus), "");
  EXPECT_EQ(has_both.whyNever(Algorithm::kBothWays), "");
}

TEST_F(Choice, TheChosenAlgorithmIsNeverEstimatedSlowerThanAnother) {
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce, Collective::kAllGather,
        Collective::kReduceScatter, Collective::kBarrier}) {
    for (size_t bytes = 1; bytes < (size_t{1} << 31); bytes *= 8) {
      const Request request{collective, bytes, 0, true};
      const double best_s = estimate_.seconds(request, estimate_.choose(request, std::nullopt));
      for (const Algorithm algorithm : estimate_.candidates(request)) {
        const double s = estimate_.seconds(request, algorithm);
        EXPECT_GT(s, 0.0);
        EXPECT_TRUE(std::isfinite(s));
        EXPECT_LE(best_s, s) << nameOf(collective) << " " << bytes << " " << nameOf(algorithm);
      }
    }
  }
}

TEST_F(Choice, EstimatesOfManyBytesComeNearTheBoundOfTheLinks) {
  const size_t bytes = size_t{1} << 30;
  const double bound_s = 2.0 * 11 / 12 * static_cast<double>(bytes) * 1e-8 / 4;
  const double s =
      estimate_.seconds({Collective::kAllReduce, bytes, 0, true}, Algorithm::kMultiRing);
  EXPECT_GE(s, bound_s);
  EXPECT_LE(s, 1.2 * bound_s);
}

// As many links as ranks in a large cluster have, and a gradient of 1 GiB in several schedules.
TEST(BusyBytes, GrowWithTheStepsThatAScheduleHas) {
  std::vector<plan::Ring> rings(8, {{}, 0.125});
  for (int i = 0; i < 128; ++i) {
    for (int r = 0; r < 8; ++r) rings[r].servers.push_back(i * (2 * r + 1) % 128);
  }
  const size_t small = 4 << 20;
  const size_t least = 16 << 20;
  const size_t most = 256 << 20;
  ScheduleCache cache(GroupLayout(128, rings), 5, plan::CostModel{}, std::nullopt);
  const size_t busy = cache.busyBytes(least, most);
  EXPECT_EQ(busy, size_t{64 << 20});
  EXPECT_EQ(cache.busyBytes(least, least), least);
  ScheduleCache few(GroupLayout(4, {{{0, 1, 2, 3}, 1.0}}), 0, plan::CostModel{}, std::nullopt);
  EXPECT_EQ(few.busyBytes(least, most), least);
  // Rounds of messages that wait for one another, and the smallest message.
  const auto cost = [&](size_t piece_bytes) {
    const auto prepared = cache.build({Collective::kAllReduce, {piece_bytes / 4}, {}, 4, 0, true},
                                      Algorithm::kMultiRing);
    size_t smallest = SIZE_MAX;
    for (const Lane& lane : prepared->schedule.lanes) {
      for (const Send& send : lane.sends) smallest = std::min(smallest, send.from.bytes);
    }
    return std::pair((size_t{1} << 30) / piece_bytes * 2 * 127, smallest);
  };
  EXPECT_EQ(cost(small), std::pair(size_t{256 * 254}, size_t{4 << 10}));
  EXPECT_EQ(cost(busy), std::pair(size_t{16 * 254}, size_t{64 << 10}));
}

TEST(AlgorithmNames, AnUnknownOneIsRefusedWithTheKnownOnes) {
  try {
    algorithmNamed("fast");
    FAIL() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "TOPOOPT_ALGORITHM: 'fast' is not one of auto, ring, multi_ring, both_ways, tree, "
                 "doubling, torus, swing, breadth_first, packing, flooding, one_shot");
  }
  EXPECT_EQ(algorithmNamed("auto"), std::nullopt);
}

TEST(ScheduleCache, KeepsWhatIsAskedForAgainAndForgetsTheOldest) {
  ScheduleCache cache(GroupLayout(12, fourRings()), 0, kModel, std::nullopt);
  const auto key = [](size_t count) {
    return ScheduleKey{Collective::kAllReduce, {count}, {}, 4, 0, true};
  };
  const auto first = cache.get(key(1));
  EXPECT_EQ(cache.get(key(1)), first);
  EXPECT_NE(cache.get(key(2)), first);
  for (size_t count = 3; count < 60; ++count) cache.get(key(count));
  EXPECT_EQ(cache.get(key(1)), first);  // the last ones are kept
  for (size_t count = 100; count < 300; ++count) cache.get(key(count));
  EXPECT_EQ(first.use_count(), 1);  // only here any more
}

TEST(ScheduleCache, BoundsTheStepsItKeeps) {
  ScheduleCache cache(GroupLayout(12, fourRings()), 0, kModel, Algorithm::kMultiRing);
  std::vector<std::shared_ptr<const PreparedSchedule>> all;
  size_t steps = 0;
  for (size_t count = 0; count < 40; ++count) {
    all.push_back(cache.get({Collective::kAllReduce, {(256 << 20) + count}, {}, 4, 0, true}));
    steps += all.back()->steps;
  }
  ASSERT_GT(steps, 2u * (64 << 10));
  size_t kept = 0;
  for (const auto& prepared : all) kept += prepared.use_count() > 1 ? prepared->steps : 0;
  EXPECT_LE(kept, size_t{64 << 10});
}

TEST(ScheduleCache, KeepsTheSizesOfATrainingLoopOfAThousandMembers) {
  std::vector<plan::Ring> rings(4, {{}, 0.25});
  for (int i = 0; i < 1024; ++i) {
    for (int r = 0; r < 4; ++r) rings[r].servers.push_back(i * (2 * r + 1) % 1024);
  }
  ScheduleCache cache(GroupLayout(1024, rings), 5, kModel, Algorithm::kMultiRing);
  std::vector<std::shared_ptr<const PreparedSchedule>> first;
  const auto bucket = [&](size_t i) {
    return cache.get({Collective::kAllReduce, {(6 << 20) + i}, {}, 4, 0, true});
  };
  for (size_t i = 0; i < 10; ++i) first.push_back(bucket(i));
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(bucket(i), first[i]) << i;
}

}  // namespace
}  // namespace topoopt
