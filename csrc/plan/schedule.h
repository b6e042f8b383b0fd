// The steps of a collective, prepared before it runs.
//
// A schedule is a set of concurrent lanes. A lane has ordered lists of receives and sends. A step
// can wait for steps of any lane, which moves data along a ring, up a tree, or between members and
// their leader. A message is one chunk of data, so that consecutive steps overlap.
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

// A receive or a send: lane and index in its list.
struct StepRef {
  int lane = -1;
  int index = -1;

  bool none() const { return lane < 0; }
  bool operator==(const StepRef&) const = default;
};

// The peer of a step without a message, which arrives at once.
inline constexpr int kLocal = -1;

// Receives `into.bytes` bytes after receive `after` and send `after_send`, which free its scratch
// slot. It completes after the bytes have arrived, receive `turn_after` (fixes the order of a sum)
// and send `turn_after_send` (data being sent must not change). With `reduce`, `target` op=
// `operand` follows, one of which is `into`. A local step may have a `base`: `target` = `base` op
// `operand`.
struct Receive {
  int peer = kLocal;
  Range into{};
  bool reduce = false;
  Range target{};
  Range operand{};
  Range base{};
  StepRef after{};
  StepRef after_send{};
  StepRef turn_after{};
  StepRef turn_after_send{};
  StepRef turn_next{};  // the receive whose turn_after is this one
};

// Sends `from.bytes` bytes after receive `after`. It completes when the memory is reusable.
struct Send {
  int peer = -1;
  Range from{};
  StepRef after{};
  StepRef turn_next{};  // the receive whose turn_after_send is this one
};

// The counter of a lane's bytes.
inline constexpr int kInsideServer = -1;

struct Lane {
  uint32_t stream = 0;  // equal on all members; one flow per (pair, stream)
  int part = 0;         // index of its ring or tree, or kInsideServer
  std::vector<Receive> receives{};
  std::vector<Send> sends{};
};

struct Schedule {
  std::vector<Lane> lanes{};
  size_t scratch_bytes = 0;
};

// Limit of scratch memory per schedule, unless a single element exceeds a chunk.
inline constexpr size_t kScratchLimitBytes = 32 << 20;

// A range of elements: of a ring, segment or chunk.
struct Extent {
  size_t first = 0;
  size_t count = 0;
};

// Part `index` of `parts` of `whole`; sizes differ by at most one element.
Extent divide(Extent whole, size_t parts, size_t index);

// One extent per ring by share; they cover `count` elements exactly.
std::vector<Extent> divideByShare(size_t count, const std::vector<plan::Ring>& rings);

// Returns the start of each consecutive block.
std::vector<size_t> blockStarts(const std::vector<size_t>& counts);

}  // namespace topoopt
