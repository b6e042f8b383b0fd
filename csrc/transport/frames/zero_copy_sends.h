// The sends of one TCP connection whose bytes the kernel reads where they lie (MSG_ZEROCOPY), until
// it says on the socket's error queue that it has given their memory back: when the other end's
// kernel has acknowledged them and no interface holds them any more. As long they must neither be
// changed nor freed.
//
// Where the packets go to a process of the same machine, over loopback or veth, the kernel copies
// all the same, which costs more than a plain send, and says so.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace topoopt {

enum class ZeroCopy : uint8_t {
  kOff,
  kOn,      // until the kernel copies all the same
  kAlways,  // also then: to measure what it costs, and to test
};

class ZeroCopySends {
 public:
  // Pinning the pages of fewer bytes, and the kernel's notice, cost more than copying them.
  static constexpr size_t kLeastBytes = 64 << 10;

  // Of a new connection. Sends ask for nothing where the socket cannot do it.
  void begin(int fd, ZeroCopy asked);

  // Whether the next send of so many bytes shall be one.
  bool takes(size_t bytes) const { return on_ && bytes >= kLeastBytes; }
  // A send has taken `bytes`, which begin at that offset in the connection.
  void sent(uint64_t offset, size_t bytes);
  // The kernel would not take a send of so many bytes, which is therefore a plain one.
  void refused(size_t bytes) { copied_bytes_ += bytes; }

  // Whether the kernel may say something of this connection.
  bool noticesCome() const { return asked_; }
  // Takes what the kernel has said so far. False if that was nothing.
  bool takeNotices(int fd);
  // Waits until no memory is lent, while some is given back again and again.
  bool awaitAll(int fd);

  // Bytes of the connection from this offset on may still be read where they lie.
  uint64_t lentFrom() const { return lent_.empty() ? UINT64_MAX : lent_.front().offset; }
  bool lends() const { return !lent_.empty(); }

  // Of all connections: of the bytes that were given back, those that were not copied and others.
  uint64_t uncopiedBytes() const { return uncopied_bytes_; }
  uint64_t copiedBytes() const { return copied_bytes_; }

 private:
  struct Send {
    uint64_t offset;
    size_t bytes;
    bool over = false;
  };
  void over(uint32_t first, uint32_t last, bool copied);

  bool asked_ = false;  // in this connection
  bool on_ = false;     // still
  bool always_ = false;
  std::deque<Send> lent_;
  uint32_t first_ = 0;    // the kernel's number of the first in lent_
  int copied_sends_ = 0;  // in a row
  uint64_t uncopied_bytes_ = 0;
  uint64_t copied_bytes_ = 0;
};

}  // namespace topoopt
