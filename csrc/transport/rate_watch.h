// Notices that a connection has become slow: that it carries a small part of what it carried
// before, or of what others like it carry, while it has something to carry all the time or loses
// packets.
//
// What a system counts of a connection (TCP_INFO) tells time in which the network was waited for
// from time in which the application sent nothing, or the neighbour read nothing. So small
// messages, pauses and slow neighbours are no evidence. Nor is a cable that others use, whose
// packets this host or the neighbour forwards: the cable carries those.

#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "transport/interface_traffic.h"

namespace topoopt {

// Of one connection, since it was opened.
struct SendProgressCounters {
  uint64_t acknowledged_bytes = 0;
  std::chrono::microseconds busy{};     // something was on its way
  std::chrono::microseconds blocked{};  // of that time: the neighbour had no room
  uint32_t segments = 0;                // with data, those sent again among them
  uint32_t lost = 0;                    // of them, sent again and not found to have come twice
  bool idle_lately = false;             // the application had nothing more to send
  // Packets wait in the network now, and acknowledgements with them. A window of the neighbour that
  // is full for that reason does not say that the neighbour reads nothing.
  bool waits_in_network = false;
  uint64_t received_bytes = 0;                  // from the neighbour
  std::optional<InterfaceTraffic> interface{};  // over which the connection goes, if it is known
};

// Of a connected TCP socket; nullopt if the system does not count.
std::optional<SendProgressCounters> sendProgressOf(int fd);

// What the connections of one link have done together: what all have carried, in the time in which
// any was busy. One that a new connection takes the place of begins anew.
class JointProgress {
 public:
  explicit JointProgress(size_t connections = 0) : last_(connections) {}

  // Of each connection, in the same order every time; nullopt where nothing is counted now. Returns
  // the sum since the beginning; nullopt if nothing is counted of any.
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
    double speed = 1.0;      // the part of the usual rate that the connection carries, 1 for all
    double usual = 0.0;      // bytes a second
    double lost_part = 0.0;  // of the packets, if that is why it is slow
  };

  // Now and then, a few times a second. Returns the speed when it has changed. `usual_elsewhere` is
  // what the connection should carry, by what others do (bytes a second; 0: not known). A slow
  // connection is tried anew after a while, longer each time, as it carries too little then to be
  // measured.
  std::optional<Change> look(const std::optional<SendProgressCounters>& counters,
                             Clock::time_point now, double usual_elsewhere = 0.0);

  // It carries nothing large. Its speed until it is tried anew.
  double distrust(Clock::time_point now);

  // It has another path: whether it was slow, which it is no longer.
  bool trust();
  bool isSlow() const { return speed_ < 1; }
  // Others held so much of the cable when it was looked at last, in one of its directions, that
  // what this connection carries, or waits for, says nothing of the cable.
  bool isCrowded() const { return crowded_; }

  // Another connection takes its place: the same counters begin anew.
  void restart();

  // The largest rate that it had twice while it was busy half of the time; 0 if there is none.
  double bestBytesPerSecond() const { return best_; }
  // Likewise of short messages, which may be faster than the network is for long.
  double bestBurstBytesPerSecond() const { return best_burst_; }

 private:
  struct Reading {
    SendProgressCounters counters;
    Clock::time_point time;
  };
  // From one reading to a later one.
  struct Progress {
    Progress(const Reading& from, const Reading& to);
    double busyPart() const { return busy_s / elapsed_s; }
    double rate() const { return bytes / busy_s; }
    double rateOfOthers() const { return bytes_of_others / elapsed_s; }

    double elapsed_s, busy_s, blocked_s, bytes, segments, lost;
    double bytes_of_others;  // in the direction in which there are more
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
  int slow_looks_ = 0;   // one after the other
  int lossy_looks_ = 0;  // likewise
  Clock::time_point retry_{};
  std::chrono::seconds pause_{0};
};

}  // namespace topoopt
