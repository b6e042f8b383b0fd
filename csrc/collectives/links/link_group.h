// The collectives of a group over the links of an endpoint: one schedule after the other, on the
// reactor thread.
//
// Members with different calls may wait for frames that no member sends, or leave frames
// unreceived. So a stalled member sends its call to the members that it waits for. A member that
// gets a frame of another collective sends its call to the frame's sender. If the calls at one
// position differ, the group fails with an error that names both. A member that has not reached
// that position is late and does not answer.
//
// When links are lost, degraded or recovered, the members agree on other paths for the collectives
// that have not begun (ring_agreement.h, link_group_rings.cc).

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
#include "collectives/links/size_exchange.h"
#include "plan/schedule_cache.h"

namespace topoopt {

class LinkGroup final : public Group {
 public:
  LinkGroup(std::shared_ptr<Endpoint> endpoint, GroupConfig config);

  uint64_t sequenceNumber() const override;
  std::vector<RingCounters> counters() override;
  size_t landingBytes() override;

  // Scratch memory in use. Not on the reactor thread.
  size_t scratchBytes();

 private:
  struct Pending {
    Called called;
    uint64_t number = 0;
    Milliseconds limit{};
    Operation::Setup setup;
    Done done;
    ScheduleKey shape;
    uint64_t version = 0;  // of the paths in the setup
    double planned_s = 0;  // prediction on the plan's circuits, where circuits may move
  };
  struct Version {
    uint64_t first = 0;  // first collective that uses its paths
    std::shared_ptr<ScheduleCache> schedules{};
  };
  // The running collective, from its request to reconfigure circuits.
  struct Moving {
    uint64_t number;
    std::vector<std::shared_ptr<const PreparedSchedule>> parts{};  // one per topology
    size_t topology = 0;          // index of the current or next one
    bool chosen = false;          // the service chose to reconfigure
    bool runs = false;            // chunks travel; false: waiting for circuits
    std::map<int, int> silent{};  // rank with unacknowledged chunks -> checks without progress
  };
  // Bytes that this member sent to each in an exchange.
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
  void logRoutes();
  void takeSubmitted();
  void startNext();
  void startUnrequested();
  void endUnrequested();
  void startOperation();
  void exchangeSizes();
  void onOperationDone(std::exception_ptr error);
  void endFirst(std::exception_ptr error);
  void callDone();
  void watchDeadline();
  void onTimeout();
  std::string timeoutText(const Pending& late, const StateSurveys::Answers& answers) const;

  // Rings after link changes (link_group_rings.cc).
  uint64_t versionOf(uint64_t number) const;
  void beginOver(Pending& next);
  std::vector<plan::Ring> ringsLeft() const;
  std::vector<RatedLink> ratedLinks(bool planned) const;
  GroupLayout::RouteLoads routeLoads(const std::vector<int>& leaders) const;
  std::vector<int> serversOf(const std::vector<int>& members) const;
  std::vector<LinkSet> linkSets(const std::vector<int>& leaders, bool planned) const;
  void usePaths(uint64_t version, uint64_t first, CollectivePaths paths);

  // Circuit reconfiguration (link_group_circuits.cc).
  bool asksForCircuits(const Pending& pending) const;
  const GroupLayout& layout() const;
  size_t bytesOnCircuits(const ScheduleKey& shape) const;
  void askForCircuits();
  void onCircuitsStay();
  void onCircuitsMove(const CircuitClient::MoveAnswer& move);
  std::vector<Schedule> schedulesOn(const CircuitClient::MoveAnswer& move) const;
  void onCircuitsMoved(size_t topology);
  void onCircuitsStopped(const std::string& why);
  void endTopology();
  void readyWhenQuiet();
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
  std::optional<size_t> landing_bytes_;  // computed on first use
  CallHistory history_;
  std::deque<Exchanged> exchanged_;       // recent ones
  std::deque<Pending> submitted_;         // not yet seen by the reactor thread
  std::map<uint64_t, Version> versions_;  // 0: the planned paths; others while in use
  std::set<std::tuple<CallName, Algorithm, int>> logged_;  // with the size class

  // Reactor thread only.
  std::deque<Pending> queue_;          // the first one runs if running_
  uint64_t next_ = 0;                  // first collective that has not begun
  std::vector<RingCounters> carried_;  // over former rings
  uint64_t over_version_ = 0;          // paths that operation_ counts for
  CollectivePaths proposed_;           // by the first member, last
  RingAgreement agreement_;
  Operation operation_;
  SizeExchange sizes_;
  std::set<double> logged_gains_;
  Scratch scratch_;
  uint8_t barrier_byte_ = 0;  // input of barriers
  bool running_ = false;
  bool starting_ = false;
  std::optional<uint32_t> circuit_channel_;  // for chunks during reconfiguration
  bool stayed_ = false;                      // the running collective was answered `stay`
  std::optional<Moving> moving_;
  std::optional<uint64_t> unrequested_;  // of the running operation, at the circuit client
  std::deque<std::pair<Done, std::exception_ptr>> over_;  // callbacks of ended operations
  bool calling_done_ = false;
  std::optional<Reactor::Clock::time_point> deadline_;  // of the running operation
  std::optional<Reactor::TimerId> timer_;               // fires no later than the deadline
  // By another member, for the state of this one.
  std::optional<Reactor::Clock::time_point> last_state_request_;
  std::optional<Reactor::TimerId> progress_timer_;
  std::pair<uint64_t, std::pair<uint64_t, size_t>> progress_seen_{};  // operation and its progress
  std::optional<Reactor::TimerId> dispute_timer_;
};

}  // namespace topoopt
