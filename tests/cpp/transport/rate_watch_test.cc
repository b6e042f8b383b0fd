// A connection is slow where its system says that the network is what is waited for, and only
// there.

#include "transport/rate_watch.h"

#include <gtest/gtest.h>

namespace topoopt {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kLook{200};

// A connection whose counters move from look to look.
class Connection {
 public:
  // In the next 200 ms: bytes are acknowledged at `rate` (per second) for the `busy` part of the
  // time.
  std::optional<double> look(double rate, double busy = 1.0, double blocked = 0.0,
                             bool idle_lately = false) {
    change = {};
    now_ += kLook;
    const auto part = [](double share) {
      return std::chrono::duration_cast<microseconds>(share * kLook);
    };
    counters_.busy += part(busy);
    counters_.blocked += part(blocked);
    counters_.acknowledged_bytes += static_cast<uint64_t>(rate * busy * 0.2);
    counters_.idle_lately = idle_lately;
    counters_.waits_in_network = waits_in_network;
    const double segments = rate * busy * 0.2 / 1000;
    counters_.segments += static_cast<uint32_t>(segments);
    counters_.lost += static_cast<uint32_t>(segments * lost_part);
    counters_.interface->sent_bytes += static_cast<uint64_t>((rate * busy + others_send) * 0.2);
    counters_.received_bytes += static_cast<uint64_t>(receives * 0.2);
    counters_.interface->received_bytes += static_cast<uint64_t>((receives + others_receive) * 0.2);
    const auto found = watch.look(counters_, now_, usual_elsewhere);
    if (!found) return std::nullopt;
    change = *found;
    return found->speed;
  }

  // The first speed that is reported in so many looks.
  std::optional<double> lookOften(int times, double rate, double busy = 1.0, double blocked = 0.0,
                                  bool idle_lately = false) {
    for (int i = 0; i < times; ++i) {
      if (const auto speed = look(rate, busy, blocked, idle_lately)) return speed;
    }
    return std::nullopt;
  }

  void distrust() { EXPECT_LT(watch.distrust(now_), 0.01); }

  void replace() {
    counters_ = {.interface = InterfaceTraffic{}};
    watch.restart();
  }

  RateWatch watch;
  RateWatch::Change change{};
  double usual_elsewhere = 0;
  double lost_part = 0;
  bool waits_in_network = false;
  double receives = 0;  // bytes a second
  double others_send = 0;
  double others_receive = 0;

 private:
  SendProgressCounters counters_{.interface = InterfaceTraffic{}};
  RateWatch::Clock::time_point now_{};
};

TEST(RateWatch, ATenthOfTheRateIsNoticedWithinASecond) {
  Connection connection;
  EXPECT_EQ(connection.lookOften(10, 1e6), std::nullopt);
  const auto speed = connection.lookOften(4, 1e5);
  ASSERT_TRUE(speed);
  EXPECT_NEAR(*speed, 0.1, 1e-6);
}

TEST(RateWatch, AWindowThatIsFullOfWhatWaitsInTheNetworkIsNoExcuse) {
  Connection connection;
  EXPECT_EQ(connection.lookOften(10, 1e6), std::nullopt);
  EXPECT_EQ(connection.lookOften(10, 1e5, 1.0, 0.4), std::nullopt);  // the neighbour reads little
  connection.waits_in_network = true;
  const auto speed = connection.lookOften(6, 1e5, 1.0, 0.4);
  ASSERT_TRUE(speed);
  EXPECT_NEAR(*speed, 0.1, 1e-6);
}

// Several connections of one link, whose counters move from look to look.
class Connections {
 public:
  explicit Connections(size_t number) : counters_(number), progress_(number) {}

  // In the next 200 ms: each carries at its rate (per second), busy for as long.
  std::optional<double> look(const std::vector<double>& rates, double blocked = 0.0) {
    now_ += kLook;
    std::vector<std::optional<SendProgressCounters>> all;
    for (size_t i = 0; i < rates.size(); ++i) {
      counters_[i].busy += rates[i] > 0 ? kLook : milliseconds{0};
      counters_[i].blocked += std::chrono::duration_cast<microseconds>(blocked * kLook);
      counters_[i].acknowledged_bytes += static_cast<uint64_t>(rates[i] * 0.2);
      counters_[i].segments += static_cast<uint32_t>(rates[i] * 0.2 / 1000);
      counters_[i].idle_lately = rates[i] == 0;
      all.emplace_back(counters_[i]);
    }
    const auto found = watch.look(progress_.add(all), now_);
    return found ? std::optional(found->speed) : std::nullopt;
  }
  std::optional<double> lookOften(int times, const std::vector<double>& rates,
                                  double blocked = 0.0) {
    for (int i = 0; i < times; ++i) {
      if (const auto speed = look(rates, blocked)) return speed;
    }
    return std::nullopt;
  }
  void replace(size_t connection) { counters_[connection] = {}; }

