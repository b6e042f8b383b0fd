// All-to-alls of unequal sizes over a ring of four, whose plan has one route for each pair.

#include "collectives/links/size_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "collectives/group/group.h"
#include "support/network.h"

namespace topoopt {
namespace {

constexpr int kSize = 4;

class UnequalAllToAlls : public testing::Test {
 protected:
  struct Exchange {
    std::vector<std::vector<size_t>> bytes{kSize, std::vector<size_t>(kSize)};
    std::vector<std::vector<std::byte>> sent{kSize};
    std::vector<std::vector<std::byte>> received{kSize};
    std::vector<Outcome> outcomes{kSize};

    size_t& from(int source, int target) { return bytes[source][target]; }
  };

  // With `byte_s`, an exchange of sizes pays from few bytes on, and a member waits long.
  void open(double byte_s) {
    for (int rank = 0; rank < kSize; ++rank) {
      GroupConfig config;
      config.name = "test";
      config.channel = 1;
      config.rank = rank;
      config.ranks = {0, 1, 2, 3};
      config.rings = {{{0, 1, 2, 3}, 1.0}};
      config.cost.beta_s_per_byte = byte_s;
      groups_.push_back(Group::open(network_.at(rank), config));
    }
  }

  ~UnequalAllToAlls() override {
    for (const auto& group : groups_) group->shutdown();
    for (const std::string& result : network_.leaveAll(kNoHurry)) EXPECT_EQ(result, "");
  }

  void start(Exchange& all, int rank) {
    std::vector<size_t> received;
    for (int source = 0; source < kSize; ++source) received.push_back(all.bytes[source][rank]);
    for (int target = 0; target < kSize; ++target) {
      all.sent[rank].insert(all.sent[rank].end(), all.bytes[rank][target],
                            static_cast<std::byte>(16 * rank + target));
    }
    all.received[rank].resize(std::accumulate(received.begin(), received.end(), size_t{0}));
    groups_[rank]->exchange(CallName::kAllToAllSingle, all.sent[rank].data(), all.bytes[rank],
                            all.received[rank].data(), received, kNoHurry,
                            all.outcomes[rank].done());
  }

  void check(Exchange& all, int rank) {
    ASSERT_EQ(all.outcomes[rank].wait("all_to_all"), "");
    std::vector<std::byte> right;
    for (int source = 0; source < kSize; ++source) {
      right.insert(right.end(), all.bytes[source][rank],
                   static_cast<std::byte>(16 * source + rank));
    }
    EXPECT_TRUE(all.received[rank] == right);
  }

  void run(Exchange& all) {
    for (int rank = 0; rank < kSize; ++rank) start(all, rank);
    for (int rank = 0; rank < kSize; ++rank) ASSERT_NO_FATAL_FAILURE(check(all, rank));
  }

  // Payload that the rank has sent to a neighbour so far, relayed or not.
  size_t sentTo(int rank, int neighbour) {
    size_t bytes = 0;
    for (const LinkTraffic& link : network_.at(rank)->traffic()) {
      if (link.target == neighbour) bytes += link.sent_bytes;
    }
    return bytes;
  }

  // Over both links of rank 0 alike, member 3 has no data.
  static Exchange skewed(size_t unit) {
    Exchange all;
    all.from(0, 1) = unit;
    all.from(0, 2) = 4 * unit;
    all.from(1, 0) = unit / 2;
    return all;
  }

  TestRandom random_{431};
  Network network_{{.size = kSize, .cables = ringOf(kSize), .recovers = true}, random_};
  std::vector<std::shared_ptr<Group>> groups_;
};

TEST_F(UnequalAllToAlls, LoadLinksAlike) {
  open(1e-3);
  Exchange all = skewed(100'000);
  run(all);
  for (const int neighbour : {1, 3}) {
    EXPECT_NEAR(static_cast<double>(sentTo(0, neighbour)), 250'000, 5'000) << neighbour;
  }
}

TEST_F(UnequalAllToAlls, TakeThePlannedRoutesWhereTheyTakeNoTime) {
  open(1e-9);
  Exchange all = skewed(100'000);
  run(all);
  const auto most = static_cast<double>(std::max(sentTo(0, 1), sentTo(0, 3)));
  EXPECT_GE(most, 400'000);
}

// Rank 1 waits for nobody, and the others send it nothing.
TEST_F(UnequalAllToAlls, DoNotWaitLongForALateMember) {
  open(1e-6);
  Exchange all;
  all.from(0, 2) = 400'000;
  all.from(3, 2) = 100'000;
  for (const int rank : {0, 2, 3}) start(all, rank);
  for (const int rank : {0, 2, 3}) ASSERT_NO_FATAL_FAILURE(check(all, rank));
  start(all, 1);
  check(all, 1);
}

TEST_F(UnequalAllToAlls, GoOnAfterALostCable) {
  open(1e-3);
  for (size_t call = 0; call < 3; ++call) {
    Exchange all = skewed(2'000'000);
    for (int rank = 0; rank < kSize; ++rank) start(all, rank);
    if (call == 1) network_.cut(0);
    for (int rank = 0; rank < kSize; ++rank) ASSERT_NO_FATAL_FAILURE(check(all, rank));
  }
  eventually("loss", [&] { return network_.lost(0); });
  network_.replace(0);
  eventually("replacement", [&] { return network_.up(0); });
  const size_t before = sentTo(0, 3);
  Exchange all = skewed(100'000);
  run(all);
  EXPECT_NEAR(static_cast<double>(sentTo(0, 3) - before), 250'000, 5'000);
}

TEST_F(UnequalAllToAlls, EndWithTheirGroup) {
  open(1e-3);
  Exchange all = skewed(100'000);
  for (const int rank : {0, 2}) start(all, rank);
  groups_[0]->abort("enough");
  for (const int rank : {0, 2}) {
    EXPECT_NE(all.outcomes[rank].wait("aborted").find("enough"), std::string::npos);
  }
}

}  // namespace
}  // namespace topoopt
