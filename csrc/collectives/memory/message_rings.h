// The memory through which the members of a group on one server send messages to each other.
//
// Every ordered pair of members has a ring of frames with one writer and one reader, and every
// member has a listener: what it does about news at the moment, and the word that it sleeps on.
// Pages that nobody has used yet take no memory.
//
// Who has news for a member (a frame for it, or room that it waits for) stores that first and reads
// its listener afterwards; a member that stops looking stores that first and looks once more
// afterwards. Both are sequentially consistent, so one of the two sees the other.

#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace topoopt {

// What a frame is: `number` counts the messages of a pair.
enum class FrameKind : uint32_t {
  kData = 1,  // the first bytes of a message that its receiver has not asked for
  kMore,      // the bytes that follow those of the frame of data before it
  kAnnounce,  // no bytes: the sender waits until the receiver grants message `number`
  kGrant,     // no bytes: the message `number` of the other direction has its receive
  kGranted,   // the first bytes of a message that was granted
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

// One direction between two members. The writer's functions and the reader's are called by one
// thread at a time.
class MessageRing {
 public:
  struct State;

  MessageRing(State* state, std::byte* data, size_t capacity_bytes)
      : state_(state), data_(data), capacity_bytes_(capacity_bytes) {}

  static constexpr size_t kHeaderBytes = sizeof(RingFrame);

  // Writer: payload of the largest frame that fits; nothing if no header does.
  std::optional<size_t> room() const;
  // Writer: a frame of at most room() bytes of payload.
  void write(const RingFrame& frame, const void* payload);
  // Writer: whether it waits for room. Reader: the same.
  void setWriterWaits(bool waits);
  bool writerWaits() const;

  // Reader: the next frame, if there is one. Throws PeerLostError if it cannot be one.
  std::optional<RingFrame> next() const;
  // Reader: takes the next frame, whose payload goes to `to`, or nowhere.
  void take(const RingFrame& frame, void* to);
  // Reader: at least half of the ring is free.
  bool halfFree() const;
  // Reader: keeps more than it wants to for receives to come. Writer: whether it does.
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

  // How a member learns of news.
  enum class Attention : uint32_t {
    kNone,     // nothing: it waits for none
    kSoon,     // it is going to look without a notification
    kAsleep,   // a thread of it sleeps until it is woken
    kReactor,  // its reactor must be notified
  };

  static size_t bytesFor(int size);

  // `base` is full of zeros at first, and outlives this.
  MessageRings(std::byte* base, int size);

  int size() const { return size_; }
  size_t ringBytes() const { return ring_bytes_; }
  MessageRing ring(int from, int to) const;

  // Member `member` itself. `core` is where it is at the moment.
  void setAttention(int member, Attention attention) const;
  void setCore(int member, uint32_t core) const;
  // Sleeps until somebody wakes it, unless that has happened since `seen` was read.
  uint32_t wakes(int member) const;
  void sleep(int member, uint32_t seen, std::optional<Clock::time_point> until) const;
  // It takes nothing any more; what is sent to it is lost.
  void close(int member) const;

  // Others.
  Attention attention(int member) const;
  uint32_t core(int member) const;
  bool closed(int member) const;
  // Changes `from` to kSoon; whether it did.
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
