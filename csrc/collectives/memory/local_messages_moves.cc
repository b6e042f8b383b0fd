// Moves frames of local_messages.h to and from the rings.

#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/memory/local_messages.h"
#include "common/errors.h"

namespace topoopt {
namespace {

// Largest payload of a frame: smaller than a message, so that both copies overlap.
constexpr size_t kPieceBytes = 32 << 10;
// A smaller piece is not worth a frame, unless it is the last.
constexpr size_t kLeastPieceBytes = 8 << 10;
// Limit per member and turn, so that others get their turn, and the mutex.
constexpr size_t kTurnBytes = 1 << 20;

[[noreturn]] void throwDamaged() { throw PeerLostError("the memory that ranks share is damaged"); }

}  // namespace

// Returns whether anything moved, and more may.
bool LocalMessages::progress(bool keep) {
  if (ended_ || failing_) return false;
  bool moved = false;
  for (int i = 1; i < rings_.size(); ++i) {
    const int peer = others(i);
    const bool awaited = !out_[peer].idle() || !in_[peer].idle() || !any_.empty();
    if (!awaited && !(keep && rings_.ring(peer, member_).writerWaits())) continue;
    moved = read(peer, keep) || moved;
    moved = write(peer) || moved;
  }
  return moved;
}

bool LocalMessages::write(int member) {
  Out& out = out_[member];
  if (rings_.closed(member) && !in_[member].left) {  // complete them as if they were received
    if (out.idle()) return false;
    for (const Entry entry : std::exchange(out.ready, {})) finish(entry);
    for (const auto& [message, entry] : std::exchange(out.announced, {})) finish(entry);
    out.grants.clear();
    return true;
  }
  MessageRing ring = rings_.ring(member_, member);
  bool moved = false;
  for (size_t written = 0; written < kTurnBytes;) {
    if (out.ready.empty() && out.grants.empty()) {
      ring.setWriterWaits(false);
      return moved;
    }
    const size_t more = writeGrants(member, ring) + writeNext(member, ring);
    if (more > 0) {
      written += more;
      moved = true;
      out.notified = false;
      continue;
    }
    if (ring.writerWaits()) return moved;
    ring.setWriterWaits(true);  // before the final check
  }
  ring.setWriterWaits(true);
  return true;
}

// Returns the written bytes.
size_t LocalMessages::writeGrants(int member, MessageRing& ring) {
  Out& out = out_[member];
  size_t written = 0;
  while (!out.grants.empty() && ring.room()) {
    ring.write({.kind = FrameKind::kGrant, .number = out.grants.front()}, nullptr);
    out.grants.pop_front();
    notify(member);
    written += MessageRing::kHeaderBytes;
  }
  return written;
}

// Writes one frame of the first message; returns its bytes.
size_t LocalMessages::writeNext(int member, MessageRing& ring) {
  Out& out = out_[member];
  const auto room = ring.room();
  if (out.ready.empty() || !room) return 0;
  const Entry entry = out.ready.front();
  Operation& sent = *entry;
  RingFrame frame{.tag = sent.tag, .message_bytes = sent.bytes, .fingerprint = sent.fingerprint};
  if (sent.way == Way::kUndecided) {
    const bool announced = sent.bytes > early_bytes_ || ring.readerFull();
    const size_t least =
        announced ? 0 : std::min({sent.bytes, kLeastPieceBytes, rings_.ringBytes() / 4});
    if (*room < least) return 0;
    sent.message = out.messages++;
    sent.way = announced ? Way::kAnnounced : Way::kData;
  }
  frame.number = sent.message;
  if (sent.way == Way::kAnnounced) {
    frame.kind = FrameKind::kAnnounce;
    out.ready.pop_front();
    out.announced.emplace(sent.message, entry);
    ring.write(frame, nullptr);
    notify(member);
    return MessageRing::kHeaderBytes;
  }
  const size_t left = sent.bytes - sent.moved;
  const size_t payload = std::min({left, kPieceBytes, *room});
  if (payload < std::min({left, kLeastPieceBytes, rings_.ringBytes() / 4})) return 0;
  frame.kind = sent.begun               ? FrameKind::kMore
               : sent.way == Way::kData ? FrameKind::kData
                                        : FrameKind::kGranted;
  frame.payload_bytes = static_cast<uint32_t>(payload);
  ring.write(frame, sent.data + sent.moved);
  notify(member);
  sent.begun = true;
  sent.moved += payload;
  if (sent.moved == sent.bytes) {
    out.ready.pop_front();
    finish(entry);
  }
  return MessageRing::kHeaderBytes + payload;
}

bool LocalMessages::read(int member, bool keep) {
  MessageRing ring = rings_.ring(member, member_);
  size_t taken = 0;
  while (taken < kTurnBytes) {
    const auto frame = ring.next();
    if (!frame || !readFrame(member, ring, *frame, keep)) break;
    taken += MessageRing::kHeaderBytes + frame->payload_bytes;
  }
  if (taken > 0 && ring.writerWaits() && ring.halfFree()) notify(member);
  return taken > 0;
}

// Returns whether the frame was consumed.
bool LocalMessages::readFrame(int member, MessageRing& ring, const RingFrame& frame, bool keep) {
  In& in = in_[member];
  switch (frame.kind) {
    case FrameKind::kData:
    case FrameKind::kAnnounce:
      return beginMessage(member, ring, frame, keep);
    case FrameKind::kMore:
      break;
    case FrameKind::kGrant: {
      const auto granted = out_[member].announced.extract(frame.number);
      if (granted.empty()) throwDamaged();
      granted.mapped()->way = Way::kGranted;
      out_[member].ready.push_back(granted.mapped());
      ring.take(frame, nullptr);
      return true;
    }
    case FrameKind::kGranted: {
      const auto granted = in.granted.extract(frame.number);
      if (granted.empty() || granted.mapped()->bytes != frame.message_bytes) throwDamaged();
      in.landing = granted.mapped();
      break;
    }
    default:
      throwDamaged();
  }
  land(member, ring, frame);
  return true;
}

bool LocalMessages::beginMessage(int member, MessageRing& ring, const RingFrame& frame, bool keep) {
  In& in = in_[member];
  const bool announced = frame.kind == FrameKind::kAnnounce;
  if (in.landing || in.keeping) throwDamaged();  // the previous message is incomplete
  if (const auto entry = match(member, frame.tag)) {
    check(member, frame, *entry);
    (*entry)->member = member;
    if (announced) {
      ring.take(frame, nullptr);
      grant(member, frame.number, *entry);
    } else {
      in.landing = *entry;
      land(member, ring, frame);
    }
    return true;
  }
  auto early = std::make_shared<Early>(Early{frame});
  if (announced) {
    ring.take(frame, nullptr);
    in.early[frame.tag].push_back(std::move(early));
    return true;
  }
  if (!waitsBehind(member) && !(keep && ring.writerWaits())) return false;
  if (frame.message_bytes > early_bytes_) throwDamaged();
  early->data = std::make_unique_for_overwrite<std::byte[]>(frame.message_bytes);
  in.early[frame.tag].push_back(early);
  in.early_bytes += frame.message_bytes;
  ring.setReaderFull(in.early_bytes > early_bytes_ / 2);
  in.keeping = std::move(early);
  land(member, ring, frame);
  return true;
}

// Returns the receive for the next message with this tag.
std::optional<LocalMessages::Entry> LocalMessages::match(int member, int tag) {
  auto& posted = in_[member].posted;
  if (const auto found = posted.find(tag); found != posted.end()) {
    const Entry entry = found->second.front();
    found->second.pop_front();
    if (found->second.empty()) posted.erase(found);
    return entry;
  }
  for (auto any = any_.begin(); any != any_.end(); ++any) {
    if ((*any)->tag != tag) continue;
    const Entry entry = *any;
    any_.erase(any);
    return entry;
  }
  return std::nullopt;
}

// An operation waits for a frame behind a message without a receive.
bool LocalMessages::waitsBehind(int member) const {
  const In& in = in_[member];
  return !in.posted.empty() || !in.granted.empty() || !any_.empty() ||
         !out_[member].announced.empty();
}

// Completes the receive from an early message; returns false if there is none.
bool LocalMessages::takeEarly(int member, Entry entry) {
  In& in = in_[member];
  const auto found = in.early.find(entry->tag);
  if (found == in.early.end()) return false;
  const std::shared_ptr<Early> early = found->second.front();
  check(member, early->frame, entry);
  found->second.pop_front();
  if (found->second.empty()) in.early.erase(found);
  entry->member = member;
  if (early->frame.kind == FrameKind::kAnnounce) {
    grant(member, early->frame.number, entry);
    return true;
  }
  if (early->moved > 0) std::memcpy(entry->data, early->data.get(), early->moved);
  entry->moved = early->moved;
  in.early_bytes -= early->frame.message_bytes;
  rings_.ring(member, member_).setReaderFull(in.early_bytes > early_bytes_ / 2);
  if (in.keeping == early) {
    in.keeping.reset();
    in.landing = entry;
  } else {
    finish(entry);
  }
  return true;
}

void LocalMessages::grant(int member, uint64_t number, Entry entry) {
  in_[member].granted.emplace(number, entry);
  out_[member].grants.push_back(number);
}

void LocalMessages::check(int member, const RingFrame& frame, Entry entry) const {
  if (frame.message_bytes == entry->bytes && frame.fingerprint == entry->fingerprint) return;
  throw Failure{std::make_exception_ptr(MessageMismatch(ranks_[member], ranks_[member_],
                                                        {frame.message_bytes, frame.fingerprint},
                                                        {entry->bytes, entry->fingerprint})),
                entry->tag};
}

// Copies a frame's payload to the partly received message.
void LocalMessages::land(int member, MessageRing& ring, const RingFrame& frame) {
  In& in = in_[member];
  if (in.landing) {
    Operation& received = **in.landing;
    if (frame.payload_bytes > received.bytes - received.moved) throwDamaged();
    ring.take(frame, received.data + received.moved);
    received.moved += frame.payload_bytes;
    if (received.moved == received.bytes) finish(*std::exchange(in.landing, std::nullopt));
  } else if (in.keeping) {
    Early& early = *in.keeping;
    if (frame.payload_bytes > early.frame.message_bytes - early.moved) throwDamaged();
    ring.take(frame, early.data.get() + early.moved);
    early.moved += frame.payload_bytes;
    if (early.moved == early.frame.message_bytes) in.keeping.reset();
  } else {
    throwDamaged();
  }
}

void LocalMessages::finish(Entry entry) {
  over_.push_back({std::move(*entry), nullptr});
  operations_.erase(entry);
}

}  // namespace topoopt
