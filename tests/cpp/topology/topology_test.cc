// Hop counts against a plain breadth-first search; what the search over rings keeps.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/random.h"
#include "topology/hop_counts.h"
#include "topology/ring_search.h"

namespace topoopt {
namespace {

using Links = std::vector<std::pair<int, int>>;

std::vector<int> plainSearch(int servers, const Links& links, int source) {
  std::vector<int> hops(servers, -1), frontier{source};
  hops[source] = 0;
  while (!frontier.empty()) {
    std::vector<int> next;
    for (const int server : frontier) {
      for (const auto& [from, to] : links) {
        if (from != server || hops[to] >= 0) continue;
        hops[to] = hops[server] + 1;
        next.push_back(to);
      }
    }
    frontier = std::move(next);
  }
  return hops;
}

Links linksOf(const RingUnion& found) {
  Links links;
  const auto add = [&](int from, int to) {
    links.emplace_back(from, to);
    if (found.duplex) links.emplace_back(to, from);
  };
  for (const std::vector<int>& ring : found.rings) {
    for (size_t i = 0; i < ring.size(); ++i) add(ring[i], ring[(i + 1) % ring.size()]);
  }
  for (const auto& [from, to] : found.links) {
    if (from >= 0 && to >= 0) add(from, to);
  }
  return links;
}

std::vector<int> all(int servers) {
  std::vector<int> sources(servers);
  std::iota(sources.begin(), sources.end(), 0);
  return sources;
}

TEST(HopCounter, AgreesWithAPlainSearchAcrossWords) {
  Random random(1);
  HopCounter counter;
  for (const int servers : {1, 2, 7, 64, 65, 130}) {
    Links links;
    for (int i = 0; servers > 1 && i < 2 * servers; ++i) {
      const int from = random.below(servers), to = random.below(servers);
      if (from != to) links.emplace_back(from, to);
    }
    const InLinks in_links(servers, links);
    const std::vector<int16_t> matrix = counter.matrix(in_links);
    std::vector<int64_t> weights;
    HopSummary expected;
    int64_t weighted = 0, total = 0;
    for (int s = 0; s < servers; ++s) {
      const std::vector<int> hops = plainSearch(servers, links, s);
      for (int t = 0; t < servers; ++t) {
        ASSERT_EQ(matrix[s * servers + t], hops[t]);
        weights.push_back(random.below(5));
        weighted += weights.back() * std::max(0, hops[t]);
        if (s != t) total += weights.back();
        expected.unreachable += hops[t] < 0;
        expected.sum += std::max(0, hops[t]);
        expected.diameter = std::max(expected.diameter, hops[t]);
      }
    }
    const HopSummary found = counter.summary(in_links, all(servers));
    EXPECT_EQ(found.sum, expected.sum);
    EXPECT_EQ(found.diameter, expected.diameter);
    EXPECT_EQ(found.unreachable, expected.unreachable);
    EXPECT_EQ(counter.weightedSum(in_links, all(servers), weights),
              weighted + found.unreachable * total);
  }
}

RingUnion circulant(int servers, int symmetry, bool duplex, int rings) {
  RingUnion start{servers, symmetry, duplex, {}, {}};
  for (int i = 0, stride = 1; i < rings; ++stride) {
    if (std::gcd(stride, servers) != 1) continue;
    start.rings.emplace_back();
    for (int p = 0; p < servers; ++p) start.rings.back().push_back(p * stride % servers);
    ++i;
  }
  return start;
}

TEST(RingSearch, KeepsRingsAndSymmetryAndCountsWhatItFinds) {
  for (const bool duplex : {false, true}) {
    for (const int symmetry : {1, 4, 8, 24}) {
      // The stride 5 and 7 repeat after any number of servers that divides 24.
      RingSearch search(circulant(24, symmetry, duplex, 2), {}, 7);
      const int64_t before = search.cost();
      search.anneal(1000000, 20, 0.5);
      const RingUnion found = search.best();
      ASSERT_EQ(found.rings.size(), 2u);
      const int orbits = 24 / symmetry;
      for (std::vector<int> ring : found.rings) {
        for (int p = 0; symmetry > 1 && p < 24; ++p) {
          const int here = ring[p], there = ring[(p + orbits) % 24];
          EXPECT_EQ((there - here + 24) % 24, (ring[orbits] - ring[0] + 24) % 24);
        }
        std::sort(ring.begin(), ring.end());
        EXPECT_EQ(ring, all(24));
      }
      const HopSummary summary = HopCounter().summary(InLinks(24, linksOf(found)), all(24));
      EXPECT_EQ(summary.unreachable, 0);
      EXPECT_EQ(summary.sum, search.bestCost() * symmetry);
      EXPECT_LE(search.bestCost(), before);
    }
  }
}

TEST(RingSearch, KeepsGroupsAndTheNumberOfEndsOfEveryServer) {
  for (const bool duplex : {false, true}) {
    RingUnion start{9, 1, duplex, {{0, 1, 2, 3}, {3, 4, 5, 6, 7, 8}}, {{0, 5}, {1, 6}, {2, 7}}};
    start.links.emplace_back(4, -1);
    if (!duplex) start.links.emplace_back(-1, 8);
    std::vector<int64_t> weights(81, 1);
    weights[0 * 9 + 7] = 1000;
    RingSearch search(start, weights, 3);
    search.anneal(3000000, 200, 1);
    const RingUnion found = search.best();
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(std::is_permutation(found.rings[i].begin(), found.rings[i].end(),
                                      start.rings[i].begin(), start.rings[i].end()));
    }
    const auto ends = [&](const RingUnion& ringUnion) {
      std::vector<int> sent(9), received(9);
      for (const auto& [from, to] : ringUnion.links) {
        if (from >= 0) ++sent[from];
        if (to >= 0) ++(duplex ? sent : received)[to];
      }
      return std::make_pair(sent, received);
    };
    EXPECT_EQ(ends(found), ends(start));
    const Links links = linksOf(found);
    EXPECT_EQ(HopCounter().weightedSum(InLinks(9, links), all(9), weights), search.bestCost());
    EXPECT_NE(std::find(links.begin(), links.end(), std::make_pair(0, 7)), links.end());
  }
}

TEST(RingSearch, TheSameSeedAndWorkGiveTheSameUnion) {
  const auto run = [](uint64_t seed) {
    RingSearch search(circulant(30, 5, true, 2), {}, seed);
    search.anneal(400000, 10, 0.5);
    return std::make_pair(search.best().rings, search.accepted());
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(RingSearch, EndsWhenItsWorkIsDoneOrTheCostIsEnough) {
  // Servers of a ring of two ports are up to 32 hops apart, so a move costs many rounds of
  // counting.
  for (const int rings : {1, 2}) {
    RingSearch search(circulant(64, 1, true, rings), {}, 1);
    const int64_t first = search.operations();
    search.anneal(2000000, 10, 0.5);
    EXPECT_GE(search.operations() - first, 2000000);
    EXPECT_LT(search.operations() - first, 2000000 + 64 * 64 * 20);
  }
  RingSearch search(circulant(64, 1, true, 2), {}, 1);
  const int64_t first = search.operations();
  search.anneal(2000000, 10, 0.5, search.cost());
  EXPECT_EQ(search.operations(), first);
}

TEST(RingSearch, RefusesWhatIsNoUnionOfRings) {
  const auto refuse = [](RingUnion start, std::vector<int64_t> weights) {
    EXPECT_THROW(RingSearch(std::move(start), std::move(weights), 0), std::invalid_argument);
  };
  refuse({4, 1, true, {{0, 1, 1, 2}}, {}}, {});
  refuse({4, 1, true, {{0, 1, 2, 4}}, {}}, {});
  refuse({4, 3, true, {{0, 1, 2, 3}}, {}}, {});
  refuse({4, 2, true, {{0, 1, 3, 2}}, {}}, {});
  refuse({4, 1, true, {}, {}}, {});
  refuse({4, 1, true, {{0, 1, 2, 3}}, {{2, 2}}}, {});
  refuse({4, 1, true, {{0, 1, 2, 3}}, {}}, {1, 2, 3});
  RingSearch search(circulant(5, 1, true, 1), {}, 0);
  EXPECT_THROW(search.anneal(5, 1, 2), std::invalid_argument);
}

}  // namespace
}  // namespace topoopt
