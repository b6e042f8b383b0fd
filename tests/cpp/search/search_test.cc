// The search's own simulator and its limits, on random jobs: a change costs what the whole does.

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <set>
#include <vector>

#include "common/random.h"
#include "search/chains/metropolis_chain.h"
#include "search/coarse/coarse_simulator.h"
#include "search/coarse/lane_loops.h"
#include "search/strategies/limits.h"
#include "search/strategies/moves.h"
#include "support/seed.h"

namespace topoopt {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Servers in a ring of duplex cables, neighbours joined directly, others by the short way round.
RoutedNetwork ring(int servers) {
  std::vector<plan::LinkPorts> links;
  std::vector<plan::Route> routes;
  std::vector<int> order;
  for (int s = 0; s < servers; ++s) {
    links.push_back({s, 0, (s + 1) % servers, 0});
    links.push_back({(s + 1) % servers, 0, s, 0});
    order.push_back(s);
  }
  for (int a = 0; a < servers; ++a) {
    for (int b = 0; b < servers; ++b) {
      if (a == b) continue;
      const int step = (b - a + servers) % servers <= servers / 2 ? 1 : servers - 1;
      plan::Route route{{a}, 1.0};
      while (route.servers.back() != b) {
        route.servers.push_back((route.servers.back() + step) % servers);
      }
      routes.push_back(std::move(route));
    }
  }
  return RoutedNetwork(servers, links, 1e9, 1e-6, routes, {{order, {{order, 1.0}}}});
}

std::shared_ptr<const Job> randomJob(Random& random, int operators, int servers, int batches) {
  auto job = std::make_shared<Job>(Job{servers, batches, {}, 0, {}, {}});
  for (int k = 1; k <= servers; ++k) job->degrees.push_back({k, ParameterKind::kNone, 1, 1});
  job->degrees.push_back({1, ParameterKind::kColumns, 2, 1});
  for (int i = 0; i < operators; ++i) {
    ShardedOperator op{{}, random.below(2) ? 1e6 * random.unit() : 0, {}, false, {}};
    const double seconds = 1e-3 * random.unit();
    for (const Degrees& split : job->degrees) {
      const int shards = split.shards();
      op.shards.push_back({seconds / shards, 2 * seconds / shards, 1000, 1000 / shards});
    }
    if (i > 0) {
      const int producer = random.below(i);
      if (random.below(2)) {  // a tensor that others read too
        op.operands.push_back({producer, 5e5, random.below(4) ? 1e6 : 0, 1});
      } else {
        op.operands.push_back({producer, 1e6 * random.unit(), random.below(4) ? 1e6 : 0});
      }
    }
    job->operators.push_back(std::move(op));
  }
  return job;
}

Placement randomPlacement(Random& random, int servers) {
  std::vector<int> on;
  const int begin = random.below(servers);
  const int count = 1 + random.below(servers);
  for (int i = 0; i < count; ++i) on.push_back((begin + i) % servers);
  if (count == 2 && random.below(2)) return {on, {1, ParameterKind::kColumns, 2, 1}};
  return {on, {count, ParameterKind::kNone, 1, 1}};
}

TEST(CoarseSimulator, ChangesCostWhatWholeStrategiesCost) {
  for (int round = 0; round < 8; ++round) {
    Random random(testSeed() + round);
    const int servers = 2 + random.below(7);
    const auto job = randomJob(random, 2 + random.below(30), servers, 1);
    const RoutedNetwork network = ring(servers);
    CoarseSimulator changes(job, network);
    CoarseSimulator whole(job, network);
    Limits limits(changes.costs(), 1 << 20, 1000);
    Strategy current;
    for (size_t op = 0; op < job->operators.size(); ++op) {
      const Placement placement = randomPlacement(random, servers);
      current.push_back(changes.costs().placements().intern(placement));
      whole.costs().placements().intern(placement);
    }
    EXPECT_EQ(changes.run(current), whole.run(current));
    limits.start(current);
    for (int i = 0; i < 200; ++i) {
      Strategy proposal = current;
      std::vector<int> changed;
      for (size_t op = 0; op < proposal.size(); ++op) {
        if (random.below(8)) continue;
        const Placement placement = randomPlacement(random, servers);
        proposal[op] = changes.costs().placements().intern(placement);
        ASSERT_EQ(whole.costs().placements().intern(placement), proposal[op]);
        if (proposal[op] != current[op]) changed.push_back(static_cast<int>(op));
      }
      const double seconds = changes.propose(proposal, changed, kInfinity);
      ASSERT_EQ(seconds, whole.run(proposal));
      ASSERT_EQ(seconds, changes.propose(proposal, changed, seconds));  // not above what it may be
      ASSERT_GT(changes.propose(proposal, changed, seconds * 0.5),
                changed.empty() ? 0 : seconds / 2);
      const bool fits = limits.fits(proposal, changed);
      Limits fresh(whole.costs(), 1 << 20, 1000);
      ASSERT_EQ(fits, fresh.start(proposal));
      if (!fits || random.below(2)) continue;
      changes.propose(proposal, changed, kInfinity);
      changes.accept();
      limits.accept();
      current = proposal;
    }
    EXPECT_LE(changes.stepsSimulated(), changes.fullSteps());
  }
}

std::vector<double> randomTimes(Random& random, size_t n) {
  std::vector<double> times(n);
  for (double& time : times) time = random.below(3) ? random.unit() : 0;
  return times;
}

// Every loop, as wide as this processor has it, against the one that every processor has.
TEST(LaneLoops, AllProcessorsComputeTheSameNumbers) {
  Random random(testSeed());
  for (size_t n : {kBlock, 5 * kBlock, 9 * kBlock}) {
    const std::vector<double> terms = randomTimes(random, n), ready = randomTimes(random, n);
    std::vector<double> mask(n);
    for (double& entry : mask) entry = random.below(2) ? kInfinity : 0;
    const std::vector<double> before = randomTimes(random, n), later = randomTimes(random, n);
    const double at_s = random.unit();
    std::vector<std::vector<double>> results;
    for (const LaneLoops* loops : {&laneLoops(), &plainLaneLoops()}) {
      std::vector<double> a = before, b = later, done(n), scalars;
      loops->compute(done.data(), a.data(), ready.data(), mask.data(), at_s, n);
      loops->wait(b.data(), mask.data(), at_s, n);
      scalars.push_back(loops->transfer(a.data(), b.data(), terms.data(), 0.7, at_s, n));
      scalars.push_back(loops->reduce(b.data(), terms.data(), 0.3, at_s, n));
      scalars.push_back(loops->add(a.data(), terms.data(), -0.3, n));
      scalars.push_back(loops->latest(a.data(), mask.data(), n));
      scalars.push_back(loops->largest(b.data(), 0.5, n));
      for (const auto* more : {&b, &done, &scalars}) a.insert(a.end(), more->begin(), more->end());
      results.push_back(a);
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

TEST(LaneLoops, ATransferTakesOnlyTheLinksThatItLoads) {
  const size_t n = kBlock;
  std::vector<double> transfers(n, 1), all(n, 4), s_per_byte(n, 0);
  s_per_byte[2] = 0.5;
  // Link 2 is free of transfers at 1, the sender is ready at 3, and 4 bytes take 2 s.
  EXPECT_EQ(laneLoops().transfer(transfers.data(), all.data(), s_per_byte.data(), 4, 3, n), 5);
  EXPECT_EQ(laneLoops().reduce(all.data(), s_per_byte.data(), 2, 0, n), 7);
  for (size_t link = 0; link < n; ++link) {
    EXPECT_EQ(transfers[link], link == 2 ? 5 : 1);
    EXPECT_EQ(all[link], link == 2 ? 7 : 4);
  }
}

TEST(BusyTimes, NoIterationIsShorterThanItsBusiestServerOrLink) {
  for (int batches : {1, 3}) {
    Random random(testSeed() + batches);
    const auto job = randomJob(random, 10, 5, batches);
    CoarseSimulator simulator(job, ring(5));
    const Placement everywhere{{0, 1, 2, 3, 4}, {5, ParameterKind::kNone, 1, 1}};
    const Strategy start(10, simulator.costs().placements().intern(everywhere));
    simulator.run(start);
    int refused = 0;
    for (int i = 0; i < 300; ++i) {
      Strategy proposal = start;
      std::vector<int> changed;
      for (int op = 0; op < 10; ++op) {
        if (random.below(2)) continue;
        // With micro-batches, one stage: any other could wait for itself.
        const Placement placement = batches > 1 ? Placement{{4, 3, 2, 1, 0}, everywhere.degrees}
                                                : randomPlacement(random, 5);
        proposal[op] = simulator.costs().placements().intern(placement);
        if (proposal[op] != start[op]) changed.push_back(op);
      }
      const double seconds = simulator.propose(proposal, changed, kInfinity);
      const int64_t before = simulator.simulations();
      const double limit_s = seconds * (0.5 + 0.5 * random.unit());
      const double early_s = simulator.propose(proposal, changed, limit_s);
      ASSERT_GT(early_s, changed.empty() ? 0 : limit_s);
      ASSERT_LE(early_s, seconds);
      refused += !changed.empty() && simulator.simulations() == before;
    }
    EXPECT_GT(refused, 0);
  }
}

TEST(Cooling, BetaGrowsByTheSameFactorAndThenStays) {
  Cooling cooling(2);
  EXPECT_EQ(cooling.next(), 2);
  cooling.begin(3, 8);
  for (double beta : {2.0, 4.0, 8.0, 16.0, 16.0}) EXPECT_DOUBLE_EQ(cooling.next(), beta);
  EXPECT_THROW(cooling.begin(-1, 8), std::invalid_argument);
  EXPECT_THROW(cooling.begin(3, 0), std::invalid_argument);
  EXPECT_THROW(Cooling(0), std::invalid_argument);
}

TEST(Moves, OperatorsOfAKindGetWhatTheyHaveInAStartAndOthersStay) {
  Random random(testSeed());
  const auto job = randomJob(random, 12, 4, 4);
  PlacementCosts costs(job);
  const Placement everywhere{{0, 1, 2, 3}, {4, ParameterKind::kNone, 1, 1}};
  const Placement half{{0, 1}, {2, ParameterKind::kNone, 1, 1}};
  std::vector<int> kinds, even;
  for (int op = 0; op < 12; ++op) kinds.push_back(op % 2);
  for (int op = 0; op < 12; op += 2) even.push_back(op);
  const SearchSpace space{{everywhere, half}, {{{0, 1}}}, std::vector<int>(12, 0), kinds};
  Moves moves(costs, space, {std::vector<Placement>(12, half)});
  const Strategy before(12, costs.placements().intern(everywhere));
  bool found = false;
  std::vector<int> changed;
  for (int i = 0; i < 10000 && !found; ++i) {
    Strategy strategy = before;
    moves.propose(strategy, random, changed);
    found = changed == even;
  }
  EXPECT_TRUE(found);
}

// How many of 20 000 proposals give more operators what others a fixed distance away have than a
// repetition of a few does, where no two have the same.
int patternsMoved(bool in_a_row) {
  constexpr int kOperators = 40, kMoreThanAFew = 9;
  Random random(testSeed());
  auto job = std::make_shared<Job>(*randomJob(random, kOperators, kOperators, 1));
  std::vector<Placement> placements;
  PlacementGroups group(1);
  Strategy before;
  for (int op = 0; op < kOperators; ++op) {
    job->operators[op].operands.clear();
    if (in_a_row && op > 0) job->operators[op].operands.push_back({op - 1, 1e6, 1e6});
    placements.push_back({{op}, {1, ParameterKind::kNone, 1, 1}});
    group[0].push_back(op);
  }
  const std::vector<int> one_kind(kOperators, 0);
  PlacementCosts costs(job);
  Moves moves(costs, {placements, {group}, one_kind, one_kind}, {placements});
  for (const Placement& placement : placements) {
    before.push_back(costs.placements().intern(placement));
  }
  int found = 0;
  std::vector<int> changed;
  for (int i = 0; i < 20000; ++i) {
    Strategy strategy = before;
    moves.propose(strategy, random, changed);
    std::set<int> distances;
    for (int op : changed) distances.insert(strategy[op] - before[op]);
    found += changed.size() >= kMoreThanAFew && distances.size() == 1;
  }
  return found;
}

TEST(Moves, PatternsMoveInRowsOnly) {
  EXPECT_GT(patternsMoved(true), 0);
  EXPECT_EQ(patternsMoved(false), 0);
}

TEST(CoarseChain, GoesTheSameWayWhetherItSavesWorkOrNot) {
  Random random(testSeed());
  const auto job = randomJob(random, 12, 4, 4);
  SearchSpace space{{}, {PlacementGroups(1)}, std::vector<int>(12, 0), std::vector<int>(12, 0)};
  for (int i = 0; i < 40; ++i) {
    space.placements.push_back(randomPlacement(random, 4));
    space.spaces[0][0].push_back(i);
  }
  const std::vector<Placement> start(12, Placement{{0, 1, 2, 3}, {4, ParameterKind::kNone, 1, 1}});
  CoarseChain quick(std::make_unique<CoarseSimulator>(job, ring(4)), space, {start}, 1 << 30, 1000,
                    7, 10.0);
  CoarseChain whole(std::make_unique<CoarseSimulator>(job, ring(4)), space, {start}, 1 << 30, 1000,
                    7, 10.0);
  whole.pricing().simulateFully();
  quick.step(500);
  whole.step(500);
  EXPECT_EQ(quick.currentSeconds(), whole.currentSeconds());
  EXPECT_EQ(quick.bestSeconds(), whole.bestSeconds());
  EXPECT_EQ(quick.accepted(), whole.accepted());
  EXPECT_GT(quick.accepted(), 0);
}

}  // namespace
}  // namespace topoopt
