#include "collectives/memory/local_team.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "collectives/memory/shared_words.h"
#include "common/errors.h"
#include "common/log.h"

namespace topoopt {
namespace {

// Up to this size every member reduces all elements, which saves a phase.
constexpr size_t kFlatBytes = 32 << 10;
// A block is reduced and copied while it is in the first-level cache.
constexpr size_t kBlockBytes = 8 << 10;
constexpr size_t kLineBytes = 64;
// Bytes that all members write per phase, if the message exceeds a slot. They fit a second-level
// cache even if members share a processor; fewer would not outweigh the wait per phase.
constexpr size_t kWrittenBytes = 512 << 10;
constexpr size_t kLeastChunkBytes = 128 << 10;

// Each trial waits a constant factor more phases than the one before.
constexpr uint32_t kMostTrials = 5;
constexpr uint32_t kPhasesBetweenTrials = 4;

size_t ceilDivide(size_t value, size_t divisor) { return (value + divisor - 1) / divisor; }

size_t sumBefore(const std::vector<size_t>& values, int index) {
  return std::accumulate(values.begin(), values.begin() + index, size_t{0});
}

uint32_t fingerprintOf(const CollectiveCall& call) {
  return call.called.hash ^ static_cast<uint32_t>(call.number) * 0x9e3779b1u;
}

// The largest part that `sender` sends to another member.
size_t largestSent(const uint64_t* sizes, int members, int sender) {
  uint64_t largest = 0;
  for (int to = 0; to < members; ++to) {
    if (to != sender) largest = std::max(largest, sizes[to]);
  }
  return largest;
}

void copyTo(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

// ---- phases ------------------------------------------------------------------------------------

LocalTeam::LocalTeam(std::shared_ptr<TeamSegment> segment, int member, std::vector<int> ranks,
                     std::string name)
    : segment_(std::move(segment)),
      member_(member),
      ranks_(std::move(ranks)),
      name_(std::move(name)),
      trial_(segment_->trialArea(), member, segment_->size()) {}

void LocalTeam::begin(const CollectiveCall& call) {
  // Check for failure first: the failed member may have arrived in this phase.
  if (segment_->failed()) throw PeerLostError(segment_->failure());
  call_ = &call;
  agreed_ = false;
  limit_ = TeamSegment::TimeLimit(call.limit);
  segment_->fingerprint(member_, writing()) = fingerprintOf(call);
  segment_->setCall(member_, writing(), {call.called, call.number});
}

void LocalTeam::endPhase() {
  ++phase_;
  segment_->arrive(member_, phase_);
  const TeamSegment::Waited waited = segment_->waitAll(member_, phase_, limit_);
  if (waited != TeamSegment::Waited::kAllArrived) raise(waited);
  if (!std::exchange(agreed_, true)) checkAgreement();
  if (trials_ < kMostTrials) learnStores();
}

// Members may differ until the next phase, which makes a member's stores visible.
void LocalTeam::learnStores() {
  if (phase_ == next_trial_) trial_.run(trials_);
  trial_.adopt();
  if (phase_ != next_trial_ + 1) return;
  const Stores stores = trial_.result();
  trials_ = stores != Stores::kUnknown ? kMostTrials : trials_ + 1;
  next_trial_ *= kPhasesBetweenTrials;
  if (member_ != 0 || stores == Stores::kUnknown || !logs(LogLevel::kInfo)) return;
  logLine(LogLevel::kInfo,
          "group " + name_ + ": what members read next is written " +
              (stores == Stores::kStreaming ? "past the caches" : "to the caches"));
}

void LocalTeam::checkAgreement() const {
  for (int other = 0; other < size(); ++other) {
    if (segment_->fingerprint(other, phase_) == fingerprintOf(*call_)) continue;
    const auto theirs = segment_->callAt(other, phase_);
    throw MismatchError(disagreement({ranks_[other], theirs ? theirs->called : Called{}},
                                     {ranks_[member_], call_->called}, ranks_, call_->number,
                                     name_));
  }
}

std::string LocalTeam::timeoutText() const {
  std::string why = timedOutText(call_->called.name, call_->number, name_, call_->limit, missing());
  for (int other = 0; other < size(); ++other) {
    if (segment_->arrived(other, phase_)) continue;
    const auto last = segment_->lastCall(other);
    if (last && last->number >= call_->number) continue;
    why += "; rank " + std::to_string(ranks_[other]) + " has not called it";
    if (last) {
      why += ", after " + textOf(last->called, ranks_) + " (operation " +
             std::to_string(last->number) + ")";
    }
  }
  return why;
}

std::set<int> LocalTeam::missing() const {
  std::set<int> ranks;
  for (int other = 0; other < size(); ++other) {
    if (!segment_->arrived(other, phase_)) ranks.insert(ranks_[other]);
  }
  return ranks;
}

void LocalTeam::raise(TeamSegment::Waited waited) const {
  if (waited == TeamSegment::Waited::kDeadline) {
    throw TimeoutError(timeoutText());
  }
  if (waited == TeamSegment::Waited::kFailed) throw PeerLostError(segment_->failure());
  if (segment_->left(member_)) throw AbortedError("group " + name_ + " was shut down");
  for (int other = 0; other < size(); ++other) {
    if (segment_->left(other) && !segment_->arrived(other, phase_)) {
      throw PeerLostError("rank " + std::to_string(ranks_[other]) + " has left group " + name_);
    }
  }
  throw PeerLostError("a member has left group " + name_);
}

// ---- parts -------------------------------------------------------------------------------------

size_t LocalTeam::chunkBytes(size_t message) const {
  const size_t slot = segment_->slotBytes();
  if (message <= slot) return slot;
  return std::min(slot, std::max(kWrittenBytes / static_cast<size_t>(size()), kLeastChunkBytes));
}

// Pieces begin at cache line boundaries, so no two members write to the same line.
size_t LocalTeam::pieceBytes(size_t part) const {
  const auto members = static_cast<size_t>(size());
  return chunkBytes(part * members) / members / kLineBytes * kLineBytes;
}

LocalTeam::Pieces::Pieces(size_t count, size_t element_bytes, size_t piece_bytes, int size)
    : count_(count),
      element_bytes_(element_bytes),
      size_(static_cast<size_t>(size)),
      piece_bytes_(piece_bytes),
      chunk_count_(piece_bytes_ / element_bytes * size_),
      chunks_(ceilDivide(count, chunk_count_)) {}

LocalTeam::Part LocalTeam::Pieces::part(size_t chunk, int member) const {
  const size_t begin = chunk * chunk_count_;
  const size_t count = std::min(chunk_count_, count_ - begin);
  const size_t line = kLineBytes / element_bytes_;
  const size_t piece = ceilDivide(ceilDivide(count, size_), line) * line;
  const size_t first = std::min(count, piece * static_cast<size_t>(member));
  return {begin + first, std::min(piece, count - first)};
}

LocalTeam::Pieces LocalTeam::piecesOf(size_t count, size_t element_bytes) const {
  const size_t part = ceilDivide(count * element_bytes, static_cast<size_t>(size()));
  return {count, element_bytes, pieceBytes(part), size()};
}

void LocalTeam::contribute(const void* data, size_t bytes) {
  copyTo(segment_->contribution(member_, writing()), data, bytes);
}

std::vector<const std::byte*>& LocalTeam::contributions(size_t offset) {
  sources_.clear();
  for (int other = 0; other < size(); ++other) {
    sources_.push_back(segment_->contribution(other, reading()) + offset);
  }
  return sources_;
}

void LocalTeam::reduceSources(const std::vector<const std::byte*>& sources, std::byte* output,
                              std::byte* copied, size_t count, DataType type, ReduceOp op) const {
  const size_t element = elementSize(type);
  const size_t block = kBlockBytes / element;
  for (size_t first = 0; first < count; first += block) {
    const size_t length = std::min(block, count - first);
    const size_t offset = first * element;
    reduceTo(type, op, output + offset, sources[0] + offset, sources[1] + offset, length);
    for (size_t other = 2; other < sources.size(); ++other) {
      reduceInto(type, op, output + offset, sources[other] + offset, length);
    }
    if (copied != nullptr) copyTo(copied + offset, output + offset, length * element);
  }
}

void LocalTeam::contributePieces(const Pieces& pieces, size_t chunk, const std::byte* input) {
  std::byte* slot = segment_->contribution(member_, writing());
  const size_t element = pieces.elementBytes();
  for (int other = 0; other < size(); ++other) {
    if (other == member_) continue;
    const Part part = pieces.part(chunk, other);
    copyToOthers(slot + pieces.slotOffset(other), input + part.first * element,
                 part.count * element);
  }
}

void LocalTeam::collectPieces(const Pieces& pieces, size_t chunk, std::byte* output) const {
  const size_t element = pieces.elementBytes();
  for (int step = 1; step < size(); ++step) {
    const int other = (member_ + step) % size();
    const Part part = pieces.part(chunk, other);
    copyTo(output + part.first * element, segment_->result(other, reading()), part.count * element);
  }
}

// ---- reductions --------------------------------------------------------------------------------

// Each phase does three things: it collects results of the chunk before last, reduces the own piece
// of the last chunk, and contributes the next chunk.
void LocalTeam::allReduce(const CollectiveCall& call, void* data, size_t count, DataType type,
                          ReduceOp op) {
  begin(call);
  if (size() == 1) return;
  auto* const bytes = static_cast<std::byte*>(data);
  const size_t element = elementSize(type);
  if (count * element <= std::min(kFlatBytes, segment_->slotBytes())) {
    contribute(data, count * element);
    endPhase();
    return reduceSources(contributions(0), bytes, nullptr, count, type, op);
  }
  const Pieces pieces = piecesOf(count, element);
  for (size_t step = 0; step < pieces.chunks() + 2; ++step) {
    if (step >= 2) collectPieces(pieces, step - 2, bytes);
    if (step >= 1 && step <= pieces.chunks()) {
      const Part own = pieces.part(step - 1, member_);
      auto& sources = contributions(pieces.slotOffset(member_));
      sources[member_] = bytes + own.first * element;
      reduceSources(sources, segment_->result(member_, writing()), bytes + own.first * element,
                    own.count, type, op);
    }
    if (step < pieces.chunks()) contributePieces(pieces, step, bytes);
    if (step < pieces.chunks() + 1) endPhase();
  }
}

void LocalTeam::reduce(const CollectiveCall& call, const void* input, void* output, size_t count,
                       DataType type, ReduceOp op, int root) {
  begin(call);
  if (size() == 1) return;
  const auto* const from = static_cast<const std::byte*>(input);
  auto* const to = static_cast<std::byte*>(output);
  const size_t element = elementSize(type);
  if (count * element <= std::min(kFlatBytes, segment_->slotBytes())) {
    contribute(input, count * element);
    endPhase();
    if (member_ == root) reduceSources(contributions(0), to, nullptr, count, type, op);
    return;
  }
  const Pieces pieces = piecesOf(count, element);
  for (size_t step = 0; step < pieces.chunks() + 2; ++step) {
    if (step >= 2 && member_ == root) collectPieces(pieces, step - 2, to);
    if (step >= 1 && step <= pieces.chunks()) {
      const Part own = pieces.part(step - 1, member_);
      auto& sources = contributions(pieces.slotOffset(member_));
      sources[member_] = from + own.first * element;
      std::byte* const target =
          member_ == root ? to + own.first * element : segment_->result(member_, writing());
      reduceSources(sources, target, nullptr, own.count, type, op);
    }
    if (step < pieces.chunks()) contributePieces(pieces, step, from);
    if (step < pieces.chunks() + 1) endPhase();
  }
}

void LocalTeam::reduceScatter(const CollectiveCall& call, const void* input, void* output,
                              const std::vector<size_t>& counts, DataType type, ReduceOp op) {
  begin(call);
  if (size() == 1) return;
  const auto* const from = static_cast<const std::byte*>(input);
  auto* const to = static_cast<std::byte*>(output);
  const size_t element = elementSize(type);
  const size_t largest = *std::max_element(counts.begin(), counts.end());
  const size_t piece_bytes = pieceBytes(largest * element);
  const size_t piece = piece_bytes / element;
  const size_t steps = std::max<size_t>(1, ceilDivide(largest, piece));
  const auto part = [&](int member, size_t step) -> Part {
    const size_t first = std::min(counts[member], step * piece);
    return {sumBefore(counts, member) + first, std::min(piece, counts[member] - first)};
  };
  for (size_t step = 0; step <= steps; ++step) {
    if (step >= 1) {
      const Part own = part(member_, step - 1);
      auto& sources = contributions(static_cast<size_t>(member_) * piece_bytes);
      sources[member_] = from + own.first * element;
      reduceSources(sources, to + (step - 1) * piece_bytes, nullptr, own.count, type, op);
    }
    if (step == steps) break;
    std::byte* const slot = segment_->contribution(member_, writing());
    for (int other = 0; other < size(); ++other) {
      if (other == member_) continue;
      const Part theirs = part(other, step);
      copyToOthers(slot + static_cast<size_t>(other) * piece_bytes, from + theirs.first * element,
                   theirs.count * element);
    }
    endPhase();
  }
}

// ---- moves -------------------------------------------------------------------------------------

void LocalTeam::broadcast(const CollectiveCall& call, void* data, size_t bytes, int root) {
  begin(call);
  if (size() == 1) return;
  auto* const memory = static_cast<std::byte*>(data);
  const size_t chunk = chunkBytes(bytes);
  const size_t steps = std::max<size_t>(1, ceilDivide(bytes, chunk));
  for (size_t step = 0; step <= steps; ++step) {
    if (step >= 1 && member_ != root) {
      const size_t first = (step - 1) * chunk;
      copyTo(memory + first, segment_->contribution(root, reading()),
             std::min(chunk, bytes - first));
    }
    if (step == steps) break;
    if (member_ == root) contribute(memory + step * chunk, std::min(chunk, bytes - step * chunk));
    endPhase();
  }
}

void LocalTeam::allGather(const CollectiveCall& call, void* output,
                          const std::vector<size_t>& bytes) {
  begin(call);
  if (size() == 1) return;
  auto* const memory = static_cast<std::byte*>(output);
  const size_t largest = *std::max_element(bytes.begin(), bytes.end());
  const size_t chunk = chunkBytes(largest);
  const size_t steps = std::max<size_t>(1, ceilDivide(largest, chunk));
  for (size_t step = 0; step <= steps; ++step) {
    for (int i = 1; step >= 1 && i < size(); ++i) {
      const int other = (member_ + i) % size();
      const size_t first = std::min(bytes[other], (step - 1) * chunk);
      copyTo(memory + sumBefore(bytes, other) + first, segment_->contribution(other, reading()),
             std::min(chunk, bytes[other] - first));
    }
    if (step == steps) break;
    const size_t first = std::min(bytes[member_], step * chunk);
    contribute(memory + sumBefore(bytes, member_) + first, std::min(chunk, bytes[member_] - first));
    endPhase();
  }
}

// Every member publishes its sizes to and from each member, because no fingerprint covers them.
// Both ends detect a disagreement.
void LocalTeam::learnSizes(const std::vector<size_t>& send_bytes,
                           const std::vector<size_t>& receive_bytes) {
  const auto check = [this](const PairExchange& transfer) {
    if (transfer.sent_bytes == transfer.expected_bytes) return;
    throw MismatchError(disagreement(transfer, call_->called, call_->number, name_));
  };
  largest_sent_.clear();
  for (int other = 0; other < size(); ++other) {
    const uint64_t* const sent = segment_->table(other, reading());
    const uint64_t* const expected = sent + size();
    largest_sent_.push_back(largestSent(sent, size(), other));
    if (other == member_) continue;
    check({ranks_[other], sent[member_], ranks_[member_], receive_bytes[other]});
    check({ranks_[member_], send_bytes[other], ranks_[other], expected[member_]});
  }
}

void LocalTeam::exchange(const CollectiveCall& call, const void* input,
                         const std::vector<size_t>& send_bytes, void* output,
                         const std::vector<size_t>& receive_bytes) {
  begin(call);
  if (size() == 1) return;
  uint64_t* const table = segment_->table(member_, writing());
  std::copy(receive_bytes.begin(), receive_bytes.end(),
            std::copy(send_bytes.begin(), send_bytes.end(), table));
  const size_t sent_piece = pieceBytes(largestSent(table, size(), member_));
  const auto send = [&](size_t step) {
    for (int other = 0; other < size(); ++other) {
      if (other == member_) continue;
      const size_t first = std::min(send_bytes[other], step * sent_piece);
      copyToOthers(
          segment_->contribution(member_, writing()) + static_cast<size_t>(other) * sent_piece,
          static_cast<const std::byte*>(input) + sumBefore(send_bytes, other) + first,
          std::min(sent_piece, send_bytes[other] - first));
    }
  };
  const auto receive = [&](size_t step) {
    for (int i = 1; i < size(); ++i) {
      const int other = (member_ + i) % size();
      const size_t piece = pieceBytes(largest_sent_[other]);
      const size_t first = std::min(receive_bytes[other], step * piece);
      copyTo(static_cast<std::byte*>(output) + sumBefore(receive_bytes, other) + first,
             segment_->contribution(other, reading()) + static_cast<size_t>(member_) * piece,
             std::min(piece, receive_bytes[other] - first));
    }
  };
  send(0);
  endPhase();
  learnSizes(send_bytes, receive_bytes);
  size_t steps = 0;
  for (const size_t largest : largest_sent_) {
    steps = std::max(steps, ceilDivide(largest, pieceBytes(largest)));
  }
  for (size_t step = 1; step <= steps; ++step) {
    receive(step - 1);
    if (step == steps) break;
    send(step);
    endPhase();
  }
}

void LocalTeam::barrier(const CollectiveCall& call) {
  begin(call);
  if (size() > 1) endPhase();
}

}  // namespace topoopt
