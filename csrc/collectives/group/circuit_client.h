// This rank's connection to the service that moves the circuits of its job: one line per message,
// words and numbers.
//
//   ask CHANNEL NUMBER BYTES...    an all-to-all: bytes for each member; the answer is one of
//     stay CHANNEL NUMBER            it goes over the circuits that are there; `done` follows
//     schedule ID N... and           once per schedule: of each topology the number of its hops,
//     and
//                                    each one's sender, receiver, source and target
//     move CHANNEL NUMBER ID         by a schedule, on a channel (from kFirstCircuitChannel on)
//     that
//       DATA BYTES...                  is a new one after each stop; what all members send, by rows
//   ready CHANNEL NUMBER TOPOLOGY  all that comes before this topology is done here; one beyond the
//                                  last means the plan's own circuits. The answer is one of
//     moved CHANNEL NUMBER TOPOLOGY  its circuits carry light
//     stop CHANNEL NUMBER REASON     they do not, and those of the plan are there again; also while
//                                    chunks travel, if circuits were lost
//   done CHANNEL NUMBER            it is over here
//   lost CHANNEL NUMBER REASON     while chunks travel: circuits seem to be lost; all get `stop`
//   leave CHANNEL NUMBER REASON    the group has failed here; others get `stop`

#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plan/circuit_schedules.h"
#include "transport/descriptor.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {

class CircuitClient final : public std::enable_shared_from_this<CircuitClient>,
                            private Reactor::Handler {
 public:
  using Bytes = std::vector<std::vector<size_t>>;  // by sender and receiver

  // The content of `move`.
  struct MoveAnswer {
    std::shared_ptr<const CircuitProgram> program;
    uint32_t channel;
    Bytes bytes;
  };

  // Callbacks for the answers about one collective, until `stay`, `stop` or `leave`. They run on
  // the reactor thread.
  struct CircuitAnswers {
    std::function<void()> stay;
    std::function<void(const MoveAnswer&)> move;
    std::function<void(size_t topology)> moved;
    std::function<void(const std::string& why)> stopped;
  };

  // Owns the descriptor of a connected stream socket. Every all-to-all has `members`.
  CircuitClient(std::shared_ptr<Endpoint> endpoint, int fd, int members);
  ~CircuitClient() override;

  CircuitClient(const CircuitClient&) = delete;
  CircuitClient& operator=(const CircuitClient&) = delete;

  int members() const { return members_; }

  // Reactor thread only. At most one collective of a channel at a time.
  void ask(uint32_t channel, uint64_t number, const std::vector<size_t>& bytes,
           CircuitAnswers call);
  void ready(uint32_t channel, uint64_t number, size_t topology);
  void done(uint32_t channel, uint64_t number);
  void lost(uint32_t channel, uint64_t number, const std::string& why);
  void leave(uint32_t channel, uint64_t number, const std::string& why);
  void finished(uint32_t channel) { calls_.erase(channel); }

 private:
  struct Open {
    uint64_t number;
    CircuitAnswers call;
  };

  void onReady(uint32_t events) override;
  void send(const std::string& line);
  void onLine(const std::string& line);
  void onSchedule(std::istream& words);
  void onAnswer(const std::string& what, std::istream& words);
  void onMove(const CircuitAnswers& call, std::istream& words);
  void lose(const std::string& why);
  void stopAll();

  const std::shared_ptr<Endpoint> endpoint_;
  const int members_;
  Descriptor socket_;
  std::string received_;  // an incomplete line
  std::string lost_;      // reason; empty: connected
  std::map<uint64_t, std::shared_ptr<const CircuitProgram>> programs_;
  std::map<uint32_t, Open> calls_;  // by channel
};

}  // namespace topoopt
