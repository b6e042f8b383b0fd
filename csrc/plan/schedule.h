// The steps of a collective, written down before it runs.
//
// A schedule is a set of lanes that run at the same time. A lane is a list of receives and a list
// of sends, each taken in order; a step can wait for steps of any lane, which is how data moves
// along a ring, up a tree, or from a server's members to its leader and on to the next server. A
// message is one chunk of the data, so that consecutive steps overlap.
//
// Schedules are pure functions of positions and sizes, so they are tested without sockets.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/group_layout.h"

namespace topoopt {

enum class Buffer : uint8_t { kInput, kOutput, kScratch };

struct Range {
  Buffer buffer = Buffer::kInput;
  size_t offset = 0;  // bytes
  size_t bytes = 0;
};

// A receive or a send: the lane, and the index in that lane's list.
struct StepRef {
  int lane = -1;
  int index = -1;

  bool none() const { return lane < 0; }
  bool operator==(const StepRef&) const = default;
};

// Receives `into.bytes` bytes, once receive `after` and send `after_send` are complete (they free
// its scratch slot). The receive is complete when its bytes are here, receive `turn_after` is
// complete (so that the order of a sum does not depend on the network) and so is send
// `turn_after_send` (what is on its way must not change); and, if `reduce` is set, after `target`
// op= `operand`, of which one is `into`.
struct Receive {
  int peer = -1;
  Range into{};
  bool reduce = false;
  Range target{};
  Range operand{};
  StepRef after{};
  StepRef after_send{};
  StepRef turn_after{};
  StepRef turn_after_send{};
  StepRef turn_next{};  // the receive whose turn_after this is
};

// Sends `from.bytes` bytes once receive `after` is complete. The send is complete when the memory
// may be used again.
struct Send {
  int peer = -1;
  Range from{};
  StepRef after{};
  StepRef turn_next{};  // the receive whose turn_after_send this is
};

// The counter of a lane's bytes.
inline constexpr int kInsideServer = -1;

struct Lane {
  uint32_t stream = 0;  // the same number on all members; one flow per (pair, stream)
  int part = 0;         // index of the ring or tree that it belongs to, or kInsideServer
  std::vector<Receive> receives{};
  std::vector<Send> sends{};
};

struct Schedule {
  std::vector<Lane> lanes{};
  size_t scratch_bytes = 0;
};

// Scratch memory of one schedule at most, unless a single element is larger than a chunk may be.
inline constexpr size_t kScratchLimitBytes = 32 << 20;

// Elements of one ring, segment or chunk.
struct Extent {
  size_t first = 0;
  size_t count = 0;
};

// The part of `whole` that belongs to `index` of `parts`; parts differ by at most one element.
Extent divide(Extent whole, size_t parts, size_t index);

// One extent per ring, in proportion to the shares; they tile `count` elements exactly.
std::vector<Extent> divideByShare(size_t count, const std::vector<plan::Ring>& rings);

// Blocks of `counts` elements lie one after the other; returns where block i starts.
std::vector<size_t> blockStarts(const std::vector<size_t>& counts);

}  // namespace topoopt
