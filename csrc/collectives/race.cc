#include "collectives/race.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace topoopt {
namespace {

// Sizes grow by kGrowth, as long as they take little time; beyond the last size a straight line
// will do, for then bytes are what all_reduces take their time for.
constexpr size_t kLeastBytes = 1 << 10;
constexpr size_t kMostBytes = 1 << 20;
constexpr size_t kGrowth = 4;
constexpr double kLongest_s = 0.15;  // an all_reduce that is expected to take longer is not timed
constexpr double kRounds_s = 0.01;   // of one size and algorithm
// All run the first rounds, and those that may be the fastest run the others: of two rounds one may
// be disturbed, and of three the median is still one that is not.
constexpr size_t kFirstRounds = 2;
constexpr size_t kLeastRounds = 3;
constexpr size_t kMostRounds = 5;
constexpr double kContender = 1.5;  // times the shortest round of all
// What takes that many times as long as the fastest, ever more, and has more bytes to send, is not
// timed any more.
constexpr double kHopeless = 2.0;
constexpr double kMoreBytes = 1.05;

struct Entrant {
  Algorithm algorithm;
  std::vector<double> rounds{};  // at the size that is timed
  double seconds = 0;            // there, and over the fastest
  double ratio = 0;

  double shortest() const { return *std::min_element(rounds.begin(), rounds.end()); }
};

Request requestOf(size_t bytes) { return {Collective::kAllReduce, bytes, 0, true}; }

// The lower one of an even number of them, for what disturbs a round makes it longer.
double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void runRounds(const std::vector<Entrant*>& entrants, size_t bytes, size_t rounds,
               const RoundTimer& timer) {
  std::vector<Algorithm> algorithms;
  for (const Entrant* entrant : entrants) algorithms.push_back(entrant->algorithm);
  const auto found = timer(algorithms, bytes, rounds);
  for (size_t i = 0; i < entrants.size(); ++i) {
    std::vector<double>& all = entrants[i]->rounds;
    all.insert(all.end(), found[i].begin(), found[i].end());
  }
}

// Returns what the fastest takes; `before_s` is what the fastest took at the size before, 0 at the
// first one.
double timeAll(std::vector<Entrant>& entrants, size_t bytes, double before_s,
               const RoundTimer& timer) {
  std::vector<Entrant*> running;
  for (Entrant& entrant : entrants) {
    entrant.rounds.clear();
    running.push_back(&entrant);
  }
  runRounds(running, bytes, kFirstRounds, timer);
  double shortest_s = std::numeric_limits<double>::infinity();
  for (const Entrant* entrant : running) shortest_s = std::min(shortest_s, entrant->shortest());
  std::erase_if(running, [&](const Entrant* entrant) {
    return entrant->shortest() > kContender * shortest_s;
  });
  if (running.size() > 1) {
    const double wanted = before_s > 0 ? std::round(kRounds_s / before_s) : kMostRounds;
    const auto rounds = static_cast<size_t>(std::clamp<double>(wanted, kLeastRounds, kMostRounds));
    runRounds(running, bytes, rounds - kFirstRounds, timer);
  }
  double fastest_s = std::numeric_limits<double>::infinity();
  for (Entrant& entrant : entrants) {
    entrant.seconds = median(entrant.rounds);
    fastest_s = std::min(fastest_s, entrant.seconds);
  }
  return fastest_s;
}

void dropHopeless(std::vector<Entrant>& entrants, double fastest_s, const CostEstimate& estimate) {
  // by the model, of so many bytes that nothing else counts
  const auto endless = [&](const Entrant& entrant) {
    return estimate.seconds(requestOf(size_t{1} << 40), entrant.algorithm);
  };
  double least_s = std::numeric_limits<double>::infinity();
  for (const Entrant& entrant : entrants) {
    if (entrant.seconds == fastest_s) least_s = std::min(least_s, endless(entrant));
  }
  std::erase_if(entrants, [&](Entrant& entrant) {
    const double before = std::exchange(entrant.ratio, entrant.seconds / fastest_s);
    return before > 0 && entrant.ratio > std::max(kHopeless, before) &&
           endless(entrant) > kMoreBytes * least_s;
  });
}

}  // namespace

std::vector<plan::AllReduceTime> raceAllReduces(const CostEstimate& estimate,
                                                const RoundTimer& timer) {
  std::vector<Entrant> entrants;
  for (const Algorithm algorithm : estimate.candidates(requestOf(kLeastBytes))) {
    entrants.push_back({algorithm});
  }
  std::vector<plan::AllReduceTime> times;
  if (entrants.size() < 2) return times;
  double before_s = 0;
  for (size_t bytes = kLeastBytes; bytes <= kMostBytes; bytes *= kGrowth) {
    const std::vector<Algorithm> can = estimate.candidates(requestOf(bytes));
    std::erase_if(entrants, [&](const Entrant& entrant) {
      return std::find(can.begin(), can.end(), entrant.algorithm) == can.end();
    });
    const double fastest_s = timeAll(entrants, bytes, before_s, timer);
    for (const Entrant& entrant : entrants) {
      times.push_back({nameOf(entrant.algorithm), bytes, entrant.seconds});
    }
    dropHopeless(entrants, fastest_s, estimate);
    if (entrants.size() < 2 || fastest_s * kGrowth > kLongest_s) break;
    before_s = fastest_s;
  }
  return times;
}

}  // namespace topoopt
