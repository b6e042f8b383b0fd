// The shared memory of a local team, and its barriers.
//
// Work is divided into phases. A member does its work of a phase, calls arrive(), and continues
// when all have arrived. A waiting member polls for a short time, then sleeps in the kernel.
//
// Two sets of slots alternate: slots written before the end of phase p are in set p % 2, and others
// read them between the ends of p and p + 1. So no slot is written while a member reads it, also
// across operations, with one wait per phase.
//
// The segment is an anonymous file (memfd), zeroed at first, so it needs no set-up and leaves
// nothing behind. The rings of messages (message_rings.h) and room for StoreTrial follow the slots.

#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "collectives/group/called.h"
#include "collectives/memory/message_rings.h"
#include "collectives/memory/store_trial.h"

namespace topoopt {

class TeamSegment {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr int kMaxMembers = StoreTrial::kMaxMembers;

  static size_t bytesFor(int size);

  // Maps the memfd and closes it. Throws std::system_error or std::invalid_argument.
  TeamSegment(int fd, int size);
  ~TeamSegment();

  TeamSegment(const TeamSegment&) = delete;
  TeamSegment& operator=(const TeamSegment&) = delete;

  int size() const { return size_; }

  // Slots of `member` for phases with the parity of `phase`. A contribution holds slotBytes(), the
  // results of all members together as many.
  std::byte* contribution(int member, uint32_t phase) const;
  std::byte* result(int member, uint32_t phase) const;
  size_t slotBytes() const { return slot_bytes_; }
  // Room for two numbers per member.
  uint64_t* table(int member, uint32_t phase) const;
  uint32_t& fingerprint(int member, uint32_t phase) const;

  // Valid as long as this object.
  MessageRings messages() const;
  std::byte* trialArea() const;  // for StoreTrial

  // A member's last call, for error texts: it may be read while it is written.
  struct MemberCall {
    Called called;
    uint64_t number = 0;
  };
  void setCall(int member, uint32_t phase, const MemberCall& call);
  std::optional<MemberCall> lastCall(int member) const;
  std::optional<MemberCall> callAt(int member, uint32_t phase) const;

  // Members count their phases themselves.
  void arrive(int member, uint32_t phase);
  bool arrived(int member, uint32_t phase) const;

  // The time limit of an operation, from its member's first sleep: a member that never sleeps reads
  // no clock.
  class TimeLimit {
   public:
    TimeLimit() = default;
    explicit TimeLimit(std::chrono::milliseconds limit) : limit_(limit) {}  // 0: for ever

    std::optional<Clock::time_point> deadline() {
      if (!deadline_ && limit_.count() > 0) deadline_ = Clock::now() + limit_;
      return deadline_;
    }

   private:
    std::chrono::milliseconds limit_{0};
    std::optional<Clock::time_point> deadline_;
  };

  enum class Waited { kAllArrived, kDeadline, kFailed, kMemberLeft };
  // Waits until all members have arrived at the end of `phase`, or one cannot (including `member`).
  Waited waitAll(int member, uint32_t phase, TimeLimit& limit);

  // `member` will arrive no more; the others stop waiting for it.
  void leave(int member);
  bool left(int member) const;

  // Ends all waiting in this segment. Only the first call counts; returns whether it is this one.
  bool fail(const std::string& why);
  bool failed() const;
  std::string failure() const;

 private:
  struct Header;
  struct Cell;

  Header& header() const;
  Cell& cell(int member) const;
  bool allArrived(uint32_t phase) const;
  std::optional<Waited> state(int member, uint32_t phase) const;
  bool onCoreOfMissing(uint32_t phase) const;
  void look(uint32_t phase) const;
  Waited sleep(int member, uint32_t phase, TimeLimit& limit);
  void wakeSleepers();

  const int size_;
  const size_t slot_bytes_;
  std::byte* base_ = nullptr;
};

}  // namespace topoopt