  RateWatch watch;

 private:
  std::vector<SendProgressCounters> counters_;
  JointProgress progress_;
  RateWatch::Clock::time_point now_{};
};

TEST(JointRates, ALinkIsSlowWhenAllItsConnectionsCarryLittleTogether) {
  Connections link(3);
  EXPECT_EQ(link.lookOften(10, {5e5, 3e5, 2e5}), std::nullopt);
  EXPECT_EQ(link.watch.bestBytesPerSecond(), 1e6);
  const auto speed = link.lookOften(4, {5e4, 3e4, 2e4});
  ASSERT_TRUE(speed);
  EXPECT_NEAR(*speed, 0.1, 1e-6);
}

TEST(JointRates, WhatOneCarriesInPlaceOfAnotherIsNoEvidence) {
  Connections link(2);
  EXPECT_EQ(link.lookOften(10, {5e5, 5e5}), std::nullopt);
  EXPECT_EQ(link.lookOften(10, {1e6, 0}), std::nullopt);
  EXPECT_EQ(link.lookOften(10, {5e4, 9.5e5}), std::nullopt);
  EXPECT_EQ(link.lookOften(10, {5e4, 5e4}, 0.5), std::nullopt) << "the neighbour has no room";
}

TEST(JointRates, ANewConnectionAddsWhatItCarriesAndTakesNothingAway) {
  Connections link(2);
  EXPECT_EQ(link.lookOften(10, {5e5, 5e5}), std::nullopt);
  link.replace(0);
  EXPECT_EQ(link.lookOften(10, {5e5, 5e5}), std::nullopt);
  EXPECT_NEAR(link.watch.bestBytesPerSecond(), 1e6, 1.0);
}

TEST(RateWatch, FluctuationsAreNotSlow) {
  Connection connection;
  EXPECT_EQ(connection.lookOften(5, 1e6), std::nullopt);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(connection.lookOften(3, 2e5), std::nullopt);
    EXPECT_EQ(connection.look(3e5), std::nullopt);
  }
}

TEST(RateWatch, SmallMessagesPausesAndSlowNeighboursAreNoEvidence) {
  Connection connection;
  EXPECT_EQ(connection.lookOften(5, 1e6), std::nullopt);
  EXPECT_EQ(connection.lookOften(50, 1e4, 0.8), std::nullopt) << "not busy all the time";
  EXPECT_EQ(connection.lookOften(50, 1e4, 0.0), std::nullopt);
  EXPECT_EQ(connection.lookOften(50, 1e4, 1.0, 0.5), std::nullopt) << "the neighbour has no room";
  EXPECT_EQ(connection.lookOften(50, 1e4, 1.0, 0.0, true), std::nullopt) << "small messages";
}

TEST(RateWatch, AShortBurstIsNoRate) {
  Connection connection;
  EXPECT_EQ(connection.lookOften(20, 1e7, 0.1), std::nullopt);
  EXPECT_EQ(connection.lookOften(20, 1e6), std::nullopt) << "a tenth of the burst's rate";
}

TEST(RateWatch, ABurstBetweenPausesIsNoRate) {
  Connection connection;
  EXPECT_EQ(connection.lookOften(5, 1e6), std::nullopt);
  EXPECT_EQ(connection.look(8e6, 0.6), std::nullopt);
  EXPECT_EQ(connection.lookOften(20, 1e6), std::nullopt) << "an eighth of the burst's rate";
  EXPECT_EQ(connection.watch.bestBytesPerSecond(), 1e6);
}

TEST(RateWatch, AConnectionThatIsSlowFromTheBeginningIsComparedWithOthers) {
  Connection connection;
  EXPECT_EQ(connection.lookOften(50, 1e5), std::nullopt) << "nothing is known of others";
  connection.usual_elsewhere = 1e6;
  const auto speed = connection.lookOften(5, 1e5);
  ASSERT_TRUE(speed);
  EXPECT_NEAR(*speed, 0.1, 1e-6);
  EXPECT_EQ(connection.change.usual, 1e6);
  EXPECT_EQ(connection.change.lost_part, 0.0);
}

