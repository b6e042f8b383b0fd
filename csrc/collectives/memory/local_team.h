// The collectives of a group on one server, over shared memory.
//
// Every function runs the whole operation on the calling thread. A member calls them in sequence,
// from one thread at a time. Elements are reduced in member order, so results do not depend on
// timing.
//
// Throws TimeoutError, MismatchError if operations differ, PeerLostError if another member failed
// or left, AbortedError if this one left. The team is unusable afterwards.

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "collectives/group/call.h"
#include "collectives/memory/store_trial.h"
#include "collectives/memory/team_segment.h"
#include "common/reduce.h"

namespace topoopt {

class LocalTeam {
 public:
  // `member` is this process; `ranks` maps members to ranks in messages.
  LocalTeam(std::shared_ptr<TeamSegment> segment, int member, std::vector<int> ranks,
            std::string name);

  // See the functions of Group with the same names.
  void allReduce(const CollectiveCall& call, void* data, size_t count, DataType type, ReduceOp op);
  void broadcast(const CollectiveCall& call, void* data, size_t bytes, int root);
  void reduce(const CollectiveCall& call, const void* input, void* output, size_t count,
              DataType type, ReduceOp op, int root);
  void allGather(const CollectiveCall& call, void* output, const std::vector<size_t>& bytes);
  void reduceScatter(const CollectiveCall& call, const void* input, void* output,
                     const std::vector<size_t>& counts, DataType type, ReduceOp op);
  void exchange(const CollectiveCall& call, const void* input,
                const std::vector<size_t>& send_bytes, void* output,
                const std::vector<size_t>& receive_bytes);
  void barrier(const CollectiveCall& call);

  // Any thread: fails all current and later operations on all members. Returns false if the team
  // had failed before.
  bool fail(const std::string& why) { return segment_->fail(why); }
  // Any thread: this member leaves; its current operation ends.
  void leave() { segment_->leave(member_); }
  // Any thread: this member's last call.
  std::optional<TeamSegment::MemberCall> lastCall() const { return segment_->lastCall(member_); }

 private:
  // Elements `first` to `first + count`.
  struct Part {
    size_t first;
    size_t count;
  };

  // A vector reduced in chunks; each member reduces one piece of a chunk.
  class Pieces {
   public:
    Pieces(size_t count, size_t element_bytes, size_t piece_bytes, int size);
    size_t chunks() const { return chunks_; }
    Part part(size_t chunk, int member) const;
    size_t elementBytes() const { return element_bytes_; }
    // Offset of a member's piece in the slot of a contribution.
    size_t slotOffset(int member) const { return static_cast<size_t>(member) * piece_bytes_; }

   private:
    size_t count_;
    size_t element_bytes_;
    size_t size_;
    size_t piece_bytes_;
    size_t chunk_count_;  // elements per chunk, except for the last
    size_t chunks_;
  };

  int size() const { return segment_->size(); }
  void begin(const CollectiveCall& call);
  // Written slots and fingerprints belong to the phase that ends next, slots to read to the last
  // ended one.
  uint32_t writing() const { return phase_ + 1; }
  uint32_t reading() const { return phase_; }
  void endPhase();
  void learnStores();
  void checkAgreement() const;
  std::string timeoutText() const;
  [[noreturn]] void raise(TeamSegment::Waited waited) const;
  std::set<int> missing() const;

  // Returns the bytes of a `message` that pass through a slot at a time.
  size_t chunkBytes(size_t message) const;
  // Returns the bytes per part, if a message has a part of at most `part` bytes per member.
  size_t pieceBytes(size_t part) const;
  Pieces piecesOf(size_t count, size_t element_bytes) const;

  // Copies elements to the own slot for all other members.
  void contribute(const void* data, size_t bytes);
  // Reduces `count` elements of `sources` to `output` and, unless nullptr, to `copy`.
  void reduceSources(const std::vector<const std::byte*>& sources, std::byte* output,
                     std::byte* copy, size_t count, DataType type, ReduceOp op) const;
  // Returns all members' contributions at `offset` in their slots, until the next call.
  std::vector<const std::byte*>& contributions(size_t offset);
  void contributePieces(const Pieces& pieces, size_t chunk, const std::byte* input);
  void collectPieces(const Pieces& pieces, size_t chunk, std::byte* output) const;
  void learnSizes(const std::vector<size_t>& send_bytes, const std::vector<size_t>& receive_bytes);

  const std::shared_ptr<TeamSegment> segment_;
  const int member_;
  const std::vector<int> ranks_;
  const std::string name_;
  uint32_t phase_ = 0;
  // Members to avoid allocations in small calls.
  std::vector<const std::byte*> sources_;  // of contributions()
  std::vector<size_t> largest_sent_;       // by member of an exchange: largest part sent to another
  const StoreTrial trial_;
  uint32_t trials_ = 0;      // completed ones
  uint32_t next_trial_ = 1;  // phase
  const CollectiveCall* call_ = nullptr;
  bool agreed_ = false;  // all members have checked this call
  TeamSegment::TimeLimit limit_;
};

}  // namespace topoopt
