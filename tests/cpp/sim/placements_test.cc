// Placements, a job's costs and an iteration with micro-batches, without Python.

#include "sim/iteration/placements.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "common/random.h"
#include "sim/iteration/iteration.h"
#include "sim/iteration/job.h"
#include "support/seed.h"

namespace topoopt {
namespace {

Placement placed(std::vector<int> servers, ParameterKind kind = ParameterKind::kNone,
                 int parameter = 1, int attribute = 1) {
  const int sample = static_cast<int>(servers.size()) / (parameter * attribute);
  return {std::move(servers), {sample, kind, parameter, attribute}};
}

double total(const std::vector<Transfer>& transfers) {
  return std::accumulate(transfers.begin(), transfers.end(), 0.0,
                         [](double sum, const Transfer& t) { return sum + t.fraction; });
}

TEST(PlacementsTest, TheSamePlacementHasOneNumberAndWrongOnesAreNamed) {
  Placements placements(4);
  const int id = placements.intern({2, 0, 1});
  EXPECT_EQ(placements[id].servers, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(placements.intern(placed({0, 1, 2})), id);
  EXPECT_NE(placements.intern(placed({2, 1, 0})), id);
  EXPECT_THROW(placements.intern(std::vector<int>{}), std::invalid_argument);
  EXPECT_THROW(placements.intern({0, 4}), std::invalid_argument);
  EXPECT_THROW(placements.intern({1, 1}), std::invalid_argument);
  EXPECT_THROW(placements.intern(placed({0, 1, 2}, ParameterKind::kRows, 2)),
               std::invalid_argument);
  EXPECT_THROW(placements.intern(placed({0, 1}, ParameterKind::kNone, 2)), std::invalid_argument);
}

TEST(PlacementsTest, ServersThatHoldTheSameParametersAreAGroup) {
  const auto groups = parameterGroups(placed({7, 3, 5, 1}, ParameterKind::kColumns, 2));
  EXPECT_EQ(groups, (std::vector<std::vector<int>>{{5, 7}, {1, 3}}));
}

TEST(PlacementsTest, RowsGivePartialSumsAndColumnsNeedEverything) {
  const Placement rows = placed({0, 1}, ParameterKind::kRows, 2);
  const Placement columns = placed({0, 1}, ParameterKind::kColumns, 2);
  const Placement samples = placed({0, 1});
  EXPECT_DOUBLE_EQ(total(transfersBetween(samples, needOf(samples, {}))), 1);
  EXPECT_DOUBLE_EQ(total(transfersBetween(rows, needOf(samples, {}))), 2);  // two partial sums
  EXPECT_DOUBLE_EQ(total(transfersBetween(samples, needOf(columns, {true, false}))), 2);  // to both
  EXPECT_DOUBLE_EQ(total(transfersBetween(rows, needOf(columns, {true, false}))), 4);
  for (const Transfer& transfer : transfersBetween(columns, needOf(rows, {}))) {
    EXPECT_EQ(transfer.source, transfer.target) << "what one makes is what the next one needs";
  }
}

TEST(PlacementsTest, WhoNeedsTheSameHasTheSameNumber) {
  Placements placements(4);
  const int samples = placements.intern({0, 1});
  const int columns = placements.intern(placed({0, 1}, ParameterKind::kColumns, 2));
  const int rows = placements.intern(placed({0, 1}, ParameterKind::kRows, 2));
  const int experts = placements.intern(placed({0, 1}, ParameterKind::kExperts, 2));
  const int turned = placements.intern(placed({1, 0}, ParameterKind::kColumns, 2));
  EXPECT_EQ(placements.need(samples, {true, true}), placements.need(samples, {}))
      << "nothing split";
  EXPECT_EQ(placements.need(columns, {true, false}), placements.need(experts, {true, true}));
  EXPECT_EQ(placements.need(columns, {}), placements.need(rows, {})) << "the same features";
  EXPECT_NE(placements.need(columns, {}), placements.need(experts, {})) << "tokens, not features";
  EXPECT_NE(placements.need(columns, {}), placements.need(turned, {}));
  EXPECT_NE(placements.need(columns, {}), placements.need(columns, {true, false}));
  EXPECT_NE(placements.need(columns, {}), placements.need(samples, {}));
}

Placement anyPlacement(Random& random, int servers) {
  std::vector<int> on(servers);
  std::iota(on.begin(), on.end(), 0);
  for (int i = servers; i > 1; --i) std::swap(on[i - 1], on[random.below(i)]);
  const int parameter = 1 + random.below(3);
  const int attribute = 1 + random.below(2);
  const int sample = 1 + random.below(servers / (parameter * attribute));
  on.resize(sample * parameter * attribute);
  const auto kind = static_cast<ParameterKind>(parameter > 1 ? 1 + random.below(3) : 0);
  return {on, {sample, kind, parameter, attribute}};
}

TEST(PlacementsTest, WhatIsSentIsCountedWithoutAList) {
  Random random(testSeed());
  for (int i = 0; i < 2000; ++i) {
    const Placement producer = anyPlacement(random, 8);
    const Need need = needOf(anyPlacement(random, 8), {random.below(2) > 0, random.below(2) > 0});
    int64_t sent = 0;
    for (const Transfer& t : transfersBetween(producer, need)) sent += t.source != t.target;
    ASSERT_EQ(sentBetween(producer, need), sent);
  }
}

TEST(JobTest, OperandsOfOneNumberAreOneTensor) {
  auto job = std::make_shared<Job>(Job{1, 1, {{}}, 0, {}, {}});
  for (int i = 0; i < 4; ++i) job->operators.emplace_back().shards.push_back({1.0, 2.0, 0, 0});
  job->operators[1].operands = {{0, 8, 0, 1}, {0, 8, 8}};
  job->operators[2].operands = {{0, 8, 8, 1}, {0, 4, 4, 2}};
  job->operators[3].operands = {{0, 8, 8}, {1, 8, 8, 1}};
  const PlacementCosts costs(job);
  std::vector<std::vector<int>> readers;
  for (const ReadTensor& tensor : costs.tensors()) {
    std::vector<int>& of_tensor = readers.emplace_back();
    for (const Reader& reader : tensor.readers) of_tensor.push_back(reader.op);
  }
  EXPECT_EQ(readers, (std::vector<std::vector<int>>{{1, 2}, {1}, {2}, {3}, {3}}));
  EXPECT_EQ(costs.tensors()[0].gradient_bytes, 8);
}

std::shared_ptr<Job> chain(int operators, int micro_batches) {
  auto job = std::make_shared<Job>(Job{operators, micro_batches, {{}}, 0, {}, {}});
  for (int i = 0; i < operators; ++i) {
    ShardedOperator& op = job->operators.emplace_back();
    op.shards.push_back({1.0, 2.0, 100, 10});
    if (i > 0) op.operands.push_back({i - 1, 1e-9, 1e-9});
  }
  return job;
}

TEST(JobTest, MemoryHoldsWhatOneForwardOneBackwardKeepsInFlight) {
  PlacementCosts costs(chain(3, 8));
  std::vector<int> line;
  for (int server = 0; server < 3; ++server) line.push_back(costs.placements().intern({server}));
  EXPECT_EQ(costs.inFlight(line), (std::vector<int>{3, 2, 1}));
  EXPECT_EQ(costs.memoryBytes(line), (std::vector<int64_t>{130, 120, 110}));
  EXPECT_THROW(costs.inFlight({line[0], line[1], line[0]}), std::invalid_argument);
  EXPECT_FALSE(costs.allowed(0, costs.placements().intern({0, 1})));
  EXPECT_THROW(costs.shard(0, costs.placements().intern({0, 1})), std::invalid_argument);
}

TEST(IterationTest, APipelineTakesTheSlotsOfItsMicroBatchesAndOfFillingIt) {
  for (const int stages : {1, 2, 4}) {
    for (const int micro_batches : {1, 2, 8}) {
      const auto job = chain(stages, micro_batches);
      auto network = std::make_shared<RoutedNetwork>(RoutedNetwork::idealSwitch(stages, 1e9, 0.0));
      IterationModel model(job, network);
      std::vector<int> line;
      for (int server = 0; server < stages; ++server) {
        line.push_back(model.placements().intern({server}));
      }
      // each slot is a forward of 1 s and a backward of 2 s of one micro-batch
      EXPECT_NEAR(model.run(line), 3.0 * (micro_batches + stages - 1), 1e-6);
      EXPECT_NEAR(model.computeSeconds(), 3.0 * micro_batches, 1e-9);
    }
  }
}

}  // namespace
}  // namespace topoopt
