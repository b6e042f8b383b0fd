// A link to a neighbour: sends and receives frames over any transport.
//
// A transport implements five functions (start, read, write, end, close) and optional capabilities
// (capabilities.h). All transports share framing, fairness, counters and shutdown. Reactor thread
// only.

#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/network.h"
#include "transport/frames/frame.h"
#include "transport/frames/frame_queue.h"
#include "transport/frames/frame_reader.h"
#include "transport/frames/payload_buffer.h"
#include "transport/frames/zero_copy_sends.h"
#include "transport/io.h"
#include "transport/links/capabilities.h"
#include "transport/reactor.h"

namespace topoopt {

enum class LinkKind {
  kSocket,        // a connected stream socket
  kSharedMemory,  // between ranks on one server
  kFabric,        // over libfabric, see FabricLink
};

const char* kindName(LinkKind kind);          // "socket", "shm" or "fabric"
LinkKind kindNamed(const std::string& name);  // throws std::invalid_argument

// Of "off", "on" or "always"; throws std::invalid_argument.
ZeroCopy zeroCopyNamed(const std::string& name);

std::string textOf(const plan::LinkPorts& link);  // for messages

inline constexpr int kNoCable = -1;

struct LinkSpec {
  plan::LinkPorts link;  // from this rank's view: source is this end unless `sends` is false
  int fd = -1;           // connected; owned by the receiver of this specification
  bool sends = true;     // false for the receiving end of a simplex link
  LinkKind kind = LinkKind::kSocket;
  int peer = -1;           // rank at the other end; -1: one rank per server, see `link`
  int cable = kNoCable;    // index among the endpoint's cables, if the link is replaceable
  std::string tls_key{};   // key of an encrypted socket, see TlsSession; "": not encrypted
  std::string provider{};  // of libfabric, if the kind is kFabric
  // Own threads move the long batches of an unencrypted socket; ignored otherwise.
  bool threads = false;
  // For long payloads of a fast, unencrypted socket.
  ZeroCopy zero_copy = ZeroCopy::kOff;
  // The link is lost if requested memory of payloads is not free after this time; nullopt: the
  // default of the kind. The wait blocks the reactor.
  std::optional<std::chrono::milliseconds> memory_wait{};

  int peerRank() const { return peer >= 0 ? peer : sends ? link.target : link.source; }
};

// Counters of a link from this end's view: the source is this end unless `sends` is false.
struct LinkTraffic : plan::LinkPorts, LinkCounters {
  LinkKind kind = LinkKind::kSocket;
  bool sends = true;
  int cable = kNoCable;
  bool up = true;  // not lost
};

// The cause of a lost link.
enum class Loss : uint8_t {
  kClosed = 1,   // closed by the other host, as when a process ends
  kSilent = 2,   // no acknowledgements, even if the other end then closes it
  kCarrier = 3,  // the interface is down or has no carrier
  kBroken = 4,   // a local error, or invalid frames
  kGivenUp = 5,  // the other end gave it up, and still runs
};

class Link : public Reactor::Handler {
 public:
  class Observer {
   public:
    virtual ~Observer() = default;
    // Returns the place of this frame's payload, valid until onFrame or redirect(); nullptr: pass
    // it to onFrame.
    virtual std::byte* onHeader(Link& link, const FrameHeader& header) = 0;
    // `placed`: the payload is at onHeader's place; else it is in `payload`.
    virtual void onFrame(Link& link, const FrameHeader& header, PayloadBuffer payload,
                         bool placed) = 0;
    // The link is closed or broken, and dead; a cable's link may be reopened.
    virtual void onLost(Link& link, Loss loss, const std::string& why) = 0;
    // Called when a message on the channel is written but kept, and its sender waits for its
    // memory.
    virtual void onWritten(uint32_t channel) {}
  };

  // The owners that a link uses; they must outlive it.
  struct Context {
    int rank;  // of this process
    Reactor& reactor;
    BufferPool& buffers;
    Observer& observer;
  };

  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  virtual void start() = 0;
  void close();   // no callbacks afterwards
  void finish();  // ends this side after all writes; the link is lost when the other side ends

  // Frames for a finishing or permanently dead link are dropped.
  void send(OutFrame frame);                   // fair among flows
  void sendControl(OutFrame frame);            // before all data
  void sendHeader(const FrameHeader& header);  // the same without payload

  // Drops the queued frames of this rank's own flows on `channel` and calls `dropped` for each. The
  // caller's memory is free on return.
  void dropOwn(uint32_t channel, const std::function<void(const FrameHeader&)>& dropped);
  // Drops all queued data, but no control frames.
  void dropData();

  // Redirects the rest of a payload that is being read into [begin, end) to a private buffer.
  void redirect(const std::byte* begin, const std::byte* end);

