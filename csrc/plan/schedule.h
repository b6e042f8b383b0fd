// What a collective does, written down before it runs.
//
// A schedule is a set of lanes that run at the same time, usually one per ring. A lane is a list of
// receives and a list of sends, each taken in order; a send can wait for one receive, which is how
// data moves along a ring. The rings of a group split the elements by their shares, a ring splits
// its part into one segment per member, and a segment is split into chunks so that consecutive
// steps overlap. A chunk is one message.
//
// Schedules are pure functions of positions and sizes, so they are tested without sockets.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace topoopt {

enum class Buffer : uint8_t { kInput, kOutput, kScratch };

struct Range {
  Buffer buffer = Buffer::kInput;
  size_t offset = 0;  // bytes
  size_t bytes = 0;
};

// Receives `into.bytes` bytes. If `reduce` is set, `target` op= `operand` follows; one of the two
// is `into`. `after` is a receive and `after_send` a send of this lane that must be complete before
// this one may be posted (they free its scratch slot); -1 for none.
struct Receive {
  int peer = -1;
  Range into;
  bool reduce = false;
  Range target;
  Range operand;
  int after = -1;
  int after_send = -1;
};

// Sends `from.bytes` bytes once receive `after` of this lane (-1 for none) is complete and reduced.
struct Send {
  int peer = -1;
  Range from;
  int after = -1;
};

struct Lane {
  uint32_t stream = 0;  // the same number on all members; one flow per (pair, stream)
  std::vector<Receive> receives;
  std::vector<Send> sends;
};

struct Schedule {
  std::vector<Lane> lanes;
  size_t scratch_bytes = 0;
};

// A ring as one group sees it: `order` lists the group's ranks (0..size-1), each once; `share` is
// its fraction of the elements. Shares of all rings sum to 1.
struct RingOrder {
  std::vector<int> order;
  double share = 1.0;
};

// Elements of one ring, segment or chunk.
struct Extent {
  size_t first = 0;
  size_t count = 0;
};

// The part of `whole` that belongs to `index` of `parts`; parts differ by at most one element.
Extent divide(Extent whole, size_t parts, size_t index);

// One extent per ring, in proportion to the shares; they tile `count` elements exactly.
std::vector<Extent> divideByShare(size_t count, const std::vector<RingOrder>& rings);

// Every schedule below is for the member `rank` of a group; `element_bytes` keeps elements whole.

// Reduces `count` elements of kInput in place on all members: per ring, reduce-scatter and then
// all-gather, 2 (g - 1) segment steps.
Schedule allReduceSchedule(const std::vector<RingOrder>& rings, int rank, size_t count,
                           size_t element_bytes);

// Member i contributes counts[i] elements; all end up in kOutput, one after the other. The caller
// has already copied this member's own block to kOutput.
Schedule allGatherSchedule(const std::vector<RingOrder>& rings, int rank,
                           const std::vector<size_t>& counts, size_t element_bytes);

// kInput holds one block of counts[i] elements per member i; the reduced block of this member ends
// up in kOutput. kInput is not changed.
Schedule reduceScatterSchedule(const std::vector<RingOrder>& rings, int rank,
                               const std::vector<size_t>& counts, size_t element_bytes);

// Copies `count` elements of kInput from `root` to all members, along each ring as a chain.
Schedule broadcastSchedule(const std::vector<RingOrder>& rings, int rank, int root, size_t count,
                           size_t element_bytes);

// Reduces `count` elements of kInput to kOutput of `root`, along each ring as a chain that ends
// there. kInput is not changed; kOutput is used at the root only.
Schedule reduceSchedule(const std::vector<RingOrder>& rings, int rank, int root, size_t count,
                        size_t element_bytes);

// Sends send_bytes[i] bytes of kInput to each other member i and receives receive_bytes[i] into
// kOutput; blocks lie one after the other. Members are visited starting after `rank`, so that not
// all send to the same one first. The own block is left to the caller.
Schedule exchangeSchedule(int rank, const std::vector<size_t>& send_bytes,
                          const std::vector<size_t>& receive_bytes);

}  // namespace topoopt
