// A link to a neighbour: frames in, frames out, whatever carries the bytes.
//
// A transport implements five functions (start, read, write, end, close) and has the capabilities
// that it can have (capabilities.h). Frames, fairness, counters and the way a link ends are the
// same for all. Everything runs on the reactor thread.

#pragma once

#include <sys/uio.h>

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
  kSharedMemory,  // between ranks of one server
  kFabric,        // over libfabric, see FabricLink
};

const char* kindName(LinkKind kind);          // "socket", "shm" or "fabric"
LinkKind kindNamed(const std::string& name);  // throws std::invalid_argument

const char* zeroCopyName(ZeroCopy asked);         // "off", "on" or "always"
ZeroCopy zeroCopyNamed(const std::string& name);  // throws std::invalid_argument

std::string textOf(const plan::LinkPorts& link);  // for messages

inline constexpr int kNoCable = -1;

struct LinkSpec {
  plan::LinkPorts link;  // as seen from this rank: source is this end unless `sends` is false
  int fd = -1;           // connected; owned by what the specification is given to
  bool sends = true;     // false for the receiving end of a simplex link
  LinkKind kind = LinkKind::kSocket;
  int peer = -1;  // the rank at the other end; -1: every server has one rank, the link says it
  int cable = kNoCable;   // of the endpoint's cables, where the link may be lost and replaced
  std::string tls_key{};  // of a socket whose bytes are encrypted, see TlsSession; "": they are not
  std::string provider{};  // of libfabric, where the kind is kFabric
  // Threads of its own move the long batches of a socket that is not encrypted; others have none.
  bool threads = false;
  // Long payloads of a fast socket that is not encrypted are sent from where they lie.
  ZeroCopy zero_copy = ZeroCopy::kOff;

  int peerRank() const { return peer >= 0 ? peer : sends ? link.target : link.source; }
};

// Counters of a link, seen from this end: sent from its source, unless `sends` is false.
struct LinkTraffic : plan::LinkPorts, LinkCounters {
  LinkKind kind = LinkKind::kSocket;
  bool sends = true;
  int cable = kNoCable;
  bool up = true;  // and not lost, for the moment or for good
};

// How a link was lost.
enum class Loss : uint8_t {
  kClosed = 1,   // the host at the other end has closed it, as when a process ends
  kSilent = 2,   // nothing is acknowledged any more, even if the other end then closes it
  kCarrier = 3,  // the interface has lost its carrier, or is down
  kBroken = 4,   // an error here, or bytes that are no frame
  kGivenUp = 5,  // the other end has given it up, and still runs
};

class Link : public Reactor::Handler {
 public:
  class Observer {
   public:
    virtual ~Observer() = default;
    // Where the payload of this frame goes, valid until onFrame or redirect(); nullptr if it shall
    // be handed over with onFrame.
    virtual std::byte* onHeader(Link& link, const FrameHeader& header) = 0;
    // `placed`: the payload is where onHeader said; else it is `payload`.
    virtual void onFrame(Link& link, const FrameHeader& header, PayloadBuffer payload,
                         bool placed) = 0;
    // The link is closed or broken, and dead from now on; one of a cable, until it is reopened.
    virtual void onLost(Link& link, Loss loss, const std::string& why) = 0;
    // A message on the channel is written whose sender waits for its memory, which is still kept.
    virtual void onWritten(uint32_t channel) {}
  };

  // The surroundings of a link; all of it outlives the link.
  struct Context {
    int rank;  // of this process
    Reactor& reactor;
    BufferPool& buffers;
    Observer& observer;
  };

  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  virtual void start() = 0;
  void close();   // no further callbacks
  void finish();  // ends this side once all is written; the link is lost when the other one ends

  // Frames for a link that is finishing, or dead for good, are dropped.
  void send(OutFrame frame);                   // fair among flows
  void sendControl(OutFrame frame);            // before all data
  void sendHeader(const FrameHeader& header);  // the same without payload

  // Drops the queued frames of this rank's own flows on `channel` and calls `dropped` for each; the
  // caller's memory is free afterwards.
  void dropOwn(uint32_t channel, const std::function<void(const FrameHeader&)>& dropped);
  // Drops all data that waits: only control frames are still of use.
  void dropData();

