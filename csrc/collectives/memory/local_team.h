// The collectives of a group whose members all live on one server, in memory that they share.
//
// Every function runs the whole operation on the calling thread and returns when this member is
// done; a member calls them one after the other, from one thread at a time. Results do not depend
// on timing: elements are reduced in the order of the members.
//
// Throws TimeoutError, MismatchError if members are in different operations, PeerLostError if
// another one has failed or left, AbortedError if this one has left. Then the team is over.

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
  // `member` is this process; `ranks` are the members as they are called in messages.
  LocalTeam(std::shared_ptr<TeamSegment> segment, int member, std::vector<int> ranks,
            std::string name);

  // The arguments are those of Group's functions of the same names.
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

  // Any thread: ends what is running here and on all other members, and all that comes later.
  // False if the team had failed before.
  bool fail(const std::string& why) { return segment_->fail(why); }
  // Any thread: this member calls nothing more; what it is in, ends.
  void leave() { segment_->leave(member_); }
  // Any thread: what this member has called last.
  std::optional<TeamSegment::MemberCall> lastCall() const { return segment_->lastCall(member_); }

 private:
  // Elements `first` to `first + count`.
  struct Part {
    size_t first;
    size_t count;
  };

  // A vector that is reduced in chunks, of which each member reduces one piece.
  class Pieces {
   public:
    Pieces(size_t count, size_t element_bytes, size_t piece_bytes, int size);
    size_t chunks() const { return chunks_; }
    Part part(size_t chunk, int member) const;
    size_t elementBytes() const { return element_bytes_; }
    // Of a member's piece in the slot of a contribution.
    size_t slotOffset(int member) const { return static_cast<size_t>(member) * piece_bytes_; }

   private:
    size_t count_;
    size_t element_bytes_;
    size_t size_;
    size_t piece_bytes_;
    size_t chunk_count_;  // elements of a chunk, but for the last one
    size_t chunks_;
  };

  int size() const { return segment_->size(); }
  void begin(const CollectiveCall& call);
  // Slots to write, and fingerprints, belong to the phase that ends next; slots to read to the one
  // that ended last.
  uint32_t writing() const { return phase_ + 1; }
  uint32_t reading() const { return phase_; }
  void endPhase();
  void learnStores();
  void checkAgreement() const;
  std::string timeoutText() const;
  [[noreturn]] void raise(TeamSegment::Waited waited) const;
  std::set<int> missing() const;

  // How much of a message of `message` bytes goes through a slot at a time.
  size_t chunkBytes(size_t message) const;
  // Where a message has a part for every member, the largest of `part` bytes: how much of a part.
  size_t pieceBytes(size_t part) const;
  Pieces piecesOf(size_t count, size_t element_bytes) const;

  // Copies elements to the own slot, for all others.
  void contribute(const void* data, size_t bytes);
  // Reduces `count` elements of all members, which are at `sources`, to `output` and, unless it is
  // nullptr, to `copy`.
  void reduceSources(const std::vector<const std::byte*>& sources, std::byte* output,
                     std::byte* copy, size_t count, DataType type, ReduceOp op) const;
  // Where the contributions of all members are, `offset` bytes into their slots, until the next
  // call.
  std::vector<const std::byte*>& contributions(size_t offset);
  void contributePieces(const Pieces& pieces, size_t chunk, const std::byte* input);
  void collectPieces(const Pieces& pieces, size_t chunk, std::byte* output) const;
  void learnSizes(const std::vector<size_t>& send_bytes, const std::vector<size_t>& receive_bytes);

  const std::shared_ptr<TeamSegment> segment_;
  const int member_;
  const std::vector<int> ranks_;
  const std::string name_;
  uint32_t phase_ = 0;
  // Kept, so that small calls allocate nothing.
  std::vector<const std::byte*> sources_;  // of contributions()
  std::vector<size_t> largest_sent_;       // to a member, by each: of an exchange
  const StoreTrial trial_;
  uint32_t trials_ = 0;      // that are over
  uint32_t next_trial_ = 1;  // after this phase
  const CollectiveCall* call_ = nullptr;
  bool agreed_ = false;  // all members are in this call
  TeamSegment::TimeLimit limit_;
};

}  // namespace topoopt
