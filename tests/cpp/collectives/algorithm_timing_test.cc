// The timing of all_reduces on a clock that is disturbed on purpose.

#include "collectives/algorithm_timing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "support/seed.h"

namespace topoopt {
namespace {

constexpr double kNoise = 0.1;  // the part by which a round that is not disturbed is off
constexpr CostModel kBytesModel{.beta_s_per_byte = 1e-8};

// Eight servers in a ring, both ways round.
GroupLayout eightServers() {
  return {8, {{{0, 1, 2, 3, 4, 5, 6, 7}, 0.5}, {{7, 6, 5, 4, 3, 2, 1, 0}, 0.5}}};
}

struct Line {
  double at_once_s, per_byte_s;
  double seconds(size_t bytes) const { return at_once_s + per_byte_s * static_cast<double>(bytes); }
};

// A clock for algorithms whose time is on a line. One round of each algorithm and size is disturbed
// to up to ten times its time; all others are off by up to kNoise.
class Clock {
 public:
  Clock(std::map<Algorithm, Line> lines, TestRandom& random)
      : lines_(std::move(lines)), random_(random) {}

  std::vector<std::vector<double>> rounds(const std::vector<Algorithm>& algorithms, size_t bytes,
                                          size_t count) {
    std::vector<std::vector<double>> found(algorithms.size());
    for (size_t i = 0; i < algorithms.size(); ++i) {
      State& state = states_[{algorithms[i], bytes}];
      if (state.rounds == 0) state.disturbed = random_.between(0, 4);
      for (size_t round = 0; round < count; ++round) {
        const double factor =
            state.rounds++ == state.disturbed ? among(1, 10) : among(1 - kNoise, 1 + kNoise);
        found[i].push_back(factor * lines_.at(algorithms[i]).seconds(bytes));
      }
    }
    return found;
  }
  size_t roundsOf(Algorithm algorithm, size_t bytes) { return states_[{algorithm, bytes}].rounds; }

 private:
  struct State {
    size_t rounds = 0, disturbed = 0;
  };
  double among(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_.engine());
  }

  const std::map<Algorithm, Line> lines_;
  TestRandom& random_;
  std::map<std::pair<Algorithm, size_t>, State> states_;
};

class AlgorithmTiming : public testing::Test {
 protected:
  std::vector<plan::AllReduceTime> run(Clock& clock) {
    return timeAlgorithms(estimate_, std::bind_front(&Clock::rounds, &clock));
  }

  GroupLayout layout_ = eightServers();
  CostEstimate estimate_{layout_, kBytesModel};
  TestRandom random_{601};
};

TEST_F(AlgorithmTiming, TheChoiceIsNearTheFastestWhileOneRoundInThreeIsDisturbed) {
  constexpr double kMost = (1 + kNoise) / (1 - kNoise);
  for (int instance = 0; instance < 300; ++instance) {
    std::map<Algorithm, Line> lines;
    for (const Algorithm algorithm :
         {Algorithm::kDoubling, Algorithm::kTree, Algorithm::kRing, Algorithm::kMultiRing}) {
      lines[algorithm] = {1e-5 * static_cast<double>(1 + random_.size(30)),
                          1e-8 * static_cast<double>(1 + random_.size(10))};
    }
    Clock clock(lines, random_);
    CostModel measured = kBytesModel;
    measured.all_reduce = run(clock);
    const CostEstimate estimate(layout_, measured);
    std::map<size_t, std::vector<Algorithm>> timed;
    for (const plan::AllReduceTime& time : measured.all_reduce) {
      timed[time.bytes].push_back(*algorithmNamed(time.algorithm));
    }
    ASSERT_GT(timed.size(), 1u);
    // at and between sizes; what was dropped before the larger of the two was twice as slow
    for (auto at = std::next(timed.begin()); at != timed.end(); ++at) {
      for (size_t bytes : {at->first, random_.between(std::prev(at)->first, at->first)}) {
        if (at->second.size() != timed.begin()->second.size()) break;
        const Algorithm chosen =
            estimate.choose({Collective::kAllReduce, bytes, 0, true}, std::nullopt);
        double least_s = lines.at(chosen).seconds(bytes);
        const double chosen_s = least_s;
        for (const Algorithm one : at->second) {
          least_s = std::min(least_s, lines.at(one).seconds(bytes));
        }
        EXPECT_LE(chosen_s, kMost * least_s * (1 + 1e-9)) << bytes << " B " << nameOf(chosen);
      }
    }
  }
}

TEST_F(AlgorithmTiming, OnlyThoseThatMayBeTheFastestRunMoreThanTwoRounds) {
  Clock clock({{Algorithm::kDoubling, {1e-3, 1e-9}},
               {Algorithm::kTree, {1.1e-3, 1e-9}},
               {Algorithm::kRing, {9e-3, 1e-9}},
               {Algorithm::kMultiRing, {9e-3, 1e-9}}},
              random_);
  const auto times = run(clock);
  EXPECT_EQ(times.front().bytes, 1024u);
  EXPECT_EQ(clock.roundsOf(Algorithm::kDoubling, 1024), 5u);
  EXPECT_EQ(clock.roundsOf(Algorithm::kTree, 1024), 5u);
  EXPECT_EQ(clock.roundsOf(Algorithm::kRing, 1024), 2u);
}

TEST_F(AlgorithmTiming, LongAllReducesAreTimedInThreeRoundsAndLongerOnesNotAtAll) {
  const Line line{25e-3, 5e-6};
  Clock clock({{Algorithm::kDoubling, line},
               {Algorithm::kTree, line},
               {Algorithm::kRing, line},
               {Algorithm::kMultiRing, line}},
              random_);
  const auto times = run(clock);
  EXPECT_EQ(times.back().bytes, 4096u);  // 45 ms, and four times that would be too much
  EXPECT_EQ(clock.roundsOf(Algorithm::kTree, 4096), 3u);
}

}  // namespace
}  // namespace topoopt