  // If a payload is being read into [begin, end), the rest of it goes to a private buffer instead.
  void redirect(const std::byte* begin, const std::byte* end);

  // Copies what is kept of this rank's messages on `channel`, so that their memory is free.
  void hurry(uint32_t channel);
  // Of a cable: loses the link; what has arrived is read to its end before.
  void drop(Loss loss, const std::string& why);
  // The link is lost, and finishReading() has not been called yet.
  bool holds() const { return held_; }
  // Reads bytes that the transport acknowledged after drop() had read all: a processor may have
  // been handling a packet at that time. Must be called before the frames of a lost cable are
  // counted.
  void finishReading();
  // Whether the connection, once it is lost, leaves nothing behind in the system, which would be in
  // the way of another one from the same port. What it has not delivered is kept here. drop() does
  // so in any case.
  void leaveNothing(bool nothing) { leaves_nothing_ = nothing; }
  // The frames that a lost link leaves behind, once: see FrameQueue.
  FrameQueue::Kept takeKept() { return queue_.takeKept(can_.lent_memory->begunBytes()); }
  std::vector<OutFrame> takeUnwritten() { return queue_.takeUnwritten(); }
  // Frames that arrived in this connection.
  uint64_t receivedFrames() const { return received_frames_; }
  // A lost link goes on over the connection that `spec` names. Until established(), it takes
  // control frames only.
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
  // Something has been written since the last call, or waits to be.
  bool takeWrote() { return std::exchange(wrote_, false) || !queue_.empty(); }
  int cable() const { return cable_; }

  bool idle() const { return queue_.empty(); }
  bool dead() const { return dead_; }
  // Whether the neighbour, or its system, has all that was written.
  bool delivered() const { return dead_ || (idle() && can_.acknowledgements->allDelivered()); }
  void acknowledgeAtOnce() {
    if (!dead_) can_.acknowledgements->acknowledgeAtOnce();
  }
  // Of a frame to the neighbour, at most.
  uint32_t mostPayload() const { return most_payload_; }
  const plan::LinkPorts& name() const { return name_; }
  LinkCounters counters() const;
  const IterationBytes& iterations() const { return queue_.iterations(); }

  void onTurn() final;

 protected:
  static constexpr size_t kBatchBytes = 64 << 10;

  Link(const LinkSpec& spec, const Context& context, const Capabilities& capabilities = {});

  // Each moves as many bytes as it can and adds them to `count`.
  virtual Io readBytes(const iovec* parts, int part_count, size_t& count) = 0;
  virtual Io writeBytes(const iovec* parts, int part_count, size_t& count) = 0;
  virtual void endWriting() = 0;
  virtual void closeBytes() = 0;

  // Where the payload of a frame goes that is read after others: asks the observer before its turn.
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

  // Bytes that leave in one go: enough to make small frames cheap, little enough that an urgent
  // frame does not wait long behind it.
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
  // Frames of a cable that is lost are for other links.
  bool drops() const { return finishing_ || (cable_ == kNoCable && (dead_ || write_ended_)); }

  const plan::LinkPorts name_;
  const bool sends_;
  const int cable_;
  const Context context_;
  const Capabilities can_;
  FrameQueue queue_;
  FrameReader reader_;
  uint64_t received_bytes_ = 0;
  uint64_t received_frames_ = 0;  // in this connection
  // Bytes acknowledged at the last look; and when these last advanced, or nothing was in flight.
  uint64_t last_acknowledged_ = 0;
  Reactor::Clock::time_point answered_at_{};
  bool received_ = false;
  bool wrote_ = false;
  bool established_ = true;
  bool readable_ = false;
  bool writable_ = true;
  bool turn_asked_ = false;
  bool gave_back_ = false;
  bool finishing_ = false;
  bool write_ended_ = false;  // by finish(), or because the other end is gone
  bool dead_ = false;
  bool held_ = false;   // between lose() and finishReading()
  bool parks_ = false;  // finishReading() parks the connection and does not close it
};

// The text of an errno.
std::string errorText(int error);

}  // namespace topoopt
