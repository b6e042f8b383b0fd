// The byte stream of a libfabric link: messages, and payloads written into place.

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/libfabric/link.h"

namespace topoopt {
namespace {

// Payloads of at least this size are written into place.
constexpr size_t kLongBytes = 16 << 10;
// Quotas of receives: frames may fill this many, advertisements some more, then acknowledgements.
// Messages that wait for nothing use the rest.
constexpr size_t kDataSlots = 32;
constexpr size_t kAdvertSlots = kDataSlots + FabricLink::kPayloads;
constexpr size_t kCountSlots = kAdvertSlots + 4;
constexpr size_t kRoomSlots = kCountSlots + 6;
static_assert(kRoomSlots < FabricLink::kSlots);
constexpr size_t kManyTaken = kDataSlots / 2;
constexpr size_t kSomeTaken = FabricLink::kPayloads / 2;  // worth a message before sleeping
// Limit of begun bytes, so that an urgent frame waits for no more. It applies if payloads are so
// fast that round trips between them would matter.
constexpr size_t kManyBytes = 1 << 20;
constexpr std::chrono::duration<double> kShortTime{0.008};
constexpr double kSmoothing = 0.125;

// Frames whose handling cannot change the places of later payloads.
bool leavesPlaces(FrameType type) {
  return type == FrameType::kData || type == FrameType::kAck || type == FrameType::kAckRequest ||
         type == FrameType::kHeartbeat;
}

}  // namespace

// ---- messages ----------------------------------------------------------------------------------

bool FabricLink::mayFill(size_t most_outstanding) const {
  return !free_slots_.empty() && sent_messages_ - taken_messages_ < most_outstanding;
}

// Returns the place of a message's content; requires a free slot.
std::byte* FabricLink::begin(Kind kind, uint64_t position) {
  filling_ = free_slots_.back();
  free_slots_.pop_back();
  const MessageHeader header{kind, 0, position, consumed_, posted_again_};
  said_consumed_ = consumed_;
  said_posted_ = posted_again_;
  std::memcpy(port_->sendSlot(filling_), &header, sizeof header);
  return port_->sendSlot(filling_) + sizeof header;
}

void FabricLink::finish(size_t bytes) {
  const auto size = static_cast<uint32_t>(bytes);
  std::memcpy(port_->sendSlot(filling_) + offsetof(MessageHeader, bytes), &size, sizeof size);
  unposted_.push_back({filling_, sizeof(MessageHeader) + bytes});
  ++sent_messages_;
  ++in_flight_;
  post();
}

void FabricLink::post() {
  guarded([&] {
    while (!unposted_.empty() && port_->send(unposted_.front().slot, unposted_.front().bytes)) {
      unposted_.pop_front();
      active();
    }
    if (!unposted_.empty()) active();  // the other end may have to make room
    while (!unreceived_.empty() && port_->receive(unreceived_.front())) unreceived_.pop_front();
  });
}

// Reports consumed bytes and reposted receives, if the other end needs them.
void FabricLink::sendCounts(bool at_once) {
  const bool room = posted_again_ - said_posted_ >= (at_once ? kSomeTaken : kManyTaken);
  if (!room && (!at_once || consumed_ == said_consumed_)) return;
  if (!attached_ || broken_ || socket_ended_ || reading_ended_) return;
  if (!mayFill(room ? kRoomSlots : kCountSlots)) return;
  begin(Kind::kCounts, begun_);
  finish(0);
}

// ---- reading -----------------------------------------------------------------------------------

// Reads the header at `position`; returns false if it is incomplete.
bool FabricLink::peek(uint64_t position, FrameHeader& header) const {
  auto* const into = reinterpret_cast<std::byte*>(&header);
  size_t have = 0;
  for (const Arrived& message : arrived_) {
    const size_t bytes = message.end - message.begin;
    const uint64_t wanted = position + have;
    if (message.position + bytes <= wanted) continue;
    if (message.position > wanted) return false;
    const auto skip = static_cast<size_t>(wanted - message.position);
    const size_t taken = std::min(bytes - skip, sizeof header - have);
    std::memcpy(into + have, port_->receiveSlot(message.slot) + message.begin + skip, taken);
    have += taken;
    if (have == sizeof header) return true;
  }
  return false;
}

// Advertises the places of long payloads before their frames' turns. Frames after `looked_ahead_`
// are not delivered.
void FabricLink::lookAhead() {
  const bool may = attached_ && !broken_ && !socket_ended_ && !reading_ended_;
  FrameHeader header;
  while (!broken_ && pause_at_ <= consumed_ && peek(looked_ahead_, header)) {
    if (header.magic != kFrameMagic || header.payload_bytes > kMaxPayloadBytes) {
      looked_ahead_ = UINT64_MAX;  // then reading refuses it
      return;
    }
    const uint64_t payload_at = looked_ahead_ + sizeof header;
    if (header.payload_bytes >= kLongBytes && may) {
      room_wanted_ = awaited_.size() < kPayloads && !mayFill(kAdvertSlots);
      if (awaited_.size() == kPayloads || room_wanted_) return;
      advertise(header, payload_at);
    }
    looked_ahead_ = payload_at + header.payload_bytes;
    if (!leavesPlaces(header.type)) pause_at_ = looked_ahead_;
  }
}

void FabricLink::advertise(const FrameHeader& header, uint64_t position) {
  std::byte* const place = placeAhead(header);
  const size_t index = advertised_payloads_++ % kPayloads;
  guarded([&] {
    const FabricPort::Advert advert = port_->advertise(index, place, header.payload_bytes);
    awaited_.push_back({position, header.payload_bytes, index, place});
    std::memcpy(begin(Kind::kAdvert, position), &advert, sizeof advert);
    finish(sizeof advert);
  });
}

// The other end has written the payload; it sends the low half of the position.
void FabricLink::placed(uint32_t position) {
  for (Awaited& awaited : awaited_) {
    if (static_cast<uint32_t>(awaited.position) != position || awaited.placed) continue;
    awaited.placed = true;
    port_->withdraw(awaited.index);
    return becameReadable();
  }
  broken("received a payload that nothing waits for");
}

void FabricLink::takeSlot(const Arrived& front) {
  const size_t slot = front.slot;
  arrived_.pop_front();
  postReceive(slot);
  sendCounts(false);
}

size_t FabricLink::copyOut(const iovec* parts, int part_count) {
  size_t copied = 0;
  int part = 0;
  size_t filled = 0;  // bytes of this part
  while (part < part_count && !arrived_.empty() && !broken_) {
    Arrived& front = arrived_.front();
    // A running payload or a header without a known place comes first.
    if (front.position != consumed_ || consumed_ >= looked_ahead_) break;
    const size_t known =
        static_cast<size_t>(std::min<uint64_t>(front.end - front.begin, looked_ahead_ - consumed_));
    const size_t bytes = std::min(known, parts[part].iov_len - filled);
    std::memcpy(static_cast<std::byte*>(parts[part].iov_base) + filled,
                port_->receiveSlot(front.slot) + front.begin, bytes);
    front.begin += bytes;
    front.position += bytes;
    filled += bytes;
    copied += bytes;
    consumed_ += bytes;
    if (front.begin == front.end) takeSlot(front);
    if (filled == parts[part].iov_len) {
      ++part;
      filled = 0;
    }
  }
  return copied;
}

Io FabricLink::readBytes(const iovec* parts, int part_count, size_t& count) {
  if (port_) lookAhead();
  if (!awaited_.empty() && awaited_.front().placed && awaited_.front().position == consumed_) {
    const size_t bytes = awaited_.front().bytes;
    awaited_.pop_front();
    consumed_ += bytes;
    count += bytes;
    return Io::kMore;
  }
  if (const size_t copied = copyOut(parts, part_count); copied > 0) {
    count += copied;
    return Io::kMore;
  }
  if (broken_) return Io::kBroken;
  if (end_seen_ && arrived_.empty() && awaited_.empty()) return Io::kEnded;
  if (!socket_ended_) return Io::kBlocked;
  if (!drained()) return Io::kBlocked;  // poll() retries
  const bool placed = !awaited_.empty() && awaited_.front().placed;
  return arrived_.empty() && !placed ? Io::kEnded : Io::kMore;
}

// ---- writing -----------------------------------------------------------------------------------

void FabricLink::takeAdvert(uint64_t position, const FabricPort::Advert& advert) {
  for (Writing& writing : writing_) {
    if (writing.position != position) continue;
    if (writing.bytes != advert.bytes || writing.target) break;
    writing.target = advert;
    return becameWritable();  // its memory is known once it is gathered
  }
  broken("the other end waits for another payload");
}

// Copies a part without its first `skip` bytes into messages. Returns false without room.
bool FabricLink::beginShort(const iovec& part, size_t skip) {
  const size_t room = slot_bytes_ - sizeof(MessageHeader);
  while (skip < part.iov_len) {
    if (into_ == nullptr) {
      if (!mayFill(kDataSlots)) return false;
      into_ = begin(Kind::kBytes, begun_);
    }
    const size_t bytes = std::min(room - filled_, part.iov_len - skip);
    std::memcpy(into_ + filled_, static_cast<const std::byte*>(part.iov_base) + skip, bytes);
    skip += bytes;
    filled_ += bytes;
    begun_ += bytes;
    if (filled_ == room) flush();
  }
  return true;
}

void FabricLink::flush() {
  if (into_ != nullptr) finish(std::exchange(filled_, 0));
  into_ = nullptr;
}

// Announces a part that will be written into place.
void FabricLink::beginLong(const iovec& part) {
  flush();
  writing_.push_back({begun_, part.iov_len, begun_payloads_++ % kPayloads});
  begun_ += part.iov_len;
}

// The memory is in use until the provider reports completion. Returns false without room.
bool FabricLink::write(Writing& writing, const std::byte* from) {
  active();
  guarded([&] {
    const auto data = static_cast<uint32_t>(writing.position);
    if (!port_->write(writing.index, from, *writing.target, data)) return;
    writing.state = Writing::State::kInFlight;
    writing.begun = Clock::now();
  });
  return writing.state == Writing::State::kInFlight;
}

void FabricLink::payloadWritten(size_t index) {
  for (Writing& writing : writing_) {
    if (writing.index != index || writing.state != Writing::State::kInFlight) continue;
    writing.state = Writing::State::kDone;
    const std::chrono::duration<double> time = Clock::now() - writing.begun;
    const bool first = payload_time_.count() == 0;
    payload_time_ = first ? time : (1 - kSmoothing) * payload_time_ + kSmoothing * time;
    batch_bytes_ = payload_time_ < kShortTime ? kManyBytes : kBatchBytes;
  }
  becameWritable();
}

// Counts the begun bytes up to the first unwritten payload.
size_t FabricLink::countWritten() {
  while (!writing_.empty() && writing_.front().state == Writing::State::kDone) writing_.pop_front();
  const uint64_t until = writing_.empty() ? begun_ : writing_.front().position;
  return static_cast<size_t>(until - std::exchange(written_, until));
}

// The parts begin at the end of countWritten(); some may be begun.
Io FabricLink::writeBytes(const iovec* parts, int part_count, size_t& count) {
  if (broken_) return Io::kBroken;
  if (socket_ended_) return Io::kEnded;
  if (!attached_) return Io::kBlocked;
  uint64_t at = written_;
  auto writing = writing_.begin();
  refused_ = false;
  for (int i = 0; i < part_count && !broken_; ++i) {
    const iovec& part = parts[i];
    const auto begun =
        static_cast<size_t>(std::min<uint64_t>(begun_ - std::min(begun_, at), part.iov_len));
    if (part.iov_len < kLongBytes) {
      // The header of a long payload announces it, and the other end then waits for it.
      const bool announces = i + 1 < part_count && parts[i + 1].iov_len >= kLongBytes;
      if (announces && begun == 0 && writing_.size() == kPayloads) break;
      if (!beginShort(part, begun)) break;
    } else if (begun == 0) {
      beginLong(part);
      writing = writing_.end();
    } else {
      const bool waits = writing->state == Writing::State::kAnnounced && writing->target;
      if (waits && !refused_) {
        refused_ = !write(*writing, static_cast<const std::byte*>(part.iov_base));
      }
      ++writing;
    }
    at += part.iov_len;
  }
  flush();
  if (broken_) return Io::kBroken;
  const size_t written = countWritten();
  count += written;
  return written > 0 ? Io::kMore : Io::kBlocked;
}

void FabricLink::endWriting() {
  end_wanted_ = !attached_;
  if (!attached_ || broken_ || socket_ended_) return;
  if (!mayFill(kSlots)) return broken("the other end takes no messages");
  begin(Kind::kEnd, begun_);
  finish(0);
}

}  // namespace topoopt
