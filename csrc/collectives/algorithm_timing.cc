#include "collectives/algorithm_timing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace topoopt {
namespace {

// Timed sizes grow by kGrowth while an all_reduce takes little time. Beyond the largest one, time
// grows linearly with the bytes.
constexpr size_t kLeastBytes = 1 << 10;
constexpr size_t kMostBytes = 1 << 20;
constexpr size_t kGrowth = 4;
constexpr double kLongest_s = 0.15;  // an all_reduce that is expected to take longer is not timed
constexpr double kRounds_s = 0.01;   // time budget of one size and algorithm
// Every candidate runs the first rounds, and those that may be the fastest run the rest. The median
// of three rounds tolerates one that is disturbed.
constexpr size_t kFirstRounds = 2;
constexpr size_t kLeastRounds = 3;
constexpr size_t kMostRounds = 5;
constexpr double kMayBeFastest = 1.5;  // times the shortest round of all
// A candidate that takes this many times as long as the fastest, and whose ratio grows, is dropped
// if it also sends more bytes.
constexpr double kHopeless = 2.0;
constexpr double kMoreBytes = 1.05;

struct TimedAlgorithm {
  Algorithm algorithm;
  std::vector<double> rounds{};  // at the current size
  double seconds = 0;            // median of the rounds; ratio: over the fastest
  double ratio = 0;

  double shortest() const { return *std::min_element(rounds.begin(), rounds.end()); }
};

Request requestOf(size_t bytes) { return {Collective::kAllReduce, bytes, 0, true}; }

// Returns the lower median, because disturbances only make a round longer.
double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void runRounds(const std::vector<TimedAlgorithm*>& candidates, size_t bytes, size_t rounds,
               const RoundTimer& timer) {
  std::vector<Algorithm> algorithms;
  for (const TimedAlgorithm* candidate : candidates) algorithms.push_back(candidate->algorithm);
  const auto found = timer(algorithms, bytes, rounds);
  for (size_t i = 0; i < candidates.size(); ++i) {
    std::vector<double>& all = candidates[i]->rounds;
    all.insert(all.end(), found[i].begin(), found[i].end());
  }
}

// Returns the time of the fastest; `before_s` is that of the previous size (0 at the first).
double timeAll(std::vector<TimedAlgorithm>& candidates, size_t bytes, double before_s,
               const RoundTimer& timer) {
  std::vector<TimedAlgorithm*> running;
  for (TimedAlgorithm& candidate : candidates) {
    candidate.rounds.clear();
    running.push_back(&candidate);
  }
  runRounds(running, bytes, kFirstRounds, timer);
  double shortest_s = std::numeric_limits<double>::infinity();
  for (const TimedAlgorithm* candidate : running)
    shortest_s = std::min(shortest_s, candidate->shortest());
  std::erase_if(running, [&](const TimedAlgorithm* candidate) {
    return candidate->shortest() > kMayBeFastest * shortest_s;
  });
  if (running.size() > 1) {
    const double wanted = before_s > 0 ? std::round(kRounds_s / before_s) : kMostRounds;
    const auto rounds = static_cast<size_t>(std::clamp<double>(wanted, kLeastRounds, kMostRounds));
    runRounds(running, bytes, rounds - kFirstRounds, timer);
  }
  double fastest_s = std::numeric_limits<double>::infinity();
  for (TimedAlgorithm& candidate : candidates) {
    candidate.seconds = median(candidate.rounds);
    fastest_s = std::min(fastest_s, candidate.seconds);
  }
  return fastest_s;
}

void dropHopeless(std::vector<TimedAlgorithm>& candidates, double fastest_s,
                  const CostEstimate& estimate) {
  // predicted time when bytes dominate all other costs
  const auto endless = [&](const TimedAlgorithm& candidate) {
    return estimate.seconds(requestOf(size_t{1} << 40), candidate.algorithm);
  };
  double least_s = std::numeric_limits<double>::infinity();
  for (const TimedAlgorithm& candidate : candidates) {
    if (candidate.seconds == fastest_s) least_s = std::min(least_s, endless(candidate));
  }
  std::erase_if(candidates, [&](TimedAlgorithm& candidate) {
    const double before = std::exchange(candidate.ratio, candidate.seconds / fastest_s);
    return before > 0 && candidate.ratio > std::max(kHopeless, before) &&
           endless(candidate) > kMoreBytes * least_s;
  });
}

}  // namespace

std::vector<plan::AllReduceTime> timeAlgorithms(const CostEstimate& estimate,
                                                const RoundTimer& timer) {
  std::vector<TimedAlgorithm> candidates;
  for (const Algorithm algorithm : estimate.candidates(requestOf(kLeastBytes))) {
    candidates.push_back({algorithm});
  }
  std::vector<plan::AllReduceTime> times;
  if (candidates.size() < 2) return times;
  double before_s = 0;
  for (size_t bytes = kLeastBytes; bytes <= kMostBytes; bytes *= kGrowth) {
    const std::vector<Algorithm> can = estimate.candidates(requestOf(bytes));
    std::erase_if(candidates, [&](const TimedAlgorithm& candidate) {
      return std::find(can.begin(), can.end(), candidate.algorithm) == can.end();
    });
    const double fastest_s = timeAll(candidates, bytes, before_s, timer);
    for (const TimedAlgorithm& candidate : candidates) {
      times.push_back({nameOf(candidate.algorithm), bytes, candidate.seconds});
    }
    dropHopeless(candidates, fastest_s, estimate);
    if (candidates.size() < 2 || fastest_s * kGrowth > kLongest_s) break;
    before_s = fastest_s;
  }
  return times;
}

}  // namespace topoopt
