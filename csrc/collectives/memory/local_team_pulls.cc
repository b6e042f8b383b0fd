// Exchanges of a local team whose members read each other's memory: between a phase in which all
// show where their data are, and one after which nobody reads them any more.

#include <chrono>
#include <numeric>

#include "collectives/memory/local_team.h"
#include "common/errors.h"

namespace topoopt {
namespace {

// From here on the second phase and the calls of the kernel take less than a copy.
constexpr size_t kLeastPulledBytes = 32 << 10;
constexpr uint64_t kNothingToRead = 1;
// Why memory cannot be read any more is noticed elsewhere, too, and better.
constexpr std::chrono::seconds kExplained{5};

}  // namespace

bool LocalTeam::pulls(size_t bytes) const { return pulls_ && bytes >= kLeastPulledBytes; }

bool LocalTeam::showMemory(const void* data, size_t bytes) {
  uint64_t& own = segment_->address(member_, writing());
  own = bytes == 0 ? kNothingToRead : pulls_ ? addressForOthers(data, bytes) : 0;
  endPhase();
  bool all = true;
  for (int member = 0; member < size(); ++member) {
    all = all && segment_->address(member, reading()) != 0;
  }
  return all;
}

// After the phase in which members have shown their memory and their sizes.
void LocalTeam::pullExchange(void* output, const std::vector<size_t>& receive_bytes) {
  auto* const memory = static_cast<std::byte*>(output);
  for (int step = 1; step < size(); ++step) {
    const int other = (member_ + step) % size();
    const auto expected = receive_bytes.begin() + other;
    if (*expected == 0) continue;
    const uint64_t* const sent = segment_->table(other, reading());
    const uint64_t from =
        segment_->address(other, reading()) + std::accumulate(sent, sent + member_, uint64_t{0});
    std::byte* const to = memory + std::accumulate(receive_bytes.begin(), expected, size_t{0});
    if (peers_->read(other, from, to, *expected)) continue;
    awaitFailure("the memory of rank " + std::to_string(ranks_[other]) +
                 " cannot be read any more");
  }
  endPulls();
}

// A member that has failed or left before this one arrives may have given its memory to others
// while it was read. If it does so later, it was not.
void LocalTeam::endPulls() {
  if (segment_->broken()) awaitFailure("a member of group " + name_ + " has left");
  endPhase();
}

void LocalTeam::awaitFailure(const std::string& otherwise) const {
  TeamSegment::TimeLimit limit(kExplained);
  // A phase that never ends, for this member does not arrive.
  const TeamSegment::Waited waited = segment_->waitAll(member_, phase_ + 1, limit);
  if (waited == TeamSegment::Waited::kDeadline) throw PeerLostError(otherwise);
  raise(waited);
}

}  // namespace topoopt
