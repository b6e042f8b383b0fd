// The zero-copy sends (MSG_ZEROCOPY) of one TCP connection. The kernel reads the bytes in place
// until the socket's error queue reports their memory as returned. That is when the other end's
// kernel has acknowledged them and no interface holds them. Until then they must be neither changed
// nor freed.
//
// For packets to a process on the same machine (loopback, veth), the kernel copies anyway, reports
// it, and costs more than a plain send.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace topoopt {

enum class ZeroCopy : uint8_t {
  kOff,
  kOn,      // until the kernel copies anyway
  kAlways,  // even if the kernel copies: for measurements and tests
};

class ZeroCopySends {
 public:
  // For fewer bytes, pinning pages and the kernel's notice cost more than a copy.
  static constexpr size_t kLeastBytes = 64 << 10;

  // Starts a new connection. Zero copy stays off if the socket does not support it. `memory_wait`:
  // the limit of awaitAll().
  void begin(int fd, ZeroCopy mode, std::optional<std::chrono::milliseconds> memory_wait);

  // Returns whether the next send of this size should be zero-copy.
  bool takes(size_t bytes) const { return on_ && bytes >= kLeastBytes; }
  // A send of `bytes` started at this connection offset.
  void sent(uint64_t offset, size_t bytes);
  // The kernel refused a zero-copy send of this size, so a plain one follows.
  void refused(size_t bytes) { copied_bytes_ += bytes; }

  // Returns whether the kernel may report notices for this connection.
  bool noticesCome() const { return supported_; }
  // Reads the pending notices. Returns false if there are none.
  bool takeNotices(int fd);
  // Waits until no memory is lent. By default, it waits as long as some keeps returning. Returns
  // false otherwise.
  bool awaitAll(int fd);

  // The kernel may still read bytes from this connection offset on in place.
  uint64_t lentFrom() const { return lent_.empty() ? UINT64_MAX : lent_.front().offset; }
  bool lends() const { return !lent_.empty(); }

  // Over all connections: returned bytes, without copies and with them.
  uint64_t uncopiedBytes() const { return uncopied_bytes_; }
  uint64_t copiedBytes() const { return copied_bytes_; }

 private:
  struct Send {
    uint64_t offset;
    size_t bytes;
    bool over = false;
  };
  void over(uint32_t first, uint32_t last, bool copied);

  bool supported_ = false;  // by this connection
  bool on_ = false;         // still used
  bool always_ = false;
  std::chrono::milliseconds most_idle_{};
  std::chrono::milliseconds most_wait_{};
  std::deque<Send> lent_;
  uint32_t first_ = 0;    // the kernel's number of the first in lent_
  int copied_sends_ = 0;  // consecutive
  uint64_t uncopied_bytes_ = 0;
  uint64_t copied_bytes_ = 0;
};

}  // namespace topoopt
