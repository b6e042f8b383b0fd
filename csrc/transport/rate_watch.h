// Detects slow connections: busy or lossy ones that carry a small fraction of their earlier rate,
// or of the rate of similar ones.
//
// The system's counters (TCP_INFO) separate time spent on the network from time when the
// application or the neighbour was idle. So small messages, pauses and slow neighbours do not count
// as slow. Neither does a cable with forwarded traffic of others.

#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "transport/interface_traffic.h"

namespace topoopt {

// Counters of one connection since it was opened.
struct SendProgressCounters {
  uint64_t acknowledged_bytes = 0;
  std::chrono::microseconds busy{};     // with data in flight
  std::chrono::microseconds blocked{};  // part of busy: the neighbour had no room
  uint32_t segments = 0;                // data segments, including retransmissions
  uint32_t lost = 0;                    // retransmitted segments that did not arrive twice
  bool idle_lately = false;             // the application had nothing more to send
  // Packets and acknowledgements queue in the network. A full window of the neighbour then does not
  // mean that it stopped reading.
  bool waits_in_network = false;
  uint64_t received_bytes = 0;                  // from the neighbour
  std::optional<InterfaceTraffic> interface{};  // of the connection, if known
};

// Reads the counters of a connected TCP socket; nullopt without support by the system.
std::optional<SendProgressCounters> sendProgressOf(int fd);

// Joint counters of a link's connections: the sum of their bytes over the time when any was busy. A
// replacement connection starts from zero.
class JointProgress {
 public:
  explicit JointProgress(size_t connections = 0) : last_(connections) {}

  // Takes the counters of all connections in constant order; nullopt: currently not counted.
  // Returns the sum since the beginning; nullopt if none is counted.
  std::optional<SendProgressCounters> add(
      const std::vector<std::optional<SendProgressCounters>>& counters);

 private:
  std::vector<SendProgressCounters> last_;
  SendProgressCounters sum_;
};

class RateWatch {
 public:
  using Clock = std::chrono::steady_clock;

  struct Change {
    double speed = 1.0;      // fraction of the usual rate
    double usual = 0.0;      // bytes per second
    double lost_part = 0.0;  // fraction of packets, if that made it slow
  };

  // Call it a few times a second; returns changes of speed. `usual_elsewhere` is the expected rate
  // from other connections (bytes per second; 0: unknown). A slow connection is retried after
  // increasing delays, because it carries too little data to be measured.
  std::optional<Change> look(const std::optional<SendProgressCounters>& counters,
                             Clock::time_point now, double usual_elsewhere = 0.0);

  // Marks the connection as slow until its next retry, and returns its speed.
  double distrust(Clock::time_point now);

  // The connection has a new path: resets it, and returns whether it was slow.
  bool trust();
  bool isSlow() const { return speed_ < 1; }
  // Returns whether others used so much of the cable at the last check that this connection's rate
  // is no evidence.
  bool isCrowded() const { return crowded_; }

  // The connection was replaced: its counters start from zero.
  void restart();

  // The highest rate reached twice while busy half of the time; 0 if there is none.
  double bestBytesPerSecond() const { return best_; }
  // The same for short messages, which may exceed the sustained rate of the network.
  double bestBurstBytesPerSecond() const { return best_burst_; }

 private:
  struct Reading {
    SendProgressCounters counters;
    Clock::time_point time;
  };
  // Difference of two readings.
  struct Progress {
    Progress(const Reading& from, const Reading& to);
    double busyPart() const { return busy_s / elapsed_s; }
    double rate() const { return bytes / busy_s; }
    double rateOfOthers() const { return bytes_of_others / elapsed_s; }

    double elapsed_s, busy_s, blocked_s, bytes, segments, lost;
    double bytes_of_others;  // in the direction with more
  };

  void measure(const Progress& last);
  std::optional<Change> judge(const Progress& last, bool idle_lately, double usual,
                              Clock::time_point now);
  static double bytesOfOthers(const SendProgressCounters& from, const SendProgressCounters& to);
  static bool losesPackets(const Progress& window, double limit);
  std::optional<Change> slow(double rate, double usual, double lost_part, Clock::time_point now);

  std::deque<Reading> readings_;  // of the last second
  double measured_ = 0;           // the last measurable rate
  double best_ = 0;
  double burst_bytes_ = 0;  // not measured yet
  double burst_busy_s_ = 0;
  double measured_burst_ = 0;
  double best_burst_ = 0;
  double speed_ = 1;
  bool crowded_ = false;
  int slow_looks_ = 0;   // consecutive
  int lossy_looks_ = 0;  // consecutive
  Clock::time_point retry_{};
  std::chrono::seconds pause_{0};
};

}  // namespace topoopt
