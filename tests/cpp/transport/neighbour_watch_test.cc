// Neighbours that fall silent, whose links are not real.

#include "transport/endpoint/neighbour_watch.h"

#include <gtest/gtest.h>

#include <future>
#include <string>

#include "support/fake_links.h"
#include "support/test_limits.h"

namespace topoopt {
namespace {

class SilenceOfNeighbours : public testing::TestWithParam<Acknowledged> {
 protected:
  FakeLinks fake_{0};
  FakeLink& to_1_ = fake_.add(1);
  JobStatus status_;
  std::promise<std::string> failed_;
  NeighbourWatch watch_{std::chrono::milliseconds(80), fake_.reactor, fake_.links, status_,
                        [this](const std::string& why) {
                          status_.failure = why;
                          failed_.set_value(why);
                        }};
};

TEST_P(SilenceOfNeighbours, FailsTheJob) {
  fake_.reactor.run([&] {
    to_1_.answer = GetParam();
    watch_.start();
    ASSERT_FALSE(FakeLinks::take(to_1_).empty());  // a heartbeat
  });
  auto failed = failed_.get_future();
  ASSERT_EQ(failed.wait_for(kWaitLimit), std::future_status::ready);
  const std::string why = failed.get();
  const char* const what = GetParam() == Acknowledged::kNothing ? "unreachable" : "stopped";
  EXPECT_NE(why.find(what), std::string::npos) << why;
}

INSTANTIATE_TEST_SUITE_P(OfHostsThatAnswerOrNot, SilenceOfNeighbours,
                         testing::Values(Acknowledged::kNothing, Acknowledged::kAdvances));

TEST(NeighboursOnCables, AreNotWatched) {
  FakeLinks fake(0);
  Link& to_1 = fake.add(1, 0);
  JobStatus status;
  NeighbourWatch watch(std::chrono::milliseconds(80), fake.reactor, fake.links, status,
                       [](const std::string&) {});
  fake.reactor.run([&] {
    watch.start();
    EXPECT_TRUE(FakeLinks::take(to_1).empty());
  });
}

}  // namespace
}  // namespace topoopt
