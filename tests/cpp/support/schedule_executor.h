// Runs the schedules of all members of a group against plain buffers, in one random order of
// events out of all that a network could produce, and finds deadlocks and overwritten data. What is
// in the network may overtake (a pair can have several routes); messages are complete in order.
//
// One element stands for `element_bytes` bytes and holds a 64-bit value, so that schedules for many
// megabytes run on small buffers; ranges that cut an element are errors.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "plan/schedule.h"
#include "support/seed.h"

namespace topoopt {

using Values = std::vector<uint64_t>;

struct MemberBuffers {
  Values input;
  Values output;
  Values scratch;
  std::vector<int> input_writes;  // how often each element was received into or reduced
  std::vector<int> output_writes;
};

class ScheduleExecutor {
 public:
  static constexpr size_t kUnbounded = SIZE_MAX;

  // A sender may be `window` elements ahead of what its receiver has taken into a posted receive; 0
  // means that data moves only when both ends are ready for it.
  ScheduleExecutor(std::vector<Schedule> schedules, size_t element_bytes, size_t window,
                   TestRandom& random);

  MemberBuffers& member(int rank) { return buffers_[rank]; }

  // Runs until nothing more can happen. Returns "", or what is wrong (a deadlock, for example).
  std::string run();

 private:
  struct LaneState {
    size_t posted = 0;
    size_t issued = 0;
    std::vector<bool> arrived;
    std::vector<bool> received;  // arrived, and it was its turn
    std::vector<bool> sent;
  };
  struct Transfer {  // a send that was issued, or a receive that was posted
    size_t index;    // in its lane
    size_t done = 0;
  };
  struct InNetwork {
    size_t message;  // of its flow
    size_t element;  // of the message
    uint64_t value;
  };
  struct Flow {
    int source;
    int target;
    size_t source_lane;
    size_t target_lane;
    std::deque<Transfer> sends;
    std::deque<Transfer> receives;
    std::deque<InNetwork> network;
    size_t pushed = 0;                      // messages that have left the sender
    size_t received = 0;                    // messages that are complete at the receiver
    std::deque<size_t> message_elements{};  // of messages that are not complete at the receiver
  };
  enum class Step { kPost, kIssue, kPush, kPull };
  struct Action {
    Step step;
    size_t who;  // a lane (kPost, kIssue) or a flow
  };
  struct LaneId {
    int rank;
    size_t lane;
  };

  bool act(const Action& action);
  bool post(const LaneId& id);
  bool issue(const LaneId& id);
  bool push(Flow& flow);
  bool pull(Flow& flow);
  bool take(Flow& flow, size_t at);
  void completeFront(Flow& flow);
  void completeInTurn(int rank, StepRef step);
  bool received(int rank, const StepRef& step) const;
  bool sent(int rank, const StepRef& step) const;
  void reduce(int rank, const Receive& receive);
  void wrote(int rank, const Range& range, size_t element);
  uint64_t& at(int rank, const Range& range, size_t element);
  Flow& flowBetween(int source, int target, uint32_t stream);
  size_t elements(const Range& range);
  std::string leftOver() const;

  std::vector<Schedule> schedules_;
  const size_t element_bytes_;
  const size_t window_;
  TestRandom& random_;
  std::vector<MemberBuffers> buffers_;
  std::vector<std::vector<LaneState>> lanes_;
  std::vector<LaneId> lane_ids_;
  std::map<std::tuple<int, int, uint32_t>, size_t> flow_index_;
  std::deque<Flow> flows_;
  std::string wrong_;
};

}  // namespace topoopt
