// Memory for payloads that have to wait here: relayed ones, and those that came before their
// receive. Blocks of the size that relays need go round in a pool, for asking the system for fresh
// pages costs more than copying into pages that are there. One thread only.

#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "transport/frame.h"

namespace topoopt {

class BufferPool;

class PayloadBuffer {
 public:
  PayloadBuffer() = default;
  PayloadBuffer(PayloadBuffer&& other) noexcept
      : block_(std::move(other.block_)),
        size_(std::exchange(other.size_, 0)),
        pool_(std::exchange(other.pool_, nullptr)) {}
  PayloadBuffer& operator=(PayloadBuffer&& other) noexcept {
    release();
    block_ = std::move(other.block_);
    size_ = std::exchange(other.size_, 0);
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
  BufferPool* pool_ = nullptr;  // where the block goes back to, if anywhere
};

// Outlives its buffers.
class BufferPool {
 public:
  // Not initialised.
  PayloadBuffer take(size_t bytes) {
    PayloadBuffer buffer;
    buffer.size_ = bytes;
    if (bytes == 0) return buffer;
    const bool pooled = bytes > kSmallBytes && bytes <= kBlockBytes;
    if (pooled) buffer.pool_ = this;
    if (pooled && !free_.empty()) {
      buffer.block_ = std::move(free_.back());
      free_.pop_back();
    } else {
      buffer.block_ = std::make_unique_for_overwrite<std::byte[]>(pooled ? kBlockBytes : bytes);
    }
    return buffer;
  }

 private:
  friend class PayloadBuffer;
  static constexpr size_t kSmallBytes = 4 << 10;  // below, malloc is as good
  static constexpr size_t kBlockBytes = kRelayedPayloadBytes;
  static constexpr size_t kMostFree = 64;

  void give(std::unique_ptr<std::byte[]> block) {
    if (free_.size() < kMostFree) free_.push_back(std::move(block));
  }

  std::vector<std::unique_ptr<std::byte[]>> free_;
};

inline void PayloadBuffer::release() {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->give(std::move(block_));
}

}  // namespace topoopt
