// The parts of schedules of several kinds. Only for csrc/plan.

#pragma once

#include <cstddef>
#include <vector>

#include "plan/schedule.h"

namespace topoopt {

// Scratch slots per lane; a lane that adds up the parts of many members has more.
inline constexpr size_t kSlots = 8;

// The number of chunks of the largest of several extents, given the scratch slots that hold a
// chunk each. All members compute the same number, so chunks match on both ends.
size_t chunkCount(size_t largest_bytes, size_t slots);

// Each adds a step to lane number `lane`.
StepRef addReceive(Schedule& schedule, int lane, const Receive& receive);
StepRef addSend(Schedule& schedule, int lane, int peer, Range from, StepRef after);

// Adds an empty lane; returns its number.
int addLane(Schedule& schedule, size_t stream, int part);

// Scratch chunks of one lane, used in turn. A slot is free again when the receive that filled it is
// complete and, if it was sent on from there, when that send is complete.
class Slots {
 public:
  Slots(Schedule& schedule, size_t count, size_t slot_bytes)
      : base_(schedule.scratch_bytes), slot_bytes_(slot_bytes), users_(count) {
    schedule.scratch_bytes += count * slot_bytes;
  }

  struct Slot {
    size_t number;
    Range range;
  };

  // The next slot, for a receive of `bytes` bytes that is about to be added.
  Slot take(Receive& receive, size_t bytes);
  void filledBy(size_t number, StepRef receive) { users_[number] = {receive, {}}; }
  void sentBy(size_t number, StepRef send) { users_[number].send = send; }

 private:
  struct User {
    StepRef receive;
    StepRef send;
  };
  const size_t base_;
  const size_t slot_bytes_;
  std::vector<User> users_;
  size_t turn_ = 0;
};

// Adds up one chunk: parts that arrive from several members, and this member's own. The sum is
// built in the order of the calls, in `place`, or in the slot of the first part.
class ChunkSum {
 public:
  ChunkSum(Schedule& schedule, Range own) : schedule_(schedule), own_(own), total_(own) {}
  ChunkSum(Schedule& schedule, Range own, Range place) : ChunkSum(schedule, own) {
    place_ = place;
    placed_ = true;
  }

  void add(int lane, int peer, Slots& slots);

  // Sends the sum on; its slot is free after that.
  void send(int lane, int peer);

  // The receive that completes the sum; none if nothing arrives.
  StepRef last() const { return last_; }

 private:
  Schedule& schedule_;
  const Range own_;
  Range place_{};
  bool placed_ = false;
  Range total_;
  StepRef last_{};
  Slots* slots_ = nullptr;  // of the sum
  size_t slot_ = 0;
};

}  // namespace topoopt