TEST(RateWatch, OneThatLosesPacketsIsSlowThoughItIsIdleNowAndThen) {
  Connection connection;
  EXPECT_EQ(connection.lookOften(10, 1e6), std::nullopt);
  EXPECT_EQ(connection.lookOften(50, 1e5, 0.6, 0.0, true), std::nullopt) << "nothing is lost";
  connection.lost_part = 0.1;
  const auto speed = connection.lookOften(8, 1e5, 0.6, 0.0, true);
  ASSERT_TRUE(speed);
  EXPECT_NEAR(*speed, 0.1, 0.01);
  EXPECT_GT(connection.change.lost_part, 0.03);
}

TEST(RateWatch, LostPacketsThatCostLittleAreNoReason) {
  Connection connection;
  connection.lost_part = 0.1;
  EXPECT_EQ(connection.lookOften(50, 1e6), std::nullopt);
  EXPECT_EQ(connection.lookOften(50, 4e5), std::nullopt);
  EXPECT_EQ(connection.lookOften(50, 1e5, 0.1), std::nullopt) << "hardly busy";
  connection.lost_part = 0.02;
  EXPECT_EQ(connection.lookOften(50, 1e5, 0.8, 0.0, true), std::nullopt)
      << "as where it is congested";
}

TEST(RateWatch, ASlowConnectionIsTriedAnewEverLater) {
  Connection connection;
  connection.lookOften(5, 1e6);
  int before = 0;
  for (int attempt = 0; attempt < 4; ++attempt) {
    ASSERT_NE(connection.lookOften(10, 1e5), std::nullopt);
    int looks = 0;
    std::optional<double> speed;
    while (!speed && looks < 10000) {
      speed = connection.look(1e5, 0.2);
      ++looks;
    }
    EXPECT_EQ(speed, 1.0);
    EXPECT_GT(looks, before);
    before = looks;
  }
  EXPECT_EQ(connection.lookOften(50, 9e5), std::nullopt) << "it is as it was";
}

TEST(RateWatch, ACableThatCarriesPacketsOfOthersIsNotSlow) {
  for (double Connection::* const others :
       {&Connection::others_send, &Connection::others_receive}) {
    Connection connection;
    EXPECT_EQ(connection.lookOften(10, 1e6), std::nullopt);
    EXPECT_FALSE(connection.watch.isCrowded());
    connection.*others = 9e5;
    connection.lost_part = 0.1;  // as where a queue is full
    EXPECT_EQ(connection.lookOften(20, 1e5), std::nullopt);
    EXPECT_TRUE(connection.watch.isCrowded());
    connection.*others = 0;
    connection.lost_part = 0;
    EXPECT_NE(connection.lookOften(4, 1e5), std::nullopt) << "nobody else uses it";
    EXPECT_FALSE(connection.watch.isCrowded());
  }
}

TEST(RateWatch, WhatTheNeighbourSendsOnTheSameConnectionIsNoCrowd) {
  Connection connection;
  connection.receives = 1e6;
  EXPECT_EQ(connection.lookOften(10, 1e6), std::nullopt);
  EXPECT_NE(connection.lookOften(4, 1e5), std::nullopt);
}

TEST(RateWatch, AFewPacketsOfOthersAreNoCrowd) {
  Connection connection;
  connection.others_send = connection.others_receive = 1e5;
  EXPECT_EQ(connection.lookOften(10, 1e6), std::nullopt);
  EXPECT_NE(connection.lookOften(4, 1e5), std::nullopt);
}

TEST(RateWatch, ADistrustedConnectionIsTriedAnewEverLater) {
  Connection connection;
  connection.lookOften(5, 1e6);
  int before = 0;
  for (int attempt = 0; attempt < 3; ++attempt) {
    connection.distrust();
    int looks = 1;
    while (connection.look(0, 0.0) != 1.0 && looks < 10000) ++looks;
    EXPECT_GT(looks, before);
    before = looks;
  }
}

TEST(RateWatch, ANewConnectionOfTheCableIsComparedWithTheOldOne) {
  Connection connection;
  EXPECT_EQ(connection.lookOften(10, 1e6), std::nullopt);
  connection.replace();
  EXPECT_NE(connection.lookOften(6, 1e5), std::nullopt);
}

}  // namespace
}  // namespace topoopt
