// The frames that wait for one link, and what became of them.
//
// They wait in one queue per flow and leave in turn, by bytes, so no flow, own or relayed, can
// starve another. A flow that had nothing to send for a whole round begins before the others: a
// barrier does not wait for its turn behind gradients. Control frames go first of all.
//
// A link that may be lost and replaced keeps what it has written until the neighbour's transport
// has acknowledged it: what is lost with the link is sent again over others. Frames are numbered by
// their order in the connection, which both ends count.

#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/frames/frame.h"
#include "transport/frames/payload_buffer.h"

namespace topoopt {

struct LinkCounters {
  uint64_t sent_bytes = 0;        // payload of data frames, own and relayed
  uint64_t relayed_bytes = 0;     // the part of it that came from other ranks
  uint64_t received_bytes = 0;    // payload of data frames from the neighbour
  uint64_t overhead_bytes = 0;    // headers and control frames sent
  uint64_t relay_peak_bytes = 0;  // most payload of other ranks that ever waited here at a time
  double seconds = 0;             // with something to send
  uint64_t zero_copy_bytes = 0;   // of sends without copy, what was not copied
  uint64_t copied_bytes = 0;      // and what the kernel has copied all the same
};

// The payload that left by the iteration in which its source sent it, whenever it passed here: what
// a relay sends late still counts for the iteration that it belongs to.
class IterationBytes {
 public:
  static constexpr size_t kMost = 20'000;  // iterations that are remembered: the last ones

  // `iteration` is the low half of a number that is less than 2^15 away from the highest seen.
  void add(uint16_t iteration, uint64_t bytes);
  // Of the iterations from `first` on; 0 for those of which nothing is known.
  std::vector<uint64_t> from(uint64_t first, size_t count) const;

 private:
  uint64_t first_ = 0;  // the iteration of the first entry
  std::deque<uint64_t> bytes_{0};
};

// nullptr on success, else what happened.
using Done = std::function<void(std::exception_ptr)>;

// What keeps a message's memory in use: bytes that are not written, and long frames that are kept.
struct SendProgress {
  size_t unsent_bytes;
  Done done;
  // The sender waits for the memory: once all is written, what is kept of it is copied.
  bool prompt = true;
  size_t kept_frames = 0;
};

// A frame on its way out. The payload is the memory of `message`'s caller, or `owned`.
struct OutFrame {
  FrameHeader header;
  const std::byte* payload = nullptr;
  PayloadBuffer owned;
  std::shared_ptr<SendProgress> message;
};

class FrameQueue {
 public:
  static constexpr int kMaxParts = 32;
  static constexpr uint64_t kNothingLent = UINT64_MAX;

  // Frames with another source than `rank` are relayed. `keeps`: until they are acknowledged.
  FrameQueue(int rank, BufferPool& buffers, bool keeps)
      : rank_(rank), buffers_(buffers), keeps_(keeps) {}

  void push(OutFrame frame);         // fair among flows
  void pushControl(OutFrame frame);  // before all data
  bool empty() const { return ready_.empty() && control_.empty() && waiting_ == 0; }

  // The next bytes to write, as at most kMaxParts parts; returns how many. Once frames of
  // `batch_bytes` are gathered, what comes later waits its turn.
  int gather(iovec* parts, size_t batch_bytes);
  // The first `bytes` of what was gathered are written. May call `done` of sends, and through them
  // push() again.
  void wrote(size_t bytes);

  // The system may still read long payloads where they lie of which the last byte has this offset
  // in the connection, or a higher one: they are kept, and hold their messages' memory, until this
  // has become more. For links that do not keep frames, unacknowledged(0) looks for them.
  void lend(uint64_t from);
  uint64_t writtenBytes() const { return written_bytes_; }

