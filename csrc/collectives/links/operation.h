// Runs schedules, one at a time: keeps every lane's receives posted and sends what has become
// ready.

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
#include "common/reduce.h"
#include "plan/schedule_cache.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {

// All functions are for the loop. What is pending must be over, or the channel closed, before this
// object goes.
class Operation {
 public:
  struct Setup {
    std::shared_ptr<const PreparedSchedule> prepared{};
    Buffers buffers{};
    std::byte* scratch = nullptr;
    DataType type = DataType::kUint8;
    ReduceOp op = ReduceOp::kSum;
    uint64_t fingerprint = 0;
    std::optional<uint32_t> channel{};   // if it is not the group's
    std::shared_ptr<Landing> landing{};  // nullptr: all data is there
  };

  // `ranks` are the group's members as ranks of the endpoint. `done` is called at the end of every
  // operation, perhaps before start() returns; the next one may be started from it.
  Operation(Endpoint& endpoint, uint32_t channel, std::vector<int> ranks,
            std::function<void(std::exception_ptr)> done);

  // `wake` is called, on any thread, when more of the data has landed: onLanded() is due.
  void start(Setup setup, std::function<void()> wake = {});

  // Goes on with what waited for data that may have landed by now.
  void onLanded();

  // Forgets what is pending; the channel is closed.
  void cancel();

  // Members (ranks of the endpoint) that this rank is waiting for.
  std::set<int> waitingFor() const;

  // The bytes that have come for this operation's pending receives, and its steps that are left: a
  // pair that stays the same while nothing moves.
  std::pair<uint64_t, size_t> progress() const;

  const std::vector<PartCounters>& counters() const { return counters_; }
  // The same, which then begin anew: for operations over another layout.
  std::vector<PartCounters> takeCounters() { return std::exchange(counters_, {}); }

 private:
  using Clock = std::chrono::steady_clock;

  struct LaneState {
    size_t next_receive = 0;
    size_t next_send = 0;
    size_t receives_at = 0;  // where its steps begin in received_ and sent_
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
  std::vector<StepRef> unlanded_;  // receives that are here and wait for data of this member
  std::vector<size_t> part_left_;
  Clock::time_point started_{};
  size_t left_ = 0;           // sends and receives that are not complete
  size_t receives_left_ = 0;  // of them
  bool hurried_ = false;      // nothing but sends is left, and their memory is asked for
  std::exception_ptr error_;
  bool running_ = false;
  bool reporting_ = false;  // done_ has not been called for this operation
  Reductions reductions_;   // that workers make
  int depth_ = 0;           // of calls into this object that are on the stack
  std::vector<PartCounters> counters_;
};

}  // namespace topoopt
