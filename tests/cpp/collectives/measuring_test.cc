// Measuring the cost model over small networks, and the scratch memory of a group.

#include "collectives/measuring.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <thread>

#include "collectives/links/link_group.h"
#include "support/group_steps.h"
#include "support/network.h"

namespace topoopt {
namespace {

std::vector<CostModel> measuredBy(Network& network, const std::vector<plan::Ring>& rings) {
  std::vector<CostModel> models(static_cast<size_t>(network.size()));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < network.size(); ++rank) {
    threads.emplace_back([&, rank] {
      GroupConfig config;
      config.rank = rank;
      config.ranks.resize(static_cast<size_t>(network.size()));
      std::iota(config.ranks.begin(), config.ranks.end(), 0);
      config.rings = rings;
      config.cost.beta_s_per_byte = 3e-9;
      models[rank] = measureCost(network.at(rank), config, kNoHurry);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return models;
}

TEST(Measuring, GivesAllMembersTheSameModelAndLeavesThePayloadCountersAlone) {
  TestRandom random(501);
  for (const auto& rings : {std::vector<plan::Ring>{{{0, 1, 2, 3}, 1.0}},
                            std::vector<plan::Ring>{{{0, 1, 2, 3}, 0.5}, {{3, 2, 1, 0}, 0.5}}}) {
    Network network({.size = 4, .cables = ringOf(4)}, random);
    const auto models = measuredBy(network, rings);
    for (const CostModel& model : models) {
      for (const double seconds :
           {model.alpha_s, model.per_hop_latency_s, model.gamma_s_per_byte}) {
        EXPECT_TRUE(std::isfinite(seconds) && seconds > 0) << seconds;
      }
      EXPECT_EQ(model.beta_s_per_byte, 3e-9);
      EXPECT_EQ(model.alpha_s, models[0].alpha_s);
      EXPECT_EQ(model.per_hop_latency_s, models[0].per_hop_latency_s);
      EXPECT_EQ(model.gamma_s_per_byte, models[0].gamma_s_per_byte);
      ASSERT_EQ(model.all_reduce.size(), models[0].all_reduce.size());
      for (size_t i = 0; i < model.all_reduce.size(); ++i) {
        EXPECT_EQ(model.all_reduce[i].algorithm, models[0].all_reduce[i].algorithm);
        EXPECT_EQ(model.all_reduce[i].seconds, models[0].all_reduce[i].seconds);
        EXPECT_GT(model.all_reduce[i].seconds, 0);
      }
    }
    std::set<std::string> at_least;  // at the smallest size all that there are are timed
    for (const plan::AllReduceTime& time : models[0].all_reduce) {
      if (time.bytes == models[0].all_reduce[0].bytes) at_least.insert(time.algorithm);
    }
    std::set<std::string> all = {"doubling", "tree", "ring"};
    if (rings.size() > 1) all.insert("multi_ring");
    EXPECT_EQ(at_least, all);
    for (int rank = 0; rank < 4; ++rank) {
      for (const LinkTraffic& link : network.at(rank)->traffic()) {
        EXPECT_EQ(link.sent_bytes, 0u);
        EXPECT_EQ(link.received_bytes, 0u);
        EXPECT_GT(link.overhead_bytes, 0u);
      }
    }
  }
}

TEST(Measuring, AGroupOnOneServerHasNothingToMeasure) {
  TestRandom random(502);
  Network network({.size = 1, .cables = {}}, random);
  const CostModel model = measuredBy(network, {{{0}, 1.0}})[0];
  EXPECT_EQ(model.alpha_s, CostModel{}.alpha_s);
}

class TwoMembers : public testing::Test {
 protected:
  void open(std::chrono::milliseconds scratch_idle) {
    for (int rank = 0; rank < 2; ++rank) {
      GroupConfig config;
      config.name = "test";
      config.channel = 1;
      config.rank = rank;
      config.ranks = {0, 1};
      config.rings = {{{0, 1}, 1.0}};
      config.algorithm = "ring";
      config.scratch_idle = scratch_idle;
      groups_.push_back(Group::open(network_.at(rank), config));
    }
  }
  void allReduce(size_t count) {
    std::vector<std::vector<float>> data(2, std::vector<float>(count, 1.f));
    std::vector<Outcome> outcomes(2);
    for (int rank = 0; rank < 2; ++rank) {
      groups_[rank]->allReduce(data[rank].data(), count, DataType::kFloat32, ReduceOp::kSum,
                               kNoHurry, outcomes[rank].done());
    }
    for (Outcome& outcome : outcomes) ASSERT_EQ(outcome.wait("all_reduce"), "");
    for (const auto& values : data) ASSERT_EQ(values, std::vector<float>(count, 2.f));
  }
  size_t scratchBytes(int member) {
    return dynamic_cast<LinkGroup&>(*groups_[member]).scratchBytes();
  }
  void TearDown() override {
    for (const auto& group : groups_) group->shutdown();
  }

  TestRandom random_{503};
  Network network_{{.size = 2, .cables = lineOf(2)}, random_};
  std::vector<std::shared_ptr<Group>> groups_;
};

TEST_F(TwoMembers, ScratchIsKeptBetweenOperationsAndNoLargerThanTheLargestNeeds) {
  open(std::chrono::minutes(10));
  allReduce(1 << 18);
  const size_t once = scratchBytes(0);
  EXPECT_GT(once, 0u);
  for (int i = 0; i < 20; ++i) allReduce((1 << 18) - static_cast<size_t>(i));
  EXPECT_EQ(scratchBytes(0), once);
  groups_[0]->shutdown();
  EXPECT_EQ(scratchBytes(0), 0u);
}

TEST_F(TwoMembers, IdleScratchIsFreed) {
  open(std::chrono::milliseconds(20));
  allReduce(1 << 18);
  const auto end = std::chrono::steady_clock::now() + kWaitLimit;
  while (scratchBytes(0) > 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), end);
    std::this_thread::yield();
  }
  allReduce(1 << 18);
}

TEST_F(TwoMembers, CountsTheBytesOfTheRing) {
  open(std::chrono::minutes(10));
  allReduce(1000);
  const auto counters = groups_[1]->counters();
  ASSERT_EQ(counters.size(), 5u);  // a ring, two trees, direct messages, and the graph
  EXPECT_EQ(counters[0].kind, "ring");
  EXPECT_EQ(counters[0].ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(counters[0].sent_bytes, 4000u);  // half in each phase
  EXPECT_GT(counters[0].seconds, 0.0);
  for (size_t i = 1; i < 5; ++i) EXPECT_EQ(counters[i].sent_bytes, 0u);
}

}  // namespace
}  // namespace topoopt
