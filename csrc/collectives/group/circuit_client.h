// This rank's connection to the service that moves the circuits of its job. Each message is a line
// of words and numbers; lists have commas. When a rank connects, it sends `rank NUMBER SERVER`, and
// the service answers with `asks EXCHANGES SECONDS`: whether all-to-alls are requested (1 or 0),
// and the least predicted time, on the plan's circuits, of other collectives that are.
//
//   hold SERVERS                   circuits move: cables are not judged, and messages of this rank
//                                  reach these servers only
//   wait SERVERS                   the same while circuits are changed: `hold` or `free` follows
//   free                           the plan's circuits are installed, and messages reach all
//   restore                        sent by a rank with messages for other servers than those of
//                                  `hold`: they wait for `free`, or a `hold` with their servers
//
// Requests and their answers; USED are the servers of earlier messages and collectives that were
// not requested, since the request before, or `-`:
//
//   ask CHANNEL NUMBER RANKS SERVERS BYTES USED
//                                  an all-to-all of these ranks, each on a server of its own, with
//                                  the bytes for each; answers:
//     stay CHANNEL NUMBER            use the current circuits, then send `done`
//     schedule ID N...               a schedule, sent once: per topology the number of hops, and
//                                    sender, receiver, source, target and part of each hop
//     move CHANNEL NUMBER ID DATA BYTES...
//                                    use that schedule on channel DATA (from kFirstCircuitChannel;
//                                    new after each stop); BYTES are all members' sizes, by rows
//   collective CHANNEL NUMBER RANKS SERVERS NAME BYTES HASH SECONDS USED
//                                  another collective of BYTES, predicted to take SECONDS on the
//                                  plan's circuits; HASH has all arguments. The same answers, but:
//     blocks ID PARTS BLOCKS N...    a schedule of the servers, in the order in which the list has
//                                    them first, sent once: per topology the number of hops, and
//                                    sender, receiver, block, part and 1 for a sum of each hop
//     move CHANNEL NUMBER ID DATA    without sizes
//   ready CHANNEL NUMBER TOPOLOGY  earlier topologies are done here; the one beyond the last is the
//                                  plan's own circuits; answers:
//     moved CHANNEL NUMBER TOPOLOGY  its circuits are up
//     stop CHANNEL NUMBER REASON     they failed, and the plan's circuits are restored; also sent
//                                    while chunks travel, if circuits were lost
//   done CHANNEL NUMBER            a collective with the answer `stay` has ended here, and its data
//                                  is acknowledged
//   lost CHANNEL NUMBER REASON     chunks are not acknowledged; all members get `stop`
//   leave CHANNEL NUMBER REASON    the group has failed here; the others get `stop`

#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "plan/circuit_collectives.h"
#include "plan/circuit_schedules.h"
#include "transport/descriptor.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {

class CircuitClient final : public std::enable_shared_from_this<CircuitClient>,
                            private Reactor::Handler {
 public:
  using Bytes = std::vector<std::vector<size_t>>;  // by sender and receiver

  // The content of `asks`.
  struct Requested {
    bool exchanges = true;
    double least_s = std::numeric_limits<double>::infinity();
  };

  // The content of `move`: one of the programs; bytes of an all-to-all only.
  struct MoveAnswer {
    std::shared_ptr<const CircuitProgram> program;
    std::shared_ptr<const BlockProgram> blocks;
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

  // Owns the descriptor of a connected stream socket. `numbers` are those by which the service
  // knows the ranks of the endpoint.
  CircuitClient(std::shared_ptr<Endpoint> endpoint, int fd, Requested requested,
                std::vector<int> numbers);
  ~CircuitClient() override;

  CircuitClient(const CircuitClient&) = delete;
  CircuitClient& operator=(const CircuitClient&) = delete;

  const Requested& requested() const { return requested_; }
  // Reactor thread only. Whether circuits move for any group.
  bool circuitsMove() const { return reached_.has_value(); }

  // Reactor thread only. Messages between these servers that are not requested, until end(), which
  // also cancels them. `start` is called when circuits lead to all of them, at once or later.
  uint64_t begin(std::set<int> servers);
  void start(uint64_t messages, std::function<void()> start);
  void end(uint64_t messages);

  struct Members {
    const std::vector<int>& ranks;    // of the endpoint
    const std::vector<int>& servers;  // of each
  };

  // Reactor thread only. At most one collective of a channel at a time.
  void request(uint32_t channel, uint64_t number, const Members& members,
               const std::vector<size_t>& bytes, CircuitAnswers call);
  struct CollectiveTerms {
    const char* name;
    size_t bytes;
    uint64_t hash;
    double seconds;
  };
  void request(uint32_t channel, uint64_t number, const Members& members,
               const CollectiveTerms& terms, CircuitAnswers call);
  // Sent when all data is acknowledged, at the latest after half a second; `ready` only if the
  // caller still waits then.
  void ready(uint32_t channel, uint64_t number, size_t topology, std::function<bool()> waits);
  void done(uint32_t channel, uint64_t number);
  void lost(uint32_t channel, uint64_t number, const std::string& why);
  void leave(uint32_t channel, uint64_t number, const std::string& why);
  void finished(uint32_t channel) { calls_.erase(channel); }

 private:
  struct Open {
    uint64_t number;
    size_t members;
    CircuitAnswers call;
  };
  struct Messages {
    std::set<int> servers;
    std::function<void()> start{};  // while circuits do not lead to all of them
  };

  void onReady(uint32_t events) override;
  std::string textOf(const Members& members) const;
  void send(const std::string& line);
  void onLine(const std::string& line);
  void onSchedule(std::istream& words);
  void onBlocks(std::istream& words);
  void onAnswer(const std::string& what, std::istream& words);
  void onMove(const Open& open, std::istream& words);
  void whenQuiet(std::function<bool()> waits, std::function<void()> then, int looks);
  void onReached(std::optional<std::set<int>> servers, bool changes = false);
  bool reaches(const std::set<int>& servers) const;
  std::string takeUsed();
  void lose(const std::string& why);
  void stopAll();

  const std::shared_ptr<Endpoint> endpoint_;
  const Requested requested_;
  const std::vector<int> numbers_;
  Descriptor socket_;
  std::string received_;                  // an incomplete line
  std::string lost_;                      // reason; empty: connected
  std::optional<std::set<int>> reached_;  // servers; nullopt: all, and cables are judged
  bool changes_ = false;                  // circuits are being changed
  std::set<int> used_;                    // servers of messages since the last request
  std::map<uint64_t, Messages> messages_;
  uint64_t next_messages_ = 0;
  std::map<uint64_t, std::shared_ptr<const CircuitProgram>> programs_;
  std::map<uint64_t, std::shared_ptr<const BlockProgram>> block_programs_;
  std::map<uint32_t, Open> calls_;  // by channel
};

}  // namespace topoopt
