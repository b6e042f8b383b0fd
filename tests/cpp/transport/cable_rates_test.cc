// The rates of a rank's cables, whose links are not real. rate_watch_test.cc has the judgement of
// one connection, slow_cables_test.cc that of real ones.

#include "transport/endpoint/cable_rates.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "support/fake_links.h"

namespace topoopt {
namespace {

class RatesOfCables : public testing::Test {
 protected:
  RatesOfCables() {
    for (const auto& [spec, link] : fake_.links) rates_.add(spec, *link);
    rates_.joinConnections();
  }

  static std::vector<CableEnds> cables() {
    return {{{}, 0, 1}, {{}, 0, 2}, {{}, 0, 3, true, 0.0}};  // the last one over cables of others
  }

  FakeLinks fake_{0};
  Link& to_1_ = fake_.add(1, 0);
  Link& to_2_ = fake_.add(2, 1);
  Link& to_3_ = fake_.add(3, 2);
  CableGraph graph_{0, 4, cables(), {}};
  std::vector<std::pair<int, double>> reported_;
  CableRates rates_{graph_,
                    [this](int cable, double speed) { reported_.emplace_back(cable, speed); }};
};

TEST_F(RatesOfCables, AreReportedWhenTheyChange) {
  rates_.look(0);
  EXPECT_TRUE(reported_.empty());
  rates_.distrust(0, CableRates::Clock::now());
  EXPECT_TRUE(rates_.isSlow(0));
  EXPECT_FALSE(rates_.isSlow(1));
  rates_.trust(1);  // which was not slow
  ASSERT_EQ(reported_.size(), 1u);
  EXPECT_LT(reported_[0].second, 1.0);
  rates_.trust(0);
  EXPECT_FALSE(rates_.isSlow(0));
  EXPECT_EQ(reported_.back(), std::pair(0, 1.0));
}

TEST_F(RatesOfCables, DependOnWhoSharesTheInterface) {
  EXPECT_EQ(rates_.cablesAtInterfaceOf(0), 1);
  rates_.setInterface(0, 7);
  rates_.setInterface(1, 7);
  rates_.setInterface(2, 8);
  EXPECT_EQ(rates_.cablesAtInterfaceOf(0), 2);
  EXPECT_EQ(rates_.cablesAtInterfaceOf(2), 1);
  EXPECT_FALSE(rates_.isForwarded(0));
  EXPECT_TRUE(rates_.isForwarded(2));
}

}  // namespace
}  // namespace topoopt
