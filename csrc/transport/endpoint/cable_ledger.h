// What the two ends of a cable tell each other when a connection is lost, so that every frame
// arrives once.
//
// Each end numbers the connections of the cable (generations, from 1 on) and counts the frames that
// arrive. An end that loses a connection keeps the frames that the other end may not have until it
// learns how many have arrived; it then sends the rest over other ways. That is settling.
//
// The invariant: while an end has not settled, the other end owes it the count of its generation.
// It pays with its next kLinkLost (over other cables, when both ends have lost the connection) or
// kLinkHello (the first frame of the next connection), whichever comes first. Connections can end
// at one end before the other one has used them, so one end may be generations ahead;
// `received_before` is the count for an end that has been left behind, however far.
//
// tests/cpp/transport/cable_ledger_test.cc walks through all orders of events.

#pragma once

#include <cstdint>
#include <optional>

namespace topoopt {

// Travels in kLinkLost and kLinkHello.
struct CableCounts {
  uint64_t generation = 1;
  uint64_t received = 0;         // frames of this generation; of one that is in use, 0
  uint64_t received_before = 0;  // of the last generation that both ends may have used before

  bool operator==(const CableCounts&) const = default;
};

class CableLedger {
 public:
  // From the loss of a connection until the next one is established.
  bool lost() const { return lost_; }
  uint64_t generation() const { return counts_.generation; }
  // For the other end.
  const CableCounts& counts() const { return counts_; }

  // The connection is lost; `received` frames have come over it.
  void lose(uint64_t received);

  // What to do about a kLinkLost.
  struct Reaction {
    std::optional<uint64_t> arrived{};  // settle: the other end has the first frames, so many
    bool drop = false;    // the connection that is in use, or is being made; if in use, call again
    bool answer = false;  // send the other end a kLinkLost
  };
  Reaction onLinkLost(const CableCounts& theirs);

  // The first frame of a new connection, which is established now. Returns what has arrived of the
  // last one, if that is not settled.
  std::optional<uint64_t> onHello(const CableCounts& theirs);

  bool operator==(const CableLedger&) const = default;

 private:
  std::optional<uint64_t> settle(const CableCounts& theirs);

  CableCounts counts_;
  bool lost_ = false;
  bool settled_ = true;
};

}  // namespace topoopt
