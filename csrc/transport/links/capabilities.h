// The capabilities of a transport beyond moving bytes. Each one is a small interface whose
// functions do nothing by default, so the interface itself is the null object of links that lack
// it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "transport/frames/frame_queue.h"
#include "transport/rate_watch.h"

namespace topoopt {

struct LinkSpec;

enum class Acknowledged {
  kNothing,   // it is silent
  kStands,    // it answers, but what is in flight, and was sent again, does not arrive
  kAdvances,  // more than before, or nothing is in flight
};

// The transport keeps what it sent until the neighbour's transport has acknowledged it.
class Acknowledgements {
 public:
  virtual ~Acknowledgements() = default;

  // How the acknowledgements have advanced since the last call.
  virtual Acknowledged acknowledged() { return Acknowledged::kAdvances; }
  // Bytes written that the neighbour's transport does not have yet.
  virtual size_t unacknowledgedBytes() { return 0; }
  // True if the neighbour, or its system, has all that the transport has taken.
  virtual bool allDelivered() const { return true; }
  // The neighbour's transport need not wait for the acknowledgement of what has come.
  virtual void acknowledgeAtOnce() {}
};

// The system or a thread uses the memory of payloads while the reactor goes on: with threads,
// without copies (MSG_ZEROCOPY) or with RDMA.
class LentMemory {
 public:
  virtual ~LentMemory() = default;

  // On return no payload is being written into [begin, end) any more.
  virtual void settleReading(const std::byte* begin, const std::byte* end) {}
  // On return no payload is being read from memory that a sender may want back.
  virtual void settleWriting() {}
  // The system may still read the long payloads of what is written from this offset on where they
  // lie: not even a copy makes their memory free. All that is written has fewer bytes than this.
  virtual uint64_t lentFrom() const { return FrameQueue::kNothingLent; }
  // Of the bytes that come after those that writeBytes() has counted, the other end has been
  // notified of so many: those frames cannot be dropped any more.
  virtual size_t begunBytes() const { return 0; }
  virtual void addTo(LinkCounters& counters) const {}
};

// The connection of a cable, which may be lost and replaced while the link lives.
class Replaceable {
 public:
  virtual ~Replaceable() = default;

  // From now on the transport acknowledges nothing; what it has can still be read.
  virtual void endReading() {}
  // Called before closeBytes() or parkBytes(): only readBytes() still works, and the transport
  // acknowledges nothing more. False if the transport cannot do that.
  virtual bool holdBytes() { return false; }
  // Keeps a connection open that this end has given up, until closeParked(). If the host closed it,
  // the other end would conclude that this process has ended.
  virtual void parkBytes() {}
  // The other end has given up the connection that was parked, too.
  virtual void closeParked() {}
  virtual void reopenBytes(const LinkSpec& spec);  // throws std::logic_error
};

// The system limits and counts what it sends of the connection.
class SendRates {
 public:
  virtual ~SendRates() = default;

  // Limits the rate at which the system sends; nullopt: no limit.
  virtual void limitRate(std::optional<uint64_t> bytes_per_s) {}
  // The system's counters of this connection; nullopt where it has none.
  virtual std::optional<SendProgressCounters> sendProgress() { return std::nullopt; }
};

// The transport can wait until so many bytes have come, and wake the reactor only then.
class WakeUps {
 public:
  virtual ~WakeUps() = default;

  // The current frame needs `bytes` more (0: none is current): nothing less is worth a wake-up.
  virtual void expect(size_t bytes) {}
};

template <typename Capability>
inline Capability lacking{};  // has no state

// A transport derives from those that it has, and gives them to its Link.
struct Capabilities {
  Acknowledgements* acknowledgements = &lacking<Acknowledgements>;
  LentMemory* lent_memory = &lacking<LentMemory>;
  Replaceable* replaceable = &lacking<Replaceable>;
  SendRates* send_rates = &lacking<SendRates>;
  WakeUps* wake_ups = &lacking<WakeUps>;
};

}  // namespace topoopt
