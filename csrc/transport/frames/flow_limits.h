// What one rank may have in the network and in the memory of other ranks: a fixed amount of memory
// per rank, shared out among all sources, so that neither a relay nor a late receiver is ever asked
// for more of it, however many flows there are.
//
// Bytes of a message whose receive is known to be posted need no application to go on: relays pass
// them on and the receiver takes them, always. So a source may wait for the room that they leave
// (`relayed`) without any danger that ranks wait for each other. Bytes that no receive is known for
// may stay until the application asks for them, so nothing waits for the room that they take
// (`early`): a message that finds none left asks the receiver, and leaves when its receive is
// posted.

#pragma once

#include <algorithm>
#include <cstddef>

#include "transport/frames/frame.h"

namespace topoopt {

struct FlowLimits {
  // All of one source, in costOf() bytes.
  size_t early;       // that no receive is known for, on their way to all ranks or there
  size_t early_peer;  // the part of it to one rank
  size_t relayed;     // with a receive, on their way to ranks that it has no link to
  size_t quantum;     // of `relayed`, for one flow while others wait
  size_t ack;         // consumed by one receiver, of which the source is not yet notified

  // Of `size` ranks, each of which keeps about `memory_bytes` for others: a third of it early. In
  // large jobs a source has at least what keeps its links busy.
  static FlowLimits of(int size, size_t window_bytes, size_t memory_bytes) {
    const size_t frame = costOf(kRelayedPayloadBytes);
    const auto sources = static_cast<size_t>(std::max(size, 1));
    const size_t others = std::max<size_t>(sources - 1, 1);
    FlowLimits limits{};
    limits.early = std::max(memory_bytes / 3 / sources, 2 * frame);
    limits.early_peer = limits.early / 2;
    limits.relayed = std::max(memory_bytes / 3 * 2 / sources, 4 * frame);
    limits.quantum = std::max(limits.relayed / 8, frame);
    // What all receivers together keep back is a part of either budget only, so both free
    // themselves without being asked.
    limits.ack = std::max<size_t>(1, std::min({window_bytes / 4, limits.early / (4 * others),
                                               limits.relayed / (2 * others)}));
    return limits;
  }
};

// Bytes that are held, and the most that ever were.
struct HeldBytes {
  uint64_t now = 0;
  uint64_t peak = 0;

  void add(uint64_t bytes) {
    now += bytes;
    peak = std::max(peak, now);
  }
  void remove(uint64_t bytes) { now -= bytes; }
};

}  // namespace topoopt
