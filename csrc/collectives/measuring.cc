#include "collectives/measuring.h"

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>
#include <list>
#include <utility>
#include <vector>

namespace topoopt {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kRepeats = 6;
constexpr size_t kReducedElements = 32 << 10;

// All_reduces are timed at sizes that grow by kGrowth, as long as they take little time; beyond the
// last size a straight line will do, for then bytes are what they take their time for.
constexpr size_t kLeastBytes = 1 << 10;
constexpr size_t kMostBytes = 1 << 20;
constexpr size_t kGrowth = 8;
constexpr double kLongest_s = 0.15;  // an all_reduce that is expected to take longer is not timed
constexpr double kRounds_s = 0.01;   // of one size and algorithm
constexpr size_t kLeastRounds = 1;
constexpr size_t kMostRounds = 5;
// What takes that many times as long as the fastest, ever more, and has more bytes to send, is not
// timed any more.
constexpr double kHopeless = 2.0;
constexpr double kMoreBytes = 1.05;

// A group for measuring, whose all_reduce is by one algorithm. It ends with this object.
class Probe {
 public:
  Probe(std::shared_ptr<Endpoint> endpoint, GroupConfig config, Algorithm algorithm,
        uint32_t channel, std::chrono::milliseconds limit)
      : limit_(limit) {
    config.name = "for measuring";
    config.channel = channel;
    config.segment_fd = -1;  // links are what is measured
    config.algorithm = nameOf(algorithm);
    group_ = Group::open(std::move(endpoint), std::move(config));
  }
  ~Probe() { group_->shutdown(); }

  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  // Sums `data` over all members, `repeats` times in a row; returns the shortest time from the end
  // of one to the end of the next, between which no thread has to be woken.
  double sum(std::vector<double>& data, size_t repeats) {
    std::vector<Clock::time_point> ends(repeats);
    std::vector<std::promise<void>> promises(repeats);
    std::vector<std::future<void>> futures;
    for (auto& promise : promises) futures.push_back(promise.get_future());
    for (size_t i = 0; i < repeats; ++i) {
      group_->allReduce(data.data(), data.size(), DataType::kFloat64, ReduceOp::kSum, limit_,
                        [end = &ends[i], promise = &promises[i]](std::exception_ptr error) {
                          *end = Clock::now();
                          if (error) return promise->set_exception(error);
                          promise->set_value();
                        });
    }
    for (auto& future : futures) future.wait();  // for all, for they use what is on this stack
    for (auto& future : futures) future.get();
    double least_s = std::numeric_limits<double>::infinity();
    for (size_t i = 1; i < repeats; ++i) {
      least_s = std::min(least_s, std::chrono::duration<double>(ends[i] - ends[i - 1]).count());
    }
    return least_s;
  }

