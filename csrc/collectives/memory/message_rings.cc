#include "collectives/memory/message_rings.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "collectives/memory/shared_words.h"
#include "common/errors.h"

namespace topoopt {
namespace {

constexpr size_t kMostRingBytes = 512 << 10;  // both copies of a message stay in the cache
constexpr size_t kLeastRingBytes = 4 << 10;
constexpr size_t kMostRingsBytes = 64 << 20;  // of all pairs, if all are used

size_t pairsOf(int size) {
  return static_cast<size_t>(size) * static_cast<size_t>(std::max(size - 1, 1));
}

size_t ringBytesFor(int size) {
  return std::clamp(std::bit_floor(kMostRingsBytes / pairsOf(size)), kLeastRingBytes,
                    kMostRingBytes);
}

size_t padded(size_t bytes) {
  return (bytes + MessageRing::kHeaderBytes - 1) / MessageRing::kHeaderBytes *
         MessageRing::kHeaderBytes;
}

}  // namespace

struct MessageRing::State {
  alignas(kSharedLine) std::atomic<uint64_t> head;  // bytes written so far
  std::atomic<uint32_t> writer_waits;
  alignas(kSharedLine) std::atomic<uint64_t> tail;  // bytes read so far
  std::atomic<uint32_t> reader_full;
};

struct alignas(kSharedLine) MessageRings::Listener {
  std::atomic<uint32_t> attention;
  std::atomic<uint32_t> wakes;
  std::atomic<uint32_t> closed;
  std::atomic<uint32_t> core;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");

// ---- a ring ------------------------------------------------------------------------------------

// As in ByteRing, the stores of head and tail publish what was copied before them. They are
// sequentially consistent because a member stores one, then loads whether the other side waits.

size_t MessageRing::used() const {
  const uint64_t tail = state_->tail.load(std::memory_order_acquire);
  return static_cast<size_t>(state_->head.load(std::memory_order_acquire) - tail);
}

std::optional<size_t> MessageRing::room() const {
  const uint64_t tail = state_->tail.load(std::memory_order_seq_cst);
  const uint64_t used = state_->head.load(std::memory_order_relaxed) - tail;
  if (used > capacity_bytes_) throw PeerLostError("the memory that ranks share is damaged");
  if (capacity_bytes_ - used < kHeaderBytes) return std::nullopt;
  return capacity_bytes_ - static_cast<size_t>(used) - kHeaderBytes;
}

void MessageRing::write(const RingFrame& frame, const void* payload) {
  const uint64_t head = state_->head.load(std::memory_order_relaxed);
  std::memcpy(data_ + (head & (capacity_bytes_ - 1)), &frame, kHeaderBytes);
  const size_t at = (head + kHeaderBytes) & (capacity_bytes_ - 1);
  const size_t first = std::min<size_t>(frame.payload_bytes, capacity_bytes_ - at);
  const auto* from = static_cast<const std::byte*>(payload);
  copyToOthers(data_ + at, from, first);
  copyToOthers(data_, from + first, frame.payload_bytes - first);
  state_->head.store(head + kHeaderBytes + padded(frame.payload_bytes), std::memory_order_seq_cst);
}

void MessageRing::setWriterWaits(bool waits) {
  if (writerWaits() != waits) state_->writer_waits.store(waits, std::memory_order_seq_cst);
}

bool MessageRing::writerWaits() const {
  return state_->writer_waits.load(std::memory_order_seq_cst) != 0;
}

std::optional<RingFrame> MessageRing::next() const {
  const uint64_t tail = state_->tail.load(std::memory_order_relaxed);
  const auto used = static_cast<size_t>(state_->head.load(std::memory_order_seq_cst) - tail);
  if (used == 0) return std::nullopt;
  RingFrame frame;
  std::memcpy(&frame, data_ + (tail & (capacity_bytes_ - 1)), kHeaderBytes);
  if (used > capacity_bytes_ || used < kHeaderBytes || used - kHeaderBytes < frame.payload_bytes) {
    throw PeerLostError("the memory that ranks share is damaged");
  }
  return frame;
}

void MessageRing::take(const RingFrame& frame, void* to) {
  const uint64_t tail = state_->tail.load(std::memory_order_relaxed);
  const size_t at = (tail + kHeaderBytes) & (capacity_bytes_ - 1);
  const size_t first = std::min<size_t>(frame.payload_bytes, capacity_bytes_ - at);
  if (to != nullptr && first > 0) std::memcpy(to, data_ + at, first);
  if (to != nullptr && frame.payload_bytes > first) {
    std::memcpy(static_cast<std::byte*>(to) + first, data_, frame.payload_bytes - first);
  }
  state_->tail.store(tail + kHeaderBytes + padded(frame.payload_bytes), std::memory_order_seq_cst);
}

bool MessageRing::halfFree() const { return used() <= capacity_bytes_ / 2; }

void MessageRing::setReaderFull(bool full) {
  // Relaxed, as it is a hint: a writer that sees it late sends a few more messages early.
  if (readerFull() != full) state_->reader_full.store(full, std::memory_order_relaxed);
}

bool MessageRing::readerFull() const {
  return state_->reader_full.load(std::memory_order_relaxed) != 0;
}

// ---- all of them -------------------------------------------------------------------------------

size_t MessageRings::bytesFor(int size) {
  const size_t states =
      static_cast<size_t>(size) * sizeof(Listener) + pairsOf(size) * sizeof(MessageRing::State);
  return wholePages(states) + pairsOf(size) * ringBytesFor(size);
}

MessageRings::MessageRings(std::byte* base, int size)
    : size_(size), ring_bytes_(ringBytesFor(size)), base_(base) {}

MessageRings::Listener& MessageRings::listener(int member) const {
  return *reinterpret_cast<Listener*>(base_ + static_cast<size_t>(member) * sizeof(Listener));
}

MessageRing MessageRings::ring(int from, int to) const {
  const size_t pair = static_cast<size_t>(from) * static_cast<size_t>(size_ - 1) +
                      static_cast<size_t>(to < from ? to : to - 1);
  const size_t listeners = static_cast<size_t>(size_) * sizeof(Listener);
  auto* const states = reinterpret_cast<MessageRing::State*>(base_ + listeners);
  std::byte* const data =
      base_ + wholePages(listeners + pairsOf(size_) * sizeof(MessageRing::State));
  return {states + pair, data + pair * ring_bytes_, ring_bytes_};
}

void MessageRings::setAttention(int member, Attention attention) const {
  listener(member).attention.store(static_cast<uint32_t>(attention), std::memory_order_seq_cst);
}

MessageRings::Attention MessageRings::attention(int member) const {
  return static_cast<Attention>(listener(member).attention.load(std::memory_order_seq_cst));
}

bool MessageRings::claim(int member, Attention from) const {
  auto expected = static_cast<uint32_t>(from);
  return listener(member).attention.compare_exchange_strong(
      expected, static_cast<uint32_t>(Attention::kSoon), std::memory_order_seq_cst);
}

void MessageRings::setCore(int member, uint32_t core) const {
  std::atomic<uint32_t>& known = listener(member).core;
  if (known.load(std::memory_order_relaxed) != core) known.store(core, std::memory_order_relaxed);
}

uint32_t MessageRings::core(int member) const {
  return listener(member).core.load(std::memory_order_relaxed);
}

void MessageRings::close(int member) const {
  listener(member).closed.store(1, std::memory_order_seq_cst);
}

bool MessageRings::closed(int member) const {
  return listener(member).closed.load(std::memory_order_seq_cst) != 0;
}

uint32_t MessageRings::wakes(int member) const {
  return listener(member).wakes.load(std::memory_order_seq_cst);
}

void MessageRings::sleep(int member, uint32_t seen, std::optional<Clock::time_point> until) const {
  sleepOn(listener(member).wakes, seen, until);
}

void MessageRings::wake(int member) const { wakeAll(listener(member).wakes); }

}  // namespace topoopt
