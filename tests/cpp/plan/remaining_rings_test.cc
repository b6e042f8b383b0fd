// Rings over what is left of a network: valid, over links that there are, and never slower than
// rings that keep their shares.

#include "plan/remaining_rings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "support/seed.h"

namespace topoopt {
namespace {

int oneHop(int, int) { return 1; }

// Servers 0..n-1 with cables to s + stride, and rings along each stride, both ways.
struct Circulant {
  explicit Circulant(int size, const std::vector<int>& strides) : size(size) {
    for (const int stride : strides) {
      std::vector<int> order;
      for (int i = 0; i < size; ++i) order.push_back(i * stride % size);
      const double share = 0.5 / static_cast<double>(strides.size());
      rings.push_back({order, share});
      rings.push_back({{order.rbegin(), order.rend()}, share});
      for (int i = 0; i < size; ++i) {
        links.push_back({i, (i + stride) % size});
        links.push_back({(i + stride) % size, i});
      }
    }
  }

  std::vector<LinkLeft> without(const std::vector<std::pair<int, int>>& cables) const {
    std::vector<LinkLeft> left = links;
    std::erase_if(left, [&](const LinkLeft& link) {
      return std::any_of(cables.begin(), cables.end(), [&](const auto& cable) {
        return cable == std::pair(link.source, link.target) ||
               cable == std::pair(link.target, link.source);
      });
    });
    return left;
  }

  // Of the intact network's throughput.
  double throughput(const std::vector<LinkLeft>& left) const {
    return busiestLink(rings, links) / busiestLink(remainingRings(rings, oneHop, left), left);
  }

  int size;
  std::vector<plan::Ring> rings;
  std::vector<LinkLeft> links;
};

bool connected(int size, const std::vector<LinkLeft>& links) {
  std::set<int> found{0};
  for (size_t before = 0; before != found.size();) {
    before = found.size();
    for (const LinkLeft& link : links) {
      if (found.contains(link.source)) found.insert(link.target);
    }
  }
  return static_cast<int>(found.size()) == size;
}

TEST(RemainingRings, ARingOfTwoThatIsLostLeavesThreeQuarters) {
  for (const int size : {8, 12, 16}) {
    const Circulant network(size, {1, size == 12 ? 5 : 3});
    // Two servers have three of their four cables: no rings can do more than 3/4.
    EXPECT_GE(network.throughput(network.without({{0, 1}})), 0.75 - 1e-6) << size;
    EXPECT_LE(network.throughput(network.without({{0, 1}})), 0.75 + 1e-6) << size;
  }
}

TEST(RemainingRings, ASlowLinkKeepsTheShareThatItCarries) {
  const Circulant network(8, {1, 3});
  std::vector<LinkLeft> slow = network.links;
  slow[0].rate = 0.1;
  EXPECT_GE(network.throughput(slow), 0.77);  // 3.1 / 4
  // In a single ring there is no other way than along the slow link, or the other way around.
  const Circulant ring(6, {1});
  slow = ring.links;
  slow[0].rate = 0.1;
  EXPECT_GE(ring.throughput(slow), 0.54);  // 1.1 / 2
}

TEST(RemainingRings, ARingWithoutAnotherWayIsALine) {
  const Circulant network(6, {1});
  EXPECT_NEAR(network.throughput(network.without({{2, 3}})), 0.5, 1e-6);
}

TEST(RemainingRings, WhatIsNotTouchedStays) {
  const Circulant network(8, {1, 3});
  EXPECT_EQ(remainingRings(network.rings, oneHop, network.links), network.rings);
  // Rings along one stride do not use the cables of the other.
  const std::vector<plan::Ring> some(network.rings.begin(), network.rings.begin() + 2);
  EXPECT_EQ(remainingRings(some, oneHop, network.without({{0, 3}})), some);
}

TEST(RemainingRings, AreValidAndNeverSlowerThanShortDetours) {
  TestRandom random(801);
  for (size_t round = 0; round < 60; ++round) {
    const int size = static_cast<int>(random.between(2, 20));
    std::vector<int> strides{1};
    for (int stride = 2; 2 * stride < size; ++stride) {
      if (std::gcd(stride, size) == 1 && random.chance(0.4)) strides.push_back(stride);
    }
    const Circulant network(size, strides);
    std::vector<LinkLeft> left = network.links;
    for (size_t lost = random.between(0, 4); lost > 0; --lost) {
      const LinkLeft gone = left[random.between(0, left.size() - 1)];
      std::vector<LinkLeft> fewer = left;
      std::erase_if(fewer, [&](const LinkLeft& link) {
        return std::minmax(link.source, link.target) == std::minmax(gone.source, gone.target);
      });
      if (connected(size, fewer)) left = fewer;
    }
    if (random.chance(0.3)) left[random.between(0, left.size() - 1)].rate = 0.2;
    const std::vector<plan::Ring> rings = remainingRings(network.rings, oneHop, left);
    double sum = 0;
    for (const plan::Ring& ring : rings) {
      std::vector<int> order = ring.servers;
      std::sort(order.begin(), order.end());
      std::vector<int> all(static_cast<size_t>(size));
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(order, all);
      EXPECT_GT(ring.share, 0);
      sum += ring.share;
    }
    EXPECT_NEAR(sum, 1, 1e-9);
    EXPECT_LE(rings.size(), network.rings.size() + 2);
    EXPECT_LE(busiestLink(rings, left), busiestLink(network.rings, left) * (1 + 1e-9))
        << "size " << size << ", round " << round;
    EXPECT_EQ(remainingRings(network.rings, oneHop, left), rings);
  }
}

}  // namespace
}  // namespace topoopt
