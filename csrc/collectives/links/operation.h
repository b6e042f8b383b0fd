// Runs schedules, one at a time: posts every lane's receives, and sends each step once it is ready.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "collectives/group/call.h"
#include "collectives/group/landing.h"
#include "collectives/links/reductions.h"
#include "collectives/links/size_exchange.h"
#include "common/reduce.h"
#include "plan/schedule_cache.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {

// Reactor thread only. Before destruction, pending steps must be complete or the channel closed.
class Operation {
 public:
  struct Setup {
    std::shared_ptr<const PreparedSchedule> prepared{};
    Buffers buffers{};
    std::byte* scratch = nullptr;
    DataType type = DataType::kUint8;
    ReduceOp op = ReduceOp::kSum;
    uint64_t fingerprint = 0;
    std::optional<uint32_t> channel{};   // nullopt: the group's
    std::shared_ptr<Landing> landing{};  // nullptr: all data has landed
    SizeExchange::Ways ways{};           // of the message to each member; empty: the plan's routes
  };

  // `ranks` are the members' ranks of the endpoint. `done` is called at the end of every operation,
  // perhaps inside start(), and may start the next one.
  Operation(Endpoint& endpoint, uint32_t channel, std::vector<int> ranks,
            std::function<void(std::exception_ptr)> done);

  // `wake` is called, on any thread, when data has landed; then call onLanded().
  void start(Setup setup, std::function<void()> wake = {});

  // Retries steps that waited for data to land.
  void onLanded();

  // Drops all pending steps; the channel must be closed.
  void cancel();

  // Members (ranks of the endpoint) that this rank is waiting for.
  std::set<int> waitingFor() const;

  // Returns the bytes received for pending receives and the number of incomplete steps. The pair is
  // constant while the operation stalls.
  std::pair<uint64_t, size_t> progress() const;

  const std::vector<PartCounters>& counters() const { return counters_; }
  // Returns the counters and resets them, for operations over another layout.
  std::vector<PartCounters> takeCounters() { return std::exchange(counters_, {}); }

 private:
  using Clock = std::chrono::steady_clock;

  struct LaneState {
    size_t next_receive = 0;
    size_t next_send = 0;
    size_t receives_at = 0;  // offset of its steps in received_ and sent_
    size_t sends_at = 0;
    bool advancing = false;
    bool again = false;
  };
  enum class Arrival : uint8_t { kPending, kArrived, kReducing, kComplete };
  enum class Departure : uint8_t { kPending, kAwaited, kComplete };  // kAwaited: a step waits

  uint32_t channel() const { return setup_.channel.value_or(channel_); }
  const Lane& lane(int index) const { return setup_.prepared->schedule.lanes[index]; }
  Arrival& arrival(const StepRef& step) {
    return received_[lanes_[step.lane].receives_at + step.index];
  }
  Departure departure(const StepRef& step) const {
    return sent_[lanes_[step.lane].sends_at + step.index];
  }
  Departure& departure(const StepRef& step) {
    return sent_[lanes_[step.lane].sends_at + step.index];
  }
  bool received(const StepRef& step) const;
  bool sent(const StepRef& step) const;
  bool landed(const Range& range) const;
  void describeSteps(Landing& landing) const;
  void endLanding();
  std::byte* at(const Range& range) const;
  void advance(int index);
  void advanceAfter(int index);
  bool postReceive(int index);
  bool issueSend(int index);
  void onReceived(const StepRef& step, std::exception_ptr error);
  void onSent(const StepRef& step, std::exception_ptr error);
  void completeInTurn(StepRef step);
  bool reduced(const StepRef& step);
  void onReduced(const StepRef& step);
  void complete(const StepRef& step);
  void stepOver(int index);
  bool freed(const StepRef& send);
  void hurrySends();
  void leave();

  Endpoint& endpoint_;
  const uint32_t channel_;
  const std::vector<int> ranks_;
  const std::function<void(std::exception_ptr)> done_;

  Setup setup_;
  std::vector<LaneState> lanes_;
  std::vector<Arrival> received_;
  std::vector<Departure> sent_;
  std::vector<StepRef> unlanded_;  // arrived receives that wait for this member's data to land
  std::vector<size_t> part_left_;
  Clock::time_point started_{};
  size_t left_ = 0;           // incomplete sends and receives
  size_t receives_left_ = 0;  // incomplete receives
  bool hurried_ = false;      // only sends are left, and their memory was requested
  std::exception_ptr error_;
  bool running_ = false;
  bool reporting_ = false;  // done_ is due for this operation
  Reductions reductions_;   // by workers
  int depth_ = 0;           // calls into this object on the stack
  std::vector<PartCounters> counters_;
};

}  // namespace topoopt