  // Seconds of an all_reduce that a caller waits for, after one that is not counted: it takes what
  // links let through at once after a pause (the burst of a token bucket).
  double secondsOfCall(std::vector<double>& data) {
    sum(data, 1);
    const auto begin = Clock::now();
    sum(data, 1);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

 private:
  const std::chrono::milliseconds limit_;
  std::shared_ptr<Group> group_;
};

double reduceSecondsPerByte() {
  std::vector<float> target(kReducedElements, 1.f);
  const std::vector<float> operand(kReducedElements, 1.f);
  double least_s = 1.0;
  for (int i = 0; i < 3; ++i) {
    const auto begin = Clock::now();
    reduceInto(DataType::kFloat32, ReduceOp::kSum, target.data(), operand.data(), kReducedElements);
    least_s = std::min(least_s, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return least_s / static_cast<double>(kReducedElements * sizeof(float));
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Times all_reduces of the whole group by every algorithm that it can take, with all members at
// work at once: what they take where members share processors, links pass bursts and phases wait
// for each other is measured, and not modelled.
class Race {
 public:
  // `averages` sums over all members.
  Race(const std::shared_ptr<Endpoint>& endpoint, const GroupConfig& config,
       const CostEstimate& estimate, Probe& averages, uint32_t first_channel,
       std::chrono::milliseconds limit)
      : averages_(averages), estimate_(estimate), members_(config.ranks.size()) {
    for (const Algorithm algorithm : estimate.candidates(requestOf(kLeastBytes))) {
      entrants_.emplace_back(algorithm, endpoint, config, first_channel++, limit);
    }
  }

  std::vector<plan::AllReduceTime> run() {
    std::vector<plan::AllReduceTime> times;
    if (entrants_.size() < 2) return times;
    double before_s = 0;
    for (size_t bytes = kLeastBytes; bytes <= kMostBytes; bytes *= kGrowth) {
      dropThoseThatCannot(bytes);
      const double fastest_s = timeAll(bytes, before_s);
      for (const Entrant& entrant : entrants_) {
        times.push_back({nameOf(entrant.algorithm), bytes, entrant.seconds});
      }
      dropHopeless(fastest_s);
      if (entrants_.size() < 2 || fastest_s * kGrowth > kLongest_s) break;
      before_s = fastest_s;
    }
    return times;
  }

 private:
  struct Entrant {
    Entrant(Algorithm entered, std::shared_ptr<Endpoint> endpoint, const GroupConfig& config,
            uint32_t channel, std::chrono::milliseconds limit)
        : algorithm(entered), probe(std::move(endpoint), config, entered, channel, limit) {}

    const Algorithm algorithm;
    Probe probe;
    double seconds = 0;  // at the size that was timed last, and over the fastest there
    double ratio = 0;
    std::vector<double> rounds{};
  };

  static Request requestOf(size_t bytes) { return {Collective::kAllReduce, bytes, 0, true}; }

  void dropThoseThatCannot(size_t bytes) {
    const std::vector<Algorithm> can = estimate_.candidates(requestOf(bytes));
    entrants_.remove_if([&](const Entrant& entrant) {
      return std::find(can.begin(), can.end(), entrant.algorithm) == can.end();
    });
  }

  void dropHopeless(double fastest_s) {
    double least_s = std::numeric_limits<double>::infinity();
    for (const Entrant& entrant : entrants_) {
      if (entrant.seconds == fastest_s) least_s = std::min(least_s, endless(entrant.algorithm));
    }
    entrants_.remove_if([&](Entrant& entrant) {
      const double before = std::exchange(entrant.ratio, entrant.seconds / fastest_s);
      return before > 0 && entrant.ratio > std::max(kHopeless, before) &&
             endless(entrant.algorithm) > kMoreBytes * least_s;
    });
  }

  // By the model, of so many bytes that nothing else counts.
  double endless(Algorithm algorithm) const {
    return estimate_.seconds(requestOf(size_t{1} << 40), algorithm);
  }

  // Rounds in which algorithms take turns, so that other work on the host disturbs them alike.
  // Returns what the fastest takes, the mean of all members' medians.
  double timeAll(size_t bytes, double before_s) {
    std::vector<double> data(bytes / sizeof(double), 0.0);
    const double rounds = before_s > 0 ? kRounds_s / before_s : kMostRounds;
    const size_t count =
        static_cast<size_t>(std::clamp<double>(std::round(rounds), kLeastRounds, kMostRounds));
    for (size_t round = 0; round < count; ++round) {
      for (Entrant& entrant : entrants_) {
        entrant.rounds.push_back(entrant.probe.secondsOfCall(data));
      }
    }
    std::vector<double> sums;
    for (Entrant& entrant : entrants_) {
      sums.push_back(median(std::exchange(entrant.rounds, {})));
    }
    averages_.sum(sums, 1);
    double fastest_s = std::numeric_limits<double>::infinity();
    size_t next = 0;
    for (Entrant& entrant : entrants_) {
      entrant.seconds = sums[next++] / static_cast<double>(members_);
      fastest_s = std::min(fastest_s, entrant.seconds);
    }
    return fastest_s;
  }

  Probe& averages_;
  const CostEstimate& estimate_;
  const size_t members_;
  std::list<Entrant> entrants_;
};

}  // namespace

// Along one ring an all_reduce of a few bytes is 2 (g - 1) messages, one after the other; along R
// rings every step handles R messages on each member.
CostModel measureCost(std::shared_ptr<Endpoint> endpoint, GroupConfig config,
                      std::chrono::milliseconds limit) {
  const GroupLayout layout(static_cast<int>(config.ranks.size()), config.rings, config.servers,
                           config.hops, config.grid);
  CostModel model = config.cost;
  const std::vector<int>& order = layout.rings()[0].servers;
  if (order.size() < 2) return model;
  int hops = 1;
  for (size_t i = 0; i < order.size(); ++i) {
    hops = std::max(hops, layout.hops(order[i], order[(i + 1) % order.size()]));
  }
  const double steps = 2.0 * static_cast<double>(order.size() - 1);
  const size_t rings = layout.rings().size();
  std::vector<double> data(order.size() * rings, 0.0);
  Probe one_ring(endpoint, config, Algorithm::kRing, kFirstProbeChannel, limit);
  const double step_s = one_ring.sum(data, kRepeats) / steps;
  double alpha_s = step_s / 2;
  if (rings > 1) {
    Probe all_rings(endpoint, config, Algorithm::kMultiRing, kFirstProbeChannel + 1, limit);
    alpha_s = (all_rings.sum(data, kRepeats) / steps - step_s) / static_cast<double>(rings - 1);
  }
  alpha_s = std::clamp(alpha_s, step_s / 10, step_s * 9 / 10);
  std::vector<double> sums = {alpha_s, (step_s - alpha_s) / hops, reduceSecondsPerByte()};
  one_ring.sum(sums, 1);
  const double members = layout.size();
  model.alpha_s = sums[0] / members;
  model.per_hop_latency_s = sums[1] / members;
  model.gamma_s_per_byte = sums[2] / members;
  const CostEstimate estimate(layout, model);
  Race race(endpoint, config, estimate, one_ring, kFirstProbeChannel + 2, limit);
  model.all_reduce = race.run();
  return model;
}

}  // namespace topoopt
