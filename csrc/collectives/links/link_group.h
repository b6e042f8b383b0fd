// The collectives of a group over the links of an endpoint: one schedule after the other, on the
// reactor thread.
//
// Members that have called different collectives may wait for frames that nobody sends, or leave
// frames behind that nobody receives. So a member whose collective does not move for a short time
// sends what it has called to those that it waits for; and one that gets a frame of another
// collective than its own, to the frame's sender. A member that has called something else at the
// same place in the order fails the group with an error that names both calls; one that has not
// come so far is late, and says nothing.
//
// When links are lost, slow or back, the members agree on other rings for the collectives that have
// not begun (ring_agreement.h, link_group_rings.cc).

#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "collectives/group/group.h"
#include "collectives/links/operation.h"
#include "collectives/links/ring_agreement.h"
#include "collectives/links/scratch.h"
#include "plan/schedule_cache.h"

namespace topoopt {

class LinkGroup final : public Group {
 public:
  // For Group::open.
  LinkGroup(std::shared_ptr<Endpoint> endpoint, GroupConfig config);

  uint64_t sequenceNumber() const override;
  std::vector<RingCounters> counters() override;
  size_t landingBytes() override;

  // Of scratch memory that is held at this moment. Not on the reactor thread.
  size_t scratchBytes();

 private:
  struct Pending {
    Called called;
    uint64_t number = 0;
    Milliseconds limit{};
    Operation::Setup setup;
    Done done;
    ScheduleKey shape;
    uint64_t version = 0;  // of the rings that the setup is for
  };
  // Rings that the members have agreed on.
  struct Version {
    uint64_t first = 0;  // number of a collective
    std::shared_ptr<ScheduleCache> schedules{};
  };
  // The all-to-all that runs, from when it asks whether circuits shall move for it.
  struct Moving {
    uint64_t number;
    std::vector<std::shared_ptr<const PreparedSchedule>> parts{};  // one per topology
    size_t topology = 0;                                           // that comes next, or is there
    bool chosen = false;                                           // it was answered that they move
    bool runs = false;            // chunks travel; else all members wait for circuits
    std::map<int, int> silent{};  // rank that chunks are sent to now -> looks without an answer
  };
  // What this member has sent to each in an exchange.
  struct Exchanged {
    uint64_t number;
    std::vector<size_t> bytes;
  };

  void submit(CollectiveRequest request, const CallTerms& terms, Done done) override;
  void endCollectives(std::exception_ptr error, Notify notify) override;
  std::optional<std::pair<Called, uint64_t>> current() override;
  void onControl(const FrameHeader& header, const std::string& payload) override;
  void onLinksChanged() override;
  void onUnmatched(int peer, uint32_t number) override;

  void prepare(Pending& pending);
  std::function<void()> landingWake(uint64_t number);
  void warnOfAlgorithm() const;
  void logChoice(const Pending& pending, const ScheduleCache& schedules);
  void takeSubmitted();
  void startNext();
  void onOperationDone(std::exception_ptr error);
  void endFirst(std::exception_ptr error);
  void callDone();
  void watchDeadline();
  void onTimeout();
  std::string timeoutText(const Pending& late, const StateSurveys::Answers& answers) const;

  // Rings (link_group_rings.cc).
  uint64_t versionOf(uint64_t number) const;
  void beginOver(Pending& next);
  std::vector<plan::Ring> ringsLeft() const;
  void useRings(uint64_t version, uint64_t first, std::vector<plan::Ring> rings);

  // Circuits that move (link_group_circuits.cc).
  bool asksForCircuits(const Pending& pending) const;
  void askForCircuits();
  void onCircuitsStay();
  void onCircuitsMove(const CircuitClient::MoveAnswer& move);
  void onCircuitsMoved(size_t topology);
  void onCircuitsStopped(const std::string& why);
  void endTopology();
  void readyWhenQuiet(int looks);
  void watchCircuits();
  void leaveCircuits(const std::string& why);
  void openCircuitChannel(uint32_t channel);
  void closeCircuitChannel(const std::string& why);

  // Mismatches (link_group_mismatch.cc).
  void remember(uint64_t number, const CollectiveRequest& request);
  void watchProgress();
  void onStandstill();
  uint64_t expectedFrom(int rank, uint64_t number) const;
  void sendCall(int rank, uint64_t number, const Called& called, uint64_t expected_bytes);
  void onCall(const FrameHeader& header, const Called& theirs);
  void onMismatch(const MessageMismatch& mismatch);
  void dispute(int peer, uint32_t number);

  // Guarded by mutex_.
  uint64_t called_ = 0;
  std::optional<size_t> landing_bytes_;  // found when it is first asked for
  CallHistory history_;
  std::deque<Exchanged> exchanged_;       // lately
  std::deque<Pending> submitted_;         // that the reactor thread has not taken yet
  std::map<uint64_t, Version> versions_;  // 0 are the planned rings; others while they are used
  std::set<std::tuple<CallName, Algorithm, int>> logged_;  // with the size class

  // Reactor thread only.
  std::deque<Pending> queue_;          // the first one runs, if running_
  uint64_t next_ = 0;                  // number of the first collective that has not begun
  std::vector<RingCounters> carried_;  // over rings that were used before
  uint64_t over_version_ = 0;          // of the rings that operation_ counts for
  std::vector<plan::Ring> proposed_;   // by the first member, the last ones
  RingAgreement agreement_;
  Operation operation_;
  Scratch scratch_;
  uint8_t barrier_byte_ = 0;  // what barriers reduce
  bool running_ = false;
  bool starting_ = false;
  std::optional<uint32_t> circuit_channel_;  // on which chunks travel while circuits move
  bool stayed_ = false;                      // for what runs circuits could have moved
  std::optional<Moving> moving_;
  std::deque<std::pair<Done, std::exception_ptr>> over_;  // callbacks of operations that are over
  bool calling_done_ = false;
  std::optional<Reactor::Clock::time_point> deadline_;  // of the one that runs
  std::optional<Reactor::TimerId> timer_;               // not later than the deadline
  std::optional<Reactor::Clock::time_point> asked_;     // for this member's state, by another
  std::optional<Reactor::TimerId> progress_timer_;
  std::pair<uint64_t, std::pair<uint64_t, size_t>> progress_seen_{};  // operation, how far it was
  std::optional<Reactor::TimerId> dispute_timer_;
};

}  // namespace topoopt
