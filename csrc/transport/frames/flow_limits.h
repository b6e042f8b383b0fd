// Limits of one rank's data in the network and in other ranks' memory. The memory of a rank is
// fixed and shared among all sources, so the number of flows does not affect it.
//
// Messages with a posted receive need no application to progress: relays forward them and the
// receiver accepts them. So a source may wait for their room (`relayed`) without deadlock. Messages
// without a known receive may stay until the application posts one, so nothing waits for their room
// (`early`). If it is exhausted, the sender requests a receive and waits for it.

#pragma once

#include <algorithm>
#include <cstddef>

#include "transport/frames/frame.h"

namespace topoopt {

struct FlowLimits {
  // Limits per source, in costOf() bytes.
  size_t early;       // without a known receive, in flight or stored at any rank
  size_t early_peer;  // the part of it at one rank
  size_t relayed;     // with a receive, in flight to ranks without a direct link
  size_t quantum;     // of `relayed`, per flow while others wait
  size_t ack;         // consumed by one receiver, but not acknowledged to the source

  // Limits for `size` ranks, each of which stores about `memory_bytes` for others, a third of it
  // early. In large jobs a source gets at least enough to keep its links busy.
  static FlowLimits of(int size, size_t window_bytes, size_t memory_bytes) {
    const size_t frame = costOf(kRelayedPayloadBytes);
    const auto sources = static_cast<size_t>(std::max(size, 1));
    const size_t others = std::max<size_t>(sources - 1, 1);
    FlowLimits limits{};
    limits.early = std::max(memory_bytes / 3 / sources, 2 * frame);
    limits.early_peer = limits.early / 2;
    limits.relayed = std::max(memory_bytes / 3 * 2 / sources, 4 * frame);
    limits.quantum = std::max(limits.relayed / 8, frame);
    // Unacknowledged bytes of all receivers are only a part of either budget, so both recover
    // without requests.
    limits.ack = std::max<size_t>(1, std::min({window_bytes / 4, limits.early / (4 * others),
                                               limits.relayed / (2 * others)}));
    return limits;
  }
};

// Current and peak stored bytes.
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
