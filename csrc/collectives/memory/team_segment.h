// The memory that the members of a local team share, and how they wait for each other in it.
//
// Work goes in phases. A member does what it has to do before the end of a phase, calls arrive(),
// and goes on when all have arrived. A member that waits polls for a short time, then sleeps in the
// kernel.
//
// Two sets of slots alternate: what is written before the end of phase p goes to set p % 2 and is
// read by others between the ends of p and p + 1. So no slot is written while a member reads it,
// across operations too, with one wait per phase.
//
// The segment is an anonymous file (memfd) full of zeros at first: nothing has to be set up, and
// nothing can be left behind. Behind the slots are the rings of messages (message_rings.h), and
// room for a trial of ways to copy (store_trial.h).

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

  // Bytes of the segment of a team of `size`.
  static size_t bytesFor(int size);

  // Maps the memfd and closes it. Throws std::system_error or std::invalid_argument.
  TeamSegment(int fd, int size);
  ~TeamSegment();

  TeamSegment(const TeamSegment&) = delete;
  TeamSegment& operator=(const TeamSegment&) = delete;

  int size() const { return size_; }

  // Of member `member`, for phases of the parity of `phase`. Contributions hold slotBytes(),
  // results hold slotBytes() together with those of all other members.
  std::byte* contribution(int member, uint32_t phase) const;
  std::byte* result(int member, uint32_t phase) const;
  size_t slotBytes() const { return slot_bytes_; }
  // Room for two numbers per member.
  uint64_t* table(int member, uint32_t phase) const;
  uint32_t& fingerprint(int member, uint32_t phase) const;

  // Valid as long as this.
  MessageRings messages() const;
  std::byte* trialArea() const;  // for StoreTrial

  // What members have called, for the text of an error: read when they may be writing it.
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

  // How long an operation may take. It is counted from when its member first has to sleep, so that
  // one that never does reads no clock.
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
  // Member `member` waits until all have arrived at the end of `phase`, or cannot (itself
  // included).
  Waited waitAll(int member, uint32_t phase, TimeLimit& limit);

  // This member will arrive no more. Others that wait for it stop waiting.
  void leave(int member);
  bool left(int member) const;

  // No member waits in this segment from now on. Only the first call counts; whether it is this
  // one.
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
