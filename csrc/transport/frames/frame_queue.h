// The queued and the unacknowledged frames of one link.
//
// Each flow has a queue, and flows alternate by bytes, so no flow, own or relayed, can starve
// another. A flow that was idle for a whole round goes before the others, so a barrier does not
// wait behind gradients. Control frames go first.
//
// A replaceable link keeps written frames until the neighbour's transport has acknowledged them,
// and resends lost ones over other links. Frames are numbered by their order in the connection,
// which both ends count.

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
  uint64_t received_bytes = 0;    // payload of data frames received
  uint64_t overhead_bytes = 0;    // headers and control frames sent
  uint64_t relay_peak_bytes = 0;  // peak of queued payload of other ranks
  double seconds = 0;             // with something to send
  uint64_t zero_copy_bytes = 0;   // zero-copy bytes that were not copied
  uint64_t copied_bytes = 0;      // zero-copy bytes that the kernel copied
};

// Sent payload by the source's iteration: a frame that a relay sends late still counts for its own
// iteration.
class IterationBytes {
 public:
  static constexpr size_t kMost = 20'000;  // iterations that are kept

  // `iteration` is the low half of a number less than 2^15 away from the highest seen.
  void add(uint16_t iteration, uint64_t bytes);
  // Bytes per iteration from `first` on; 0 if unknown.
  std::vector<uint64_t> from(uint64_t first, size_t count) const;

 private:
  uint64_t first_ = 0;  // iteration of the first entry
  std::deque<uint64_t> bytes_{0};
};

// The error, or nullptr on success.
using Done = std::function<void(std::exception_ptr)>;

// Counts a message's uses of its memory: unwritten bytes and long kept frames.
struct SendProgress {
  size_t unsent_bytes;
  Done done;
  // The sender waits for the memory: once all is written, kept frames are copied.
  bool prompt = true;
  size_t kept_frames = 0;
};

// An outgoing frame. The payload is the memory of `message`'s caller, or `owned`.
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

  // Frames from a source other than `rank` are relayed. `keeps`: until acknowledged.
  FrameQueue(int rank, BufferPool& buffers, bool keeps)
      : rank_(rank), buffers_(buffers), keeps_(keeps) {}

  void push(OutFrame frame);         // fair among flows
  void pushControl(OutFrame frame);  // before all data
  bool empty() const { return ready_.empty() && control_.empty() && waiting_ == 0; }

  // Returns the next bytes to write, as a number of parts up to kMaxParts. Stops after frames of
  // `batch_bytes` in total.
  int gather(iovec* parts, size_t batch_bytes);
  // The first `bytes` of the gathered parts were written. May call `done` of sends, which may call
  // push().
  void wrote(size_t bytes);

  // The system may still read long payloads in place that end at this connection offset or later.
  // They are kept with their memory until the offset advances. On links that keep no frames,
  // unacknowledged(0) checks them.
  void lend(uint64_t from);
  uint64_t writtenBytes() const { return written_bytes_; }

  // The neighbour's transport has all but the last `bytes` written. May call `done`, as wrote().
  void unacknowledged(size_t bytes);
  // Returns whether so much was kept since the last check of acknowledgements that another is due.
  bool keepsMuch() const {
    return kept_.size() >= unacknowledged_frames_ + kManyFrames ||
           kept_bytes_ >= unacknowledged_bytes_ + kManyBytes;
  }
  bool keepsMessages() const { return kept_messages_ > 0; }
  // Copies the kept messages of this rank on `channel`, and makes its unwritten ones prompt. May
  // call `done`, as wrote().
  void hurry(uint32_t channel);
  // Channels of prompt messages that are written but kept, here or on other links; each once.
  std::vector<uint32_t> takeWritten() { return std::exchange(written_channels_, {}); }

  // The frames of a lost connection: the unacknowledged ones, also partly written, the first of
  // which has the number `first`; then the unwritten ones. May call `done`, as wrote(). `begun`:
  // bytes beyond the written ones that the other end may have.
  struct Kept {
    uint64_t first = 0;
    std::vector<OutFrame> frames;
  };
  Kept takeKept(size_t begun = 0);
  std::vector<OutFrame> takeUnwritten();

  // Drops the frames of this rank's own flows on `channel` and calls `dropped` for each. Kept,
  // partly written and begun frames are copied, so the caller's memory is free on return.
  void dropOwn(uint32_t channel, size_t begun,
               const std::function<void(const FrameHeader&)>& dropped);
  // Drops all data frames except partly written and begun ones.
  void dropData(size_t begun = 0);
  void clear();

  LinkCounters counters() const;
  const IterationBytes& iterations() const { return iterations_; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kManyFrames = 32;
  static constexpr size_t kManyBytes = 256 << 10;
  struct KeptFrame {
    OutFrame frame;
    uint64_t end;  // offset of its end in the connection
  };
  struct QueuedFlow {
    std::deque<OutFrame> frames;
    size_t credit_bytes = 0;  // bytes left in its turn
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
  std::deque<OutFrame> ready_;  // in write order
  size_t ready_bytes_ = 0;
  size_t written_ = 0;          // of the first in ready_
  uint64_t written_bytes_ = 0;  // over this connection
  uint64_t lent_from_ = kNothingLent;
  bool came_back_ = false;  // lent memory came back since unacknowledged()
  std::deque<KeptFrame> kept_;
  uint64_t kept_first_ = 0;  // number of the first
  size_t kept_bytes_ = 0;
  size_t unacknowledged_frames_ = 0;  // of kept_, at the last check
  size_t unacknowledged_bytes_ = 0;
  size_t kept_messages_ = 0;  // kept frames that use a caller's memory
  std::vector<uint32_t> written_channels_;
  std::deque<OutFrame> control_;
  Flows flows_;
  // A flow that runs out of frames keeps its place until its turn, so that it cannot repeatedly
  // overtake the others.
  Turns fresh_;
  Turns turns_;
  size_t waiting_ = 0;        // frames in flows_
  uint64_t relay_bytes_ = 0;  // queued payload of other ranks
  LinkCounters counters_;
  IterationBytes iterations_;
  bool busy_ = false;
  Clock::time_point busy_since_{};
};

}  // namespace topoopt
