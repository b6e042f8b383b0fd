// Memory for queued payloads: relayed ones, and those without a receive. A pool keeps free blocks,
// because fresh pages from the system cost more than copying. One thread only.

#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "transport/frames/flow_limits.h"
#include "transport/frames/frame.h"

namespace topoopt {

class BufferPool;

class PayloadBuffer {
 public:
  PayloadBuffer() = default;
  PayloadBuffer(PayloadBuffer&& other) noexcept
      : block_(std::move(other.block_)),
        size_(std::exchange(other.size_, 0)),
        held_(std::exchange(other.held_, 0)),
        pool_(std::exchange(other.pool_, nullptr)) {}
  PayloadBuffer& operator=(PayloadBuffer&& other) noexcept {
    release();
    block_ = std::move(other.block_);
    size_ = std::exchange(other.size_, 0);
    held_ = std::exchange(other.held_, 0);
    pool_ = std::exchange(other.pool_, nullptr);
    return *this;
  }
  ~PayloadBuffer() { release(); }

  std::byte* data() { return block_.get(); }
  const std::byte* data() const { return block_.get(); }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  friend class BufferPool;
  inline void release();

  std::unique_ptr<std::byte[]> block_;
  size_t size_ = 0;
  size_t held_ = 0;             // size of the block
  BufferPool* pool_ = nullptr;  // owner of the block
};

// Must outlive its buffers.
class BufferPool {
 public:
  // Returns uninitialised memory.
  PayloadBuffer take(size_t bytes) {
    PayloadBuffer buffer;
    buffer.size_ = bytes;
    if (bytes == 0) return buffer;
    const bool pooled = bytes > kSmallBytes && bytes <= kLargestBlock;
    const size_t kind = pooled ? kindOf(bytes) : 0;
    buffer.held_ = pooled ? blockBytes(kind) : bytes;
    buffer.pool_ = this;
    held.add(buffer.held_);
    if (pooled && !free_[kind].empty()) {
      buffer.block_ = std::move(free_[kind].back());
      free_[kind].pop_back();
    } else {
      buffer.block_ = std::make_unique_for_overwrite<std::byte[]>(buffer.held_);
    }
    return buffer;
  }

  // Counts the queued payload of other ranks: see FrameQueue.
  void addRelayed(const FrameHeader& header) {
    relayed_.add(header.payload_bytes);
    if (header.detour != 0) return;
    if (relayed_of_.size() <= header.source) relayed_of_.resize(header.source + size_t{1});
    relayed_of_[header.source] += header.payload_bytes;
  }
  void removeRelayed(const FrameHeader& header) {
    relayed_.remove(header.payload_bytes);
    if (header.detour == 0) relayed_of_[header.source] -= header.payload_bytes;
  }
  const HeldBytes& relayed() const { return relayed_; }
  // The source's part on routes of the plan, to which its limits apply.
  uint64_t relayedOf(uint16_t source) const {
    return source < relayed_of_.size() ? relayed_of_[source] : 0;
  }

  HeldBytes held;  // of all buffers

 private:
  friend class PayloadBuffer;
  // Block sizes are powers of two, so no block is more than twice its content.
  static constexpr size_t kSmallBytes = 4 << 10;  // malloc is as good up to here
  static constexpr size_t kLargestBlock = kRelayedPayloadBytes;
  static constexpr size_t kKinds = std::bit_width(kLargestBlock / kSmallBytes) - 1;
  static constexpr size_t kMostFree = 64;  // free blocks per size

  static size_t kindOf(size_t bytes) { return std::bit_width((bytes - 1) / kSmallBytes) - 1; }
  static constexpr size_t blockBytes(size_t kind) { return 2 * kSmallBytes << kind; }

  void give(std::unique_ptr<std::byte[]> block, size_t bytes) {
    held.remove(bytes);
    if (bytes <= kSmallBytes || bytes > kLargestBlock) return;
    auto& free = free_[kindOf(bytes)];
    if (free.size() < kMostFree) free.push_back(std::move(block));
  }

  HeldBytes relayed_;
  std::vector<uint64_t> relayed_of_;
  std::array<std::vector<std::unique_ptr<std::byte[]>>, kKinds> free_;
};

inline void PayloadBuffer::release() {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->give(std::move(block_), held_);
}

}  // namespace topoopt
