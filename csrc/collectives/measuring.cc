#include "collectives/measuring.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/algorithm_timing.h"

namespace topoopt {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kRepeats = 6;
constexpr size_t kReducedElements = 32 << 10;

// An untimed call first uses up the burst that links allow after a pause (a token bucket).
constexpr size_t kMostBurstBytes = 64 << 10;

// A measurement group with one all_reduce algorithm. It ends with this object.
class Probe {
 public:
  Probe(std::shared_ptr<Endpoint> endpoint, GroupConfig config, Algorithm algorithm,
        uint32_t channel, std::chrono::milliseconds limit)
      : limit_(limit) {
    config.name = "for measuring";
    config.channel = channel;
    config.segment_fd = -1;  // measure links, not memory
    config.algorithm = nameOf(algorithm);
    group_ = Group::open(std::move(endpoint), std::move(config));
  }
  ~Probe() { group_->shutdown(); }

  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  // Sums `data` over all members `repeats` times. Returns the shortest time between two consecutive
  // completions, which includes no thread wake-up.
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
    for (auto& future : futures) future.wait();  // wait for all, because they use this stack frame
    for (auto& future : futures) future.get();
    double least_s = std::numeric_limits<double>::infinity();
    for (size_t i = 1; i < repeats; ++i) {
      least_s = std::min(least_s, std::chrono::duration<double>(ends[i] - ends[i - 1]).count());
    }
    return least_s;
  }

  // Returns the seconds of a blocking all_reduce, after one warm-up call.
  double secondsOfCall(std::vector<double>& data) {
    std::vector<double> burst(std::min(data.size(), kMostBurstBytes / sizeof(double)), 0.0);
    sum(burst, 1);
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

// One probe per candidate algorithm. All members run at once, because members share processors,
// links pass bursts and phases wait for each other; a model would miss that.
class CandidateProbes {
 public:
  // `averages` sums over all members.
  CandidateProbes(const std::shared_ptr<Endpoint>& endpoint, const GroupConfig& config,
                  Probe& averages, uint32_t first_channel, std::chrono::milliseconds limit)
      : averages_(averages),
        members_(static_cast<double>(config.ranks.size())),
        open_([=, channel = first_channel](Algorithm algorithm) mutable {
          return std::make_unique<Probe>(endpoint, config, algorithm, channel++, limit);
        }) {}

  // A RoundTimer: algorithms alternate, so that background load affects them equally. Times are
  // means over all members.
  std::vector<std::vector<double>> rounds(const std::vector<Algorithm>& algorithms, size_t bytes,
                                          size_t count) {
    for (const Algorithm algorithm : algorithms) {
      std::unique_ptr<Probe>& probe = probes_[algorithm];
      if (!probe) probe = open_(algorithm);
    }
    std::vector<double> data(bytes / sizeof(double), 0.0);
    std::vector<double> seconds;
    for (size_t round = 0; round < count; ++round) {
      for (const Algorithm algorithm : algorithms) {
        seconds.push_back(probes_.at(algorithm)->secondsOfCall(data));
      }
    }
    averages_.sum(seconds, 1);
    std::vector<std::vector<double>> found(algorithms.size());
    for (size_t i = 0; i < seconds.size(); ++i) {
      found[i % algorithms.size()].push_back(seconds[i] / members_);
    }
    return found;
  }

 private:
  Probe& averages_;
  const double members_;
  std::function<std::unique_ptr<Probe>(Algorithm)> open_;
  std::map<Algorithm, std::unique_ptr<Probe>> probes_;
};

}  // namespace

// An all_reduce of a few bytes is 2 (g - 1) sequential messages along one ring. Along R rings,
// every step handles R messages on each member.
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
  CandidateProbes probes(endpoint, config, one_ring, kFirstProbeChannel + 2, limit);
  model.all_reduce = timeAlgorithms(estimate, std::bind_front(&CandidateProbes::rounds, &probes));
  return model;
}

}  // namespace topoopt