  // Copies the kept messages of this rank on `channel` to free their memory.
  void hurry(uint32_t channel);
  // Loses a cable's link, after reading the bytes that have arrived.
  void drop(Loss loss, const std::string& why);
  // The link is lost, but finishReading() was not called yet.
  bool holds() const { return held_; }
  // Reads bytes that the transport acknowledged after drop() had read everything, from a packet
  // that a processor was still handling. Call it before counting the frames of a lost cable.
  void finishReading();
  // Sets whether a lost connection leaves no state in the system, which would block a new one from
  // the same port. Undelivered frames are kept here. drop() always does so.
  void leaveNothing(bool nothing) { leaves_nothing_ = nothing; }
  // Returns the unsent and unacknowledged frames of a lost link, once: see FrameQueue.
  FrameQueue::Kept takeKept() { return queue_.takeKept(can_.lent_memory->begunBytes()); }
  std::vector<OutFrame> takeUnwritten() { return queue_.takeUnwritten(); }
  // Frames that arrived over this connection.
  uint64_t receivedFrames() const { return received_frames_; }
  // Continues a lost link over the connection in `spec`. Until established(), only control frames
  // are sent.
  void reopen(const LinkSpec& spec);
  void establish();
  bool usable() const { return !dead_ && established_; }
  void lookForAcknowledgements();
  Acknowledged acknowledged() { return can_.acknowledgements->acknowledged(); }
  void limitRate(std::optional<uint64_t> bytes_per_s) {
    if (!dead_) can_.send_rates->limitRate(bytes_per_s);
  }
  std::optional<SendProgressCounters> sendProgress() { return can_.send_rates->sendProgress(); }
  // Something has arrived since the last call.
  bool takeReceived() { return std::exchange(received_, false); }
  // Something was written since the last call, or is queued.
  bool takeWrote() { return std::exchange(wrote_, false) || !queue_.empty(); }
  int cable() const { return cable_; }

  bool idle() const { return queue_.empty(); }
  bool dead() const { return dead_; }
  // Returns whether the neighbour, or its system, has all written bytes.
  bool delivered() const { return dead_ || (idle() && can_.acknowledgements->allDelivered()); }
  void acknowledgeAtOnce() {
    if (!dead_) can_.acknowledgements->acknowledgeAtOnce();
  }
  // The payload limit of frames to the neighbour.
  uint32_t mostPayload() const { return most_payload_; }
  const plan::LinkPorts& name() const { return name_; }
  LinkCounters counters() const;
  const IterationBytes& iterations() const { return queue_.iterations(); }

  void onTurn() final;

 protected:
  static constexpr size_t kBatchBytes = 64 << 10;

  Link(const LinkSpec& spec, const Context& context, const Capabilities& capabilities = {});

  // Both move as many bytes as possible and add them to `count`.
  virtual Io readBytes(const iovec* parts, int part_count, size_t& count) = 0;
  virtual Io writeBytes(const iovec* parts, int part_count, size_t& count) = 0;
  virtual void endWriting() = 0;
  virtual void closeBytes() = 0;

  // Returns the place of a payload that arrives before its turn: requests it from the observer
  // early.
  std::byte* placeAhead(const FrameHeader& header) {
    return reader_.placeAhead(header, context_.observer.onHeader(*this, header));
  }
  // Call when LentMemory::lentFrom() has advanced.
  void gaveBack();
  uint64_t writtenBytes() const { return queue_.writtenBytes(); }

  void becameReadable();
  void becameWritable();
  bool readable() const { return readable_; }
  bool wantsToWrite() const { return !writable_ && !queue_.empty(); }
  void lose(Loss loss, const std::string& why);
  bool isUnanswered();
  void giveUp();
  Reactor& reactor() const { return context_.reactor; }

  // Bytes per write: enough to make small frames cheap, few enough that an urgent frame does not
  // wait long.
  size_t batch_bytes_ = kBatchBytes;
  uint32_t most_payload_ = kNeighbourPayloadBytes;
  bool leaves_nothing_ = false;
  std::string error_;  // why a function returned kBroken
  Loss loss_ = Loss::kBroken;

 private:
  void askTurn();
  bool takeFrames();
  void readFrames(size_t most_bytes);
  void writeFrames();
  void endIfFinished();
  void report();
  // Frames of a lost cable move to other links instead.
  bool drops() const { return finishing_ || (cable_ == kNoCable && (dead_ || write_ended_)); }

  const plan::LinkPorts name_;
  const bool sends_;
  const int cable_;
  const Context context_;
  const Capabilities can_;
  FrameQueue queue_;
  FrameReader reader_;
  uint64_t received_bytes_ = 0;
  uint64_t received_frames_ = 0;  // over this connection
  // Acknowledged bytes at the last check, and the time of their last advance (or when idle).
  uint64_t last_acknowledged_ = 0;
  Reactor::Clock::time_point answered_at_{};
  bool received_ = false;
  bool wrote_ = false;
  bool established_ = true;
  bool readable_ = false;
  bool writable_ = true;
  bool turn_requested_ = false;
  bool gave_back_ = false;
  bool finishing_ = false;
  bool write_ended_ = false;  // by finish(), or because the other end has ended
  bool dead_ = false;
  bool held_ = false;   // between lose() and finishReading()
  bool parks_ = false;  // finishReading() parks the connection instead of closing it
};

std::string errorText(int error);

}  // namespace topoopt
