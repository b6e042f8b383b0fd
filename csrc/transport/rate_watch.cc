#include "transport/rate_watch.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

namespace topoopt {
namespace {

// A quarter exceeds fluctuations and justifies other rings.
constexpr double kSlow = 0.25;
constexpr double kLeastSpeed = 0.001;
constexpr int kSlowLooks = 4;
// Fraction of time between checks: required busy time to measure a connection. To be slow, it must
// be busy all the time.
constexpr double kMeasurable = 0.5;
constexpr double kAllTheTime = 0.9;
constexpr double kUnblocked = 0.05;
// Congestion also loses a few packets, so losses are judged over several checks with a minimum of
// busy time. The neighbour's system acknowledges data even if the neighbour does not read it.
constexpr uint32_t kLongQueueUs = 20'000;
constexpr uint32_t kManyTimes = 10;  // multiple of the idle round trip
constexpr double kLossyPart = 0.03;
constexpr double kFewestLost = 3;
constexpr double kLossyBusy = 0.3;
constexpr int kLossyLooks = 2;
constexpr size_t kMostReadings = 6;
constexpr std::chrono::duration<double> kBurstsBusy{0.1};  // in total
constexpr std::chrono::seconds kFirstPause{10};
constexpr std::chrono::seconds kLongestPause{300};

}  // namespace

std::optional<SendProgressCounters> sendProgressOf(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  if (size < offsetof(tcp_info, tcpi_sndbuf_limited)) return std::nullopt;     // before Linux 4.10
  const bool counts_duplicates = size >= offsetof(tcp_info, tcpi_reord_seen);  // since Linux 4.19
  const uint32_t twice = counts_duplicates ? info.tcpi_dsack_dups : 0;
  const bool waits = info.tcpi_rtt > std::max(kLongQueueUs, kManyTimes * info.tcpi_min_rtt);
  return SendProgressCounters{
      .acknowledged_bytes = info.tcpi_bytes_acked,
      .busy = std::chrono::microseconds(info.tcpi_busy_time),
      .blocked = std::chrono::microseconds(info.tcpi_rwnd_limited),
      .segments = info.tcpi_data_segs_out,
      .lost = info.tcpi_total_retrans - std::min(twice, info.tcpi_total_retrans),
      .idle_lately = info.tcpi_delivery_rate_app_limited != 0 && !waits,
      .waits_in_network = waits,
      .received_bytes = info.tcpi_bytes_received,
  };
}

std::optional<SendProgressCounters> JointProgress::add(
    const std::vector<std::optional<SendProgressCounters>>& counters) {
  std::chrono::microseconds busy{}, unblocked{};
  bool any = false;
  sum_.idle_lately = true;
  sum_.waits_in_network = false;
  for (size_t i = 0; i < last_.size(); ++i) {
    if (!counters[i]) continue;
    const SendProgressCounters& now = *counters[i];
    const bool anew = now.acknowledged_bytes < last_[i].acknowledged_bytes ||
                      now.received_bytes < last_[i].received_bytes || now.busy < last_[i].busy ||
                      now.segments < last_[i].segments;
    const SendProgressCounters before = anew ? SendProgressCounters{} : last_[i];
    any = true;
    sum_.acknowledged_bytes += now.acknowledged_bytes - before.acknowledged_bytes;
    sum_.segments += now.segments - before.segments;
    sum_.lost += now.lost - std::min(before.lost, now.lost);  // some were spurious
    busy = std::max(busy, now.busy - before.busy);
    // The neighbour reads all connections or none, so the minimum counts as blocked by it.
    unblocked = std::max(unblocked, (now.busy - before.busy) - (now.blocked - before.blocked));
    sum_.idle_lately = sum_.idle_lately && now.idle_lately;
    sum_.waits_in_network = sum_.waits_in_network || now.waits_in_network;
    sum_.received_bytes += now.received_bytes - before.received_bytes;
    last_[i] = now;
  }
  if (!any) return std::nullopt;
  sum_.busy += busy;
  sum_.blocked += std::max(busy - unblocked, std::chrono::microseconds{0});
  return sum_;
}

RateWatch::Progress::Progress(const Reading& from, const Reading& to)
    : elapsed_s(std::chrono::duration<double>(to.time - from.time).count()),
      busy_s(std::chrono::duration<double>(to.counters.busy - from.counters.busy).count()),
      blocked_s(
          to.counters.waits_in_network
              ? 0.0
              : std::chrono::duration<double>(to.counters.blocked - from.counters.blocked).count()),
      bytes(static_cast<double>(to.counters.acknowledged_bytes) -
            static_cast<double>(from.counters.acknowledged_bytes)),
      segments(static_cast<double>(to.counters.segments) -
               static_cast<double>(from.counters.segments)),
      lost(static_cast<double>(to.counters.lost) - static_cast<double>(from.counters.lost)),
      bytes_of_others(bytesOfOthers(from.counters, to.counters)) {}

// Retransmissions count as others' traffic: they are few where a connection carries little.
double RateWatch::bytesOfOthers(const SendProgressCounters& from, const SendProgressCounters& to) {
  if (!from.interface || !to.interface) return 0.0;
  const auto more = [](uint64_t before, uint64_t now) {
    return now > before ? static_cast<double>(now - before) : 0.0;
  };
  const double sent = more(from.interface->sent_bytes, to.interface->sent_bytes) -
                      more(from.acknowledged_bytes, to.acknowledged_bytes);
  const double received = more(from.interface->received_bytes, to.interface->received_bytes) -
                          more(from.received_bytes, to.received_bytes);
  return std::max({sent, received, 0.0});
}

void RateWatch::restart() {
  readings_.clear();
  crowded_ = false;
  slow_looks_ = lossy_looks_ = 0;
}

std::optional<RateWatch::Change> RateWatch::look(
    const std::optional<SendProgressCounters>& counters, Clock::time_point now,
    double usual_elsewhere) {
  if (speed_ < 1 && now >= retry_) {
    speed_ = 1;
    restart();
    return Change{.speed = 1.0, .usual = std::max(best_, usual_elsewhere)};
  }
  if (!counters) return std::nullopt;
  readings_.push_back({*counters, now});
  if (readings_.size() < 2) return std::nullopt;
  if (readings_.size() > kMostReadings) readings_.pop_front();
  const Progress last(readings_[readings_.size() - 2], readings_.back());
  measure(last);
  return judge(last, counters->idle_lately, std::max(best_, usual_elsewhere), now);
}

// A shaper occasionally releases a burst above the sustained rate.
void RateWatch::measure(const Progress& last) {
  if (last.blocked_s > kUnblocked * last.elapsed_s) return;
  burst_bytes_ += last.bytes;
  burst_busy_s_ += last.busy_s;
  if (burst_busy_s_ >= kBurstsBusy.count()) {
    const double rate = std::exchange(burst_bytes_, 0.0) / std::exchange(burst_busy_s_, 0.0);
    best_burst_ = std::max(best_burst_, std::min(rate, measured_burst_));
    measured_burst_ = rate;
  }
  if (last.busyPart() < kMeasurable) return;
  best_ = std::max(best_, std::min(last.rate(), measured_));
  measured_ = last.rate();
}

std::optional<RateWatch::Change> RateWatch::judge(const Progress& last, bool idle_lately,
                                                  double usual, Clock::time_point now) {
  const double limit = kSlow * speed_ * usual;
  crowded_ = usual > 0 && last.rateOfOthers() >= kSlow * usual;
  const Progress window(readings_.front(), readings_.back());
  lossy_looks_ = losesPackets(window, limit) && !crowded_ ? lossy_looks_ + 1 : 0;
  if (lossy_looks_ >= kLossyLooks) {
    return slow(window.rate(), usual, window.lost / window.segments, now);
  }
  const bool blocked = last.blocked_s > kUnblocked * last.elapsed_s;
  if (blocked || last.busyPart() < kAllTheTime || idle_lately) return std::nullopt;
  slow_looks_ = last.rate() < limit && !crowded_ ? slow_looks_ + 1 : 0;
  if (slow_looks_ < kSlowLooks) return std::nullopt;
  return slow(last.rate(), usual, 0.0, now);
}

// Returns whether losses limit it to less than `limit` while it waits for the network.
bool RateWatch::losesPackets(const Progress& window, double limit) {
  return window.lost >= std::max(kFewestLost, kLossyPart * window.segments) &&
         window.blocked_s <= kUnblocked * window.elapsed_s && window.busyPart() >= kLossyBusy &&
         window.rate() < limit;
}

bool RateWatch::trust() {
  pause_ = std::chrono::seconds{0};
  return std::exchange(speed_, 1.0) < 1;
}

double RateWatch::distrust(Clock::time_point now) {
  pause_ = pause_.count() == 0 ? kFirstPause : std::min(2 * pause_, kLongestPause);
  retry_ = now + pause_;
  return speed_ = kLeastSpeed;
}

std::optional<RateWatch::Change> RateWatch::slow(double rate, double usual, double lost_part,
                                                 Clock::time_point now) {
  slow_looks_ = lossy_looks_ = 0;
  distrust(now);
  speed_ = std::max(rate / usual, kLeastSpeed);
  return Change{.speed = speed_, .usual = usual, .lost_part = lost_part};
}

}  // namespace topoopt
