// Notices that a connection has become slow: that it carries, while it has something to carry all
// the time, a small part of what it carried before.
//
// What a system counts of a connection (TCP_INFO) tells time in which the network was waited for
// from time in which the application sent nothing, or the neighbour read nothing. So small
// messages, pauses and slow neighbours are no evidence.

#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace topoopt {

// Of one connection, since it was opened.
struct SendProgressCounters {
  uint64_t acknowledged_bytes = 0;
  std::chrono::microseconds busy{};     // something was on its way
  std::chrono::microseconds blocked{};  // of that time: the neighbour had no room
  bool idle_lately = false;             // the application had nothing more to send
};

// Of a connected TCP socket; nullopt if the system does not count.
std::optional<SendProgressCounters> sendProgressOf(int fd);

class RateWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // Now and then, a few times a second. Returns the speed when it has changed: the part of the best
  // rate that the connection carries, 1 for all of it. A slow connection is tried anew after a
  // while, longer each time, as it carries too little then to be measured.
  std::optional<double> look(const std::optional<SendProgressCounters>& counters,
                             Clock::time_point now);

  // Another connection takes its place: the same counters begin anew.
  void restart() { before_.reset(); }

  double bestBytesPerSecond() const { return best_; }

 private:
  struct Reading {
    SendProgressCounters counters;
    Clock::time_point time;
  };

  std::optional<double> judge(double rate, Clock::time_point now);

  std::optional<Reading> before_;
  double best_ = 0;  // bytes a second
  double speed_ = 1;
  int slow_looks_ = 0;  // one after the other
  Clock::time_point retry_{};
  std::chrono::seconds pause_{0};
};

}  // namespace topoopt
