// The protocol by which the two ends of a cable recover from a lost connection: every frame arrives
// exactly once.
//
// Each end numbers the connections of the cable (generations, from 1 on) and counts the frames that
// arrive. An end that loses a connection keeps the frames that the other end may not have. When it
// learns how many have arrived, it settles: it sends the rest over other cables.
//
// Invariant: while an end has not settled, the other end owes it the count of its generation. The
// count comes with the next kLinkLost (over other cables, once both ends have lost the connection)
// or kLinkHello (the first frame of the next connection), whichever is first. One end can lose a
// connection before the other end uses it, so one end may be several generations ahead;
// `received_before` is the count for the end that is behind.
//
// tests/cpp/transport/cable_ledger_test.cc walks through all orders of events.

#pragma once

#include <cstdint>
#include <optional>

namespace topoopt {

// Travels in kLinkLost and kLinkHello.
struct CableCounts {
  uint64_t generation = 1;
  uint64_t received = 0;         // frames of this generation; 0 while the connection is in use
  uint64_t received_before = 0;  // frames of the last earlier generation that both may have used
};

class CableLedger {
 public:
  // True from the loss of a connection until the next one is established.
  bool lost() const { return lost_; }
  uint64_t generation() const { return counts_.generation; }
  // To be sent to the other end.
  const CableCounts& counts() const { return counts_; }

  // The connection is lost; `received` frames have come over it.
  void lose(uint64_t received);

  // How to react to a kLinkLost.
  struct Reaction {
    std::optional<uint64_t> arrived{};  // settle: this many frames have arrived at the other end
    bool drop = false;    // drop the current connection; if it was in use, call onLinkLost() again
    bool answer = false;  // send the other end a kLinkLost
  };
  Reaction onLinkLost(const CableCounts& theirs);

  // The other end's hello has come: the new connection is established. Returns the number of frames
  // of the last connection that have arrived at the other end, if this end has not settled.
  std::optional<uint64_t> onHello(const CableCounts& theirs);

 private:
  std::optional<uint64_t> settle(const CableCounts& theirs);

  CableCounts counts_;
  bool lost_ = false;
  bool settled_ = true;
};

}  // namespace topoopt
