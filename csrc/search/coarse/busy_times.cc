#include "search/coarse/busy_times.h"

#include <algorithm>

namespace topoopt {

namespace {

constexpr double kMargin = 1e-9;  // relative; rounding of some ten thousand terms is 1e-12

}  // namespace

BusyTimes::BusyTimes(PlacementCosts& costs, LinkLoadTable& loads)
    : costs_(costs),
      loads_(loads),
      loops_(laneLoops()),
      batches_(costs.job().micro_batches),
      stretch_(costs.job().stretch()),
      base_{std::vector<double>(padded(costs.job().servers)), std::vector<double>(loads.lanes())},
      sums_(base_) {
  clear();
  accept();
}

void BusyTimes::clear() {
  std::fill(sums_.server_s.begin(), sums_.server_s.end(), costs_.job().overhead_s * stretch_);
  std::fill(sums_.link_s.begin(), sums_.link_s.end(), 0.0);
  most_s_ = 0;
}

void BusyTimes::propose() {
  std::copy(base_.server_s.begin(), base_.server_s.end(), sums_.server_s.begin());
  std::copy(base_.link_s.begin(), base_.link_s.end(), sums_.link_s.begin());
  most_s_ = 0;
}

double BusyTimes::bound() const { return most_s_ * (1 - kMargin); }

void BusyTimes::compute(int op, int id, double times) {
  const ShardCost& cost = costs_.shard(op, id);
  const double seconds = (cost.forward_s + cost.backward_s) * batches_ * stretch_;
  if (seconds == 0) return;
  for (int server : costs_.placements()[id].servers) {
    double& sum = sums_.server_s[server];
    sum += seconds * times;
    if (times > 0) most_s_ = std::max(most_s_, sum);
  }
}

void BusyTimes::reduce(int op, int id, double times) {
  const double bytes = costs_.reducedBytes(op, id);
  if (bytes == 0) return;
  // The bucket, and so its links, are unknown here.
  if (!costs_.job().buckets.perOperator() && loads_.reductionsVary(id)) return;
  add(loads_.reductions(id, bytes), bytes * times);
}

void BusyTimes::send(const EdgeLoads* loads, double size_bytes, double gradient_bytes,
                     double times) {
  if (loads == nullptr) return;
  if (size_bytes > 0) add(loads->forward, size_bytes * batches_ * times);
  if (gradient_bytes > 0) add(loads->backward, gradient_bytes * batches_ * times);
}

void BusyTimes::add(const LinkLoads& loads, double bytes) {
  if (!loads.link.empty()) {
    for (size_t i = 0; i < loads.link.size(); ++i) {
      double& sum = sums_.link_s[loads.link[i]];
      sum += loads.s_per_byte[i] * bytes;
      if (bytes > 0) most_s_ = std::max(most_s_, sum);
    }
    return;
  }
  const double most_s =
      loops_.add(sums_.link_s.data(), loads.s_per_byte.data(), bytes, loads.s_per_byte.size());
  if (bytes > 0) most_s_ = std::max(most_s_, most_s);
}

}  // namespace topoopt