  // The neighbour's transport has all but the last `bytes` of what was written. As wrote().
  void unacknowledged(size_t bytes);
  // So much is kept, beside what was not acknowledged when that was asked last, that it is time to
  // ask again.
  bool keepsMuch() const {
    return kept_.size() >= unacknowledged_frames_ + kManyFrames ||
           kept_bytes_ >= unacknowledged_bytes_ + kManyBytes;
  }
  bool keepsNothing() const { return kept_.empty(); }
  bool keepsMessages() const { return kept_messages_ > 0; }
  // Copies what is kept of this rank's own messages on `channel`, and makes those prompt that are
  // not yet written. As wrote().
  void hurry(uint32_t channel);
  // Channels of prompt messages that are written and of which frames are kept, here or on other
  // links; each is returned once.
  std::vector<uint32_t> takeWritten() { return std::exchange(written_channels_, {}); }

  // When the connection is lost: what was written, or begun, also in part, and not acknowledged;
  // the number of its first frame in the connection is `first`. Then what was not written. As
  // wrote(). `begun`: the other end may have so many bytes more than were written.
  struct Kept {
    uint64_t first = 0;
    std::vector<OutFrame> frames;
  };
  Kept takeKept(size_t begun = 0);
  std::vector<OutFrame> takeUnwritten();

  // Drops the frames of this rank's own flows on `channel` and calls `dropped` for each; what is
  // kept, half written or begun is copied, so the caller's memory is free afterwards.
  void dropOwn(uint32_t channel, size_t begun,
               const std::function<void(const FrameHeader&)>& dropped);
  // Drops all data frames but one that is half written, and those that are begun.
  void dropData(size_t begun = 0);
  // Drops everything.
  void clear();

  LinkCounters counters() const;
  const IterationBytes& iterations() const { return iterations_; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kManyFrames = 32;
  static constexpr size_t kManyBytes = 256 << 10;
  struct KeptFrame {
    OutFrame frame;
    uint64_t end;  // of its bytes in the connection
  };
  struct QueuedFlow {
    std::deque<OutFrame> frames;
    size_t credit_bytes = 0;  // what it may send before the next flow's turn
    bool listed = false;      // in fresh_ or turns_
  };
  using Flows = std::unordered_map<FlowKey, QueuedFlow, FlowHash>;
  using Turns = std::deque<Flows::value_type*>;

  bool relayed(const FrameHeader& header) const { return header.source != rank_; }
  bool ownData(const OutFrame& frame, uint32_t channel) const;
  size_t begunFrames(size_t begun) const;
  void startBusy();
  void stopBusy();
  bool takeNext();
  Flows::value_type* nextFlow();
  void retire(Flows::value_type* entry);
  void account(const FrameHeader& header);
  void waitsNoMore(const FrameHeader& header);
  void finishFrame(OutFrame frame);
  void own(OutFrame& frame);
  bool lent(const FrameHeader& header, uint64_t end) const;
  void lookAtPrompt();
  static bool complete(SendProgress& message);
  std::shared_ptr<SendProgress> freed(OutFrame& frame);

  const int rank_;
  BufferPool& buffers_;
  const bool keeps_;
  std::deque<OutFrame> ready_;  // in the order in which they are written
  size_t ready_bytes_ = 0;
  size_t written_ = 0;          // of the first in ready_
  uint64_t written_bytes_ = 0;  // in this connection
  uint64_t lent_from_ = kNothingLent;
  bool came_back_ = false;  // some of it, since unacknowledged() was called
  std::deque<KeptFrame> kept_;
  uint64_t kept_first_ = 0;  // the number of the first
  size_t kept_bytes_ = 0;
  size_t unacknowledged_frames_ = 0;  // of kept_, when it was asked last
  size_t unacknowledged_bytes_ = 0;
  size_t kept_messages_ = 0;  // frames in kept_ that still use a caller's memory
  std::vector<uint32_t> written_channels_;
  std::deque<OutFrame> control_;
  Flows flows_;
  // A flow that runs out of frames keeps its place until its turn comes, so that it does not begin
  // before the others again and again.
  Turns fresh_;
  Turns turns_;
  size_t waiting_ = 0;        // frames in flows_
  uint64_t relay_bytes_ = 0;  // payload of other ranks that waits here
  LinkCounters counters_;
  IterationBytes iterations_;
  bool busy_ = false;
  Clock::time_point busy_since_{};
};

}  // namespace topoopt
