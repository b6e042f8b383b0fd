// Shared memory for messages between the members of a group on one server.
//
// Every ordered pair of members has a ring of frames with one writer and one reader. Every member
// has a listener: its current reaction to news, and the futex word that it sleeps on. Unused pages
// take no memory.
//
// A member with news for another (a frame, or room) stores it first and then reads the other's
// listener. A member that stops polling stores its listener first and then polls once more. Both
// are sequentially consistent, so one of the two sees the other.

#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace topoopt {

// Frame types; `number` counts the messages of a pair.
enum class FrameKind : uint32_t {
  kData = 1,  // first bytes of a message that was not granted
  kMore,      // bytes that follow the previous data frame
  kAnnounce,  // no bytes: the sender waits for a grant of message `number`
  kGrant,     // no bytes: message `number` of the other direction has a receive
  kGranted,   // first bytes of a granted message
};

struct RingFrame {
  FrameKind kind = FrameKind::kData;
  int32_t tag = 0;
  uint64_t number = 0;
  uint64_t message_bytes = 0;
  uint64_t fingerprint = 0;
  uint32_t payload_bytes = 0;
  uint32_t reserved[7]{};
};
static_assert(sizeof(RingFrame) == 64, "frames begin at multiples of it, so that none is cut");

// One direction between two members. One thread at a time calls the writer's functions, and one the
// reader's.
class MessageRing {
 public:
  struct State;

  MessageRing(State* state, std::byte* data, size_t capacity_bytes)
      : state_(state), data_(data), capacity_bytes_(capacity_bytes) {}

  static constexpr size_t kHeaderBytes = sizeof(RingFrame);

  // Writer: the largest payload that fits; nullopt if no header fits.
  std::optional<size_t> room() const;
  // Writer: appends a frame of at most room() payload bytes.
  void write(const RingFrame& frame, const void* payload);
  // Writer: sets whether it waits for room. Reader: reads it.
  void setWriterWaits(bool waits);
  bool writerWaits() const;

  // Reader: the next frame, if any. Throws PeerLostError if it is invalid.
  std::optional<RingFrame> next() const;
  // Reader: consumes the next frame and copies its payload to `to`, unless nullptr.
  void take(const RingFrame& frame, void* to);
  // Reader: at least half of the ring is free.
  bool halfFree() const;
  // Reader: sets whether it keeps too much for later receives. Writer: reads it.
  void setReaderFull(bool full);
  bool readerFull() const;

 private:
  size_t used() const;

  State* state_;
  std::byte* data_;
  size_t capacity_bytes_;
};

class MessageRings {
 public:
  using Clock = std::chrono::steady_clock;

  // How a member learns of news (frames or room).
  enum class Attention : uint32_t {
    kNone,     // it waits for none
    kSoon,     // it polls without a notification
    kAsleep,   // its thread sleeps until it is woken
    kReactor,  // its reactor must be notified
  };

  static size_t bytesFor(int size);

  // `base` must be zeroed at first and outlive this object.
  MessageRings(std::byte* base, int size);

  int size() const { return size_; }
  size_t ringBytes() const { return ring_bytes_; }
  MessageRing ring(int from, int to) const;

  // Called by `member` itself. `core` is its current one.
  void setAttention(int member, Attention attention) const;
  void setCore(int member, uint32_t core) const;
  // Sleeps until it is woken, unless that has happened since `seen` was read.
  uint32_t wakes(int member) const;
  void sleep(int member, uint32_t seen, std::optional<Clock::time_point> until) const;
  // Stops receiving; later messages to it are lost.
  void close(int member) const;

  // Called by other members.
  Attention attention(int member) const;
  uint32_t core(int member) const;
  bool closed(int member) const;
  // Changes `from` to kSoon; returns whether it did.
  bool claim(int member, Attention from) const;
  void wake(int member) const;

 private:
  struct Listener;

  Listener& listener(int member) const;

  const int size_;
  const size_t ring_bytes_;
  std::byte* const base_;
};

}  // namespace topoopt
