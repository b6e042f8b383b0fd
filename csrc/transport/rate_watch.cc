#include "transport/rate_watch.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

namespace topoopt {
namespace {

// A quarter is no fluctuation any more, and worth other rings.
constexpr double kSlow = 0.25;
constexpr double kLeastSpeed = 0.001;
constexpr int kSlowLooks = 4;
// Of the time between two looks: the connection must have been busy for so long to be measured, and
// all the time to be called slow.
constexpr double kMeasurable = 0.5;
constexpr double kAllTheTime = 0.9;
constexpr double kUnblocked = 0.05;
constexpr std::chrono::seconds kFirstPause{10};
constexpr std::chrono::seconds kLongestPause{300};

}  // namespace

std::optional<SendProgressCounters> sendProgressOf(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  if (size < offsetof(tcp_info, tcpi_sndbuf_limited)) return std::nullopt;  // before Linux 4.10
  return SendProgressCounters{
      .acknowledged_bytes = info.tcpi_bytes_acked,
      .busy = std::chrono::microseconds(info.tcpi_busy_time),
      .blocked = std::chrono::microseconds(info.tcpi_rwnd_limited),
      .idle_lately = info.tcpi_delivery_rate_app_limited != 0,
  };
}

std::optional<double> RateWatch::look(const std::optional<SendProgressCounters>& counters,
                                      Clock::time_point now) {
  if (speed_ < 1 && now >= retry_) {
    speed_ = 1;
    slow_looks_ = 0;
    before_.reset();
    return speed_;
  }
  if (!counters) return std::nullopt;
  const auto before = std::exchange(before_, Reading{*counters, now});
  if (!before) return std::nullopt;
  const std::chrono::duration<double> elapsed = now - before->time;
  const std::chrono::duration<double> busy = counters->busy - before->counters.busy;
  const std::chrono::duration<double> blocked = counters->blocked - before->counters.blocked;
  if (blocked > kUnblocked * elapsed || busy < kMeasurable * elapsed) return std::nullopt;
  const auto bytes = counters->acknowledged_bytes - before->counters.acknowledged_bytes;
  const double rate = static_cast<double>(bytes) / busy.count();
  best_ = std::max(best_, rate);
  if (busy < kAllTheTime * elapsed || counters->idle_lately) return std::nullopt;
  return judge(rate, now);
}

// At `rate`, with something to send all the time.
std::optional<double> RateWatch::judge(double rate, Clock::time_point now) {
  if (rate >= kSlow * speed_ * best_) {
    slow_looks_ = 0;
    return std::nullopt;
  }
  if (++slow_looks_ < kSlowLooks) return std::nullopt;
  slow_looks_ = 0;
  speed_ = std::max(rate / best_, kLeastSpeed);
  pause_ = pause_.count() == 0 ? kFirstPause : std::min(2 * pause_, kLongestPause);
  retry_ = now + pause_;
  return speed_;
}

}  // namespace topoopt
