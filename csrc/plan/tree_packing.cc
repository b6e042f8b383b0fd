#include "plan/tree_packing.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "plan/integer_links.h"
#include "plan/weighted_trees.h"

namespace topoopt {
namespace {

constexpr int64_t kMostUnits = int64_t{1} << 20;     // of a shard
constexpr int64_t kMostMultiple = int64_t{1} << 10;  // of all numbers of shards
constexpr int64_t kMostMemory = int64_t{1} << 26;    // numbers of units in all flows
// Small slack makes the last trees of large networks quick to build.
constexpr int kMostExactServers = 512;
constexpr int64_t kSlack = 64;

// Shards over their greatest common divisor.
std::vector<int> withoutDivisor(std::vector<int> shards) {
  int divisor = 0;
  for (const int number : shards) divisor = std::gcd(divisor, number);
  for (int& number : shards) number /= std::max(divisor, 1);
  return shards;
}

int64_t multipleOf(const std::vector<int>& shards) {
  int64_t multiple = 1;
  for (const int number : shards) {
    if (number > 0) multiple = std::lcm(multiple, int64_t{number});
    if (multiple > kMostMultiple) {
      throw std::invalid_argument("shards: numbers with a common multiple above " +
                                  std::to_string(kMostMultiple));
    }
  }
  return multiple;
}

// The units that each link may carry, out of `trees` a shard. Rounded up, so that they exist.
std::vector<int64_t> capacities(const IntegerLinks& links, const SlowestCut& cut, int64_t trees) {
  std::vector<int64_t> capacity;
  for (const int64_t rate : links.rate) {
    int64_t most = (trees * cut.shards * rate + cut.rate - 1) / cut.rate;
    if (links.servers > kMostExactServers) most += most / kSlack;
    capacity.push_back(most);
  }
  return capacity;
}

// Sorts pieces as GatherPlan does, after joining those that differ in their interval only.
void arrange(std::vector<Piece>& pieces) {
  const auto key = [](const Piece& piece) {
    return std::tuple(piece.step, piece.origin, piece.sender, piece.first);
  };
  std::sort(pieces.begin(), pieces.end(),
            [&](const Piece& a, const Piece& b) { return key(a) < key(b); });
  std::vector<Piece> joined;
  for (const Piece& piece : pieces) {
    if (!joined.empty() && joined.back().step == piece.step &&
        joined.back().origin == piece.origin && joined.back().sender == piece.sender &&
        joined.back().end == piece.first) {
      joined.back().end = piece.end;
    } else {
      joined.push_back(piece);
    }
  }
  std::sort(joined.begin(), joined.end(), [](const Piece& a, const Piece& b) {
    return std::tuple(a.step, a.origin, a.first) < std::tuple(b.step, b.origin, b.first);
  });
  pieces = std::move(joined);
}

GatherPlan planOfTrees(const IntegerLinks& links, std::vector<WeightedTree> trees,
                       const std::vector<int>& shards, int64_t multiple, int64_t units) {
  std::stable_sort(trees.begin(), trees.end(), [](const WeightedTree& a, const WeightedTree& b) {
    return a.number < b.number;
  });
  GatherPlan plan;
  plan.units = static_cast<int32_t>(units);
  plan.received.resize(links.servers);
  std::vector<int32_t> end(links.servers, 0);
  for (const WeightedTree& tree : trees) {
    plan.steps = std::max(plan.steps, tree.height());
    const int32_t first = end[tree.root];
    end[tree.root] += static_cast<int32_t>(tree.weight * multiple / shards[tree.root]);
    for (int v = 0; v < links.servers; ++v) {
      if (v == tree.root) continue;
      plan.received[v].push_back(
          {tree.root, links.source[tree.via[v]], first, end[tree.root], tree.depth[v] - 1});
    }
  }
  for (auto& pieces : plan.received) arrange(pieces);
  return plan;
}

}  // namespace

GatherPlan packTrees(int servers, const std::vector<RatedLink>& links,
                     const std::vector<int>& shards) {
  const IntegerLinks merged(servers, links);
  const std::vector<int> numbers = withoutDivisor(shards);
  const SlowestCut cut = slowestCut(merged, numbers);
  if (servers * static_cast<int64_t>(servers + merged.count()) > kMostMemory) {
    throw std::invalid_argument("servers: " + std::to_string(servers) + " with " +
                                std::to_string(merged.count()) +
                                " links are too many for a packing of trees");
  }
  // The shards of a root are one shard of a plan, which has a part of it in every tree.
  const int64_t multiple = multipleOf(numbers);
  const int64_t trees = std::min(cut.rate, kMostUnits / multiple);
  std::vector<int64_t> capacity = capacities(merged, cut, trees);
  std::vector<int64_t> units(numbers.begin(), numbers.end());
  for (int64_t& number : units) number *= trees;
  std::vector<WeightedTree> built = builtTrees(merged, capacity, std::move(units));
  makeShallow(merged, capacity, built);
  return planOfTrees(merged, std::move(built), numbers, multiple, trees * multiple);
}

}  // namespace topoopt
