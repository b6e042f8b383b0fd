// The capabilities of a transport beyond moving bytes. Each is a small interface whose functions do
// nothing by default, so it is also the null object of links without it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "transport/frames/frame_queue.h"
#include "transport/rate_watch.h"

namespace topoopt {

struct LinkSpec;

enum class Acknowledged {
  kNothing,   // the neighbour is silent
  kStands,    // it answers, but retransmitted data does not arrive
  kAdvances,  // since the last call, or nothing is in flight
};

// The transport keeps sent bytes until the neighbour's transport has acknowledged them.
class Acknowledgements {
 public:
  virtual ~Acknowledgements() = default;

  // Returns the progress of acknowledgements since the last call.
  virtual Acknowledged acknowledged() { return Acknowledged::kAdvances; }
  // Written bytes that the neighbour's transport does not have yet.
  virtual size_t unacknowledgedBytes() { return 0; }
  // Returns whether the neighbour, or its system, has all written bytes.
  virtual bool allDelivered() const { return true; }
  // Sends pending acknowledgements to the neighbour at once.
  virtual void acknowledgeAtOnce() {}
};

// The system or a thread uses the memory of payloads while the reactor continues: with threads,
// without copies (MSG_ZEROCOPY) or with RDMA.
class LentMemory {
 public:
  virtual ~LentMemory() = default;

  // On return, no payload is being written into [begin, end).
  virtual void settleReading(const std::byte* begin, const std::byte* end) {}
  // On return, no payload is being read from memory that a sender may request back.
  virtual void settleWriting() {}
  // From this offset on, the system may still read long payloads in place, so even a copy does not
  // free their memory. kNothingLent exceeds all offsets.
  virtual uint64_t lentFrom() const { return FrameQueue::kNothingLent; }
  // The number of announced bytes after those that writeBytes() has counted: their frames can no
  // longer be dropped.
  virtual size_t begunBytes() const { return 0; }
  virtual void addTo(LinkCounters& counters) const {}
};

// A cable's connection, which may be lost and replaced while the link lives.
class Replaceable {
 public:
  virtual ~Replaceable() = default;

  // Stops acknowledging; received bytes can still be read.
  virtual void endReading() {}
  // Called before closeBytes() or parkBytes(): stops acknowledging, and only readBytes() still
  // works. Returns false if unsupported.
  virtual bool holdBytes() { return false; }
  // Keeps a connection open that this end has given up, until closeParked(). If the host closed it,
  // the other end would conclude that this process has ended.
  virtual void parkBytes() {}
  // The other end has given up the parked connection, too.
  virtual void closeParked() {}
  virtual void reopenBytes(const LinkSpec& spec);  // throws std::logic_error
};

// The system limits and counts the bytes that it sends on the connection.
class SendRates {
 public:
  virtual ~SendRates() = default;

  // Limits the system's sending rate; nullopt: no limit.
  virtual void limitRate(std::optional<uint64_t> bytes_per_s) {}
  // The system's counters of this connection, if any.
  virtual std::optional<SendProgressCounters> sendProgress() { return std::nullopt; }
};

// The transport can delay the reactor's wake-up until enough bytes have arrived.
class WakeUps {
 public:
  virtual ~WakeUps() = default;

  // The current frame needs `bytes` more (0: no frame is current); wake the reactor no earlier.
  virtual void expect(size_t bytes) {}
};

template <typename Capability>
inline Capability lacking{};  // stateless

// A transport derives from its capabilities and passes them to its Link.
struct Capabilities {
  Acknowledgements* acknowledgements = &lacking<Acknowledgements>;
  LentMemory* lent_memory = &lacking<LentMemory>;
  Replaceable* replaceable = &lacking<Replaceable>;
  SendRates* send_rates = &lacking<SendRates>;
  WakeUps* wake_ups = &lacking<WakeUps>;
};

}  // namespace topoopt
