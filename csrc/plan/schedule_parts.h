// Helpers to build schedules. Only for csrc/plan.

#pragma once

#include <cstddef>
#include <vector>

#include "plan/schedule.h"

namespace topoopt {

// Scratch slots per lane; a lane that sums data of many members has more.
inline constexpr size_t kSlots = 8;

// Number of chunks of the largest extent, given the scratch slots for one chunk each. Equal on all
// members, so chunks match at both ends.
size_t chunkCount(size_t largest_bytes, size_t slots);

// Both add a step to lane `lane`.
StepRef addReceive(Schedule& schedule, int lane, const Receive& receive);
StepRef addSend(Schedule& schedule, int lane, int peer, Range from, StepRef after);

// Adds an empty lane; returns its number.
int addLane(Schedule& schedule, size_t stream, int part);

// Scratch chunks of a lane, used in turn. A slot is free after the receive that filled it, and the
// send from it, if any.
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

  // Returns the next slot, for a receive of `bytes` bytes that is added next.
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

// Sums one chunk from several members and this one, in call order, in `place` or in the first
// part's slot.
class ChunkSum {
 public:
  ChunkSum(Schedule& schedule, Range own) : schedule_(schedule), own_(own), total_(own) {}
  ChunkSum(Schedule& schedule, Range own, Range place) : ChunkSum(schedule, own) {
    place_ = place;
    placed_ = true;
  }

  void add(int lane, int peer, Slots& slots);

  // Sends the sum on, which frees its slot.
  void send(int lane, int peer);

  // The receive that completes the sum; none without receives.
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
