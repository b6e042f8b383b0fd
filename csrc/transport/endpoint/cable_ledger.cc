#include "transport/endpoint/cable_ledger.h"

#include <algorithm>
#include <utility>

namespace topoopt {

void CableLedger::lose(uint64_t received) {
  counts_.received = received;
  lost_ = true;
  settled_ = false;
}

std::optional<uint64_t> CableLedger::settle(const CableCounts& theirs) {
  if (std::exchange(settled_, true)) return std::nullopt;
  if (theirs.generation == counts_.generation) return theirs.received;
  // Either the other end never established this end's last connection, or it established a later
  // one that this end did not.
  return theirs.generation < counts_.generation ? 0 : theirs.received_before;
}

CableLedger::Reaction CableLedger::onLinkLost(const CableCounts& theirs) {
  if (!lost_) return {.drop = theirs.generation == counts_.generation};
  if (theirs.generation < counts_.generation) return {};  // this end's kLinkLost is on its way
  Reaction reaction{.arrived = settle(theirs)};
  if (theirs.generation > counts_.generation) {
    // Only the other end established that connection: nothing of it has arrived here.
    counts_ = {theirs.generation, 0, counts_.received};
    reaction.drop = reaction.answer = true;
  }
  return reaction;
}

std::optional<uint64_t> CableLedger::onHello(const CableCounts& theirs) {
  const std::optional<uint64_t> arrived = settle(theirs);
  if (theirs.generation > counts_.generation) {
    counts_.received_before = 0;  // this end never established the other end's generation
  } else if (theirs.generation == counts_.generation) {
    counts_.received_before = counts_.received;
  }  // else the other end still needs the count of an older generation
  counts_.received = 0;
  counts_.generation = std::max(theirs.generation, counts_.generation) + 1;
  lost_ = false;
  return arrived;
}

}  // namespace topoopt
