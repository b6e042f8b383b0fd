#include "transport/shm/byte_ring.h"

#include <algorithm>
#include <cstring>

namespace topoopt {

// The store of head publishes the bytes before it, and that of tail that its end has copied them:
// acquire on the other side, also where a processor reorders memory accesses (Arm). Each end knows
// its own counter, so that load is relaxed. Flags of sleepers need sequential consistency: an end
// stores its flag, then loads the other's counter, and these two may not change places.

size_t ByteRing::used() const {
  // Load the tail first: it may then lag, but never exceeds the head.
  const uint64_t tail = state_->tail.load(std::memory_order_acquire);
  return static_cast<size_t>(state_->head.load(std::memory_order_acquire) - tail);
}

bool ByteRing::damaged() const { return used() > capacity_bytes_; }

bool ByteRing::readable() const { return used() > 0; }

bool ByteRing::full() const { return used() >= capacity_bytes_; }

// A quarter, so that the two ends do not wake each other for a few bytes.
bool ByteRing::writable() const { return used() <= capacity_bytes_ - capacity_bytes_ / 4; }

size_t ByteRing::write(const iovec* parts, int part_count, size_t limit_bytes, bool& wake) {
  const uint64_t head = state_->head.load(std::memory_order_relaxed);
  const uint64_t tail = state_->tail.load(std::memory_order_acquire);
  if (head - tail > capacity_bytes_) return 0;
  size_t room = std::min(limit_bytes, capacity_bytes_ - static_cast<size_t>(head - tail));
  size_t moved = 0;
  for (int i = 0; i < part_count && room > 0; ++i) {
    const auto* from = static_cast<const std::byte*>(parts[i].iov_base);
    const size_t bytes = std::min(parts[i].iov_len, room);
    const size_t at = (head + moved) & (capacity_bytes_ - 1);
    const size_t first = std::min(bytes, capacity_bytes_ - at);
    if (first > 0) std::memcpy(data_ + at, from, first);
    if (bytes > first) std::memcpy(data_, from + first, bytes - first);
    moved += bytes;
    room -= bytes;
  }
  if (moved == 0) return 0;
  state_->head.store(head + moved, std::memory_order_seq_cst);
  wake = state_->reader_sleeps.load(std::memory_order_seq_cst) != 0 &&
         state_->reader_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
  return moved;
}

size_t ByteRing::read(const iovec* parts, int part_count, size_t limit_bytes, bool& wake) {
  const uint64_t tail = state_->tail.load(std::memory_order_relaxed);
  const uint64_t head = state_->head.load(std::memory_order_acquire);
  if (head - tail > capacity_bytes_) return 0;
  size_t left = std::min(limit_bytes, static_cast<size_t>(head - tail));
  size_t moved = 0;
  for (int i = 0; i < part_count && left > 0; ++i) {
    auto* into = static_cast<std::byte*>(parts[i].iov_base);
    const size_t bytes = std::min(parts[i].iov_len, left);
    const size_t at = (tail + moved) & (capacity_bytes_ - 1);
    const size_t first = std::min(bytes, capacity_bytes_ - at);
    if (first > 0) std::memcpy(into, data_ + at, first);
    if (bytes > first) std::memcpy(into + first, data_, bytes - first);
    moved += bytes;
    left -= bytes;
  }
  if (moved == 0) return 0;
  state_->tail.store(tail + moved, std::memory_order_seq_cst);
  wake = state_->writer_sleeps.load(std::memory_order_seq_cst) != 0 && writable() &&
         state_->writer_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
  return moved;
}

void ByteRing::end() { state_->ended.store(1, std::memory_order_release); }

bool ByteRing::ended() const {
  return state_->ended.load(std::memory_order_acquire) != 0 && !readable();
}

bool ByteRing::readerSleeps() {
  state_->reader_sleeps.store(1, std::memory_order_seq_cst);
  return state_->head.load(std::memory_order_seq_cst) ==
             state_->tail.load(std::memory_order_relaxed) &&
         state_->ended.load(std::memory_order_seq_cst) == 0;
}

bool ByteRing::writerSleeps() {
  state_->writer_sleeps.store(1, std::memory_order_seq_cst);
  const uint64_t tail = state_->tail.load(std::memory_order_seq_cst);
  return state_->head.load(std::memory_order_relaxed) - tail >
         capacity_bytes_ - capacity_bytes_ / 4;
}

void ByteRing::readerAwake() { state_->reader_sleeps.store(0, std::memory_order_relaxed); }

void ByteRing::writerAwake() { state_->writer_sleeps.store(0, std::memory_order_relaxed); }

}  // namespace topoopt
