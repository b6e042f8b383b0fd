// Operations on device tensors, by way of host memory.
//
// Where collectives go over links, one is a single operation of the group, or few if it is long:
// each begins when its first slice has been copied to the host, takes the others as they land and
// gives results back as they are final (collectives/group/landing.h). The pieces of a long one are
// so large that they keep the links busy (Group::landingBytes), and the next one lands while one is
// on the network. Where collectives go through shared memory, which wants all data at the start,
// they are cut into small pieces, each of which is copied to the host, handed to the group and
// copied back beside the others.
//
// A tensor whose memory the host reaches is not copied (in_place.h): its operation begins when the
// caller's stream has come as far as it had been given when the operation was submitted.
//
// Copies run on two side streams of the device, one per direction, which wait for what the
// caller's stream had been given when the operation was submitted; nothing waits for a whole
// device. One thread per process group watches the events of the device.
//
// Collectives start in the order in which they were submitted, few pieces at a time. Messages start
// in their own order, beside the collectives and all at once, because two ranks may each send what
// the other one receives only later.

#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/staging/in_place.h"
#include "backend/staging/staging_memory.h"
#include "backend/staging/staging_slices.h"
#include "backend/staging/staging_work.h"

namespace topoopt {

// No buffer of a piece is larger, where the operation can be cut and the engine takes no landing.
constexpr size_t kStagingPieceBytes = 4 << 20;
// Host memory for the collectives of one process group, beside two pieces that land while they run.
// Enough for small pieces of two buffers: one is copied in, one is on the network, one waits there
// and one is copied back.
constexpr size_t kStagingBytes = 8 * kStagingPieceBytes;

struct StagingPiece {
  // Starts the operation on the host tensors, one per buffer; without a landing all data is there.
  using Start = std::function<c10::intrusive_ptr<c10d::Work>(std::vector<at::Tensor>&,
                                                             const std::shared_ptr<Landing>&)>;

  std::vector<StagingBuffer> buffers;
  Start start;
  bool lands = false;   // it may begin before all data is there
  bool placed = false;  // it is known which buffers are used in place
};

struct StagingOperation {
  enum class Order { kCollective, kMessage };

  StagingOperation(c10::Device device,
                   Order order);  // notes what the current stream has been given

  const c10::Device device;
  const Order order;
  c10::Event submitted;
  bool reached = false;        // by the stream: `submitted` has passed
  bool awaits_device = false;  // before it starts, even if it reads nothing
  std::vector<StagingPiece> pieces;
  // From a contiguous device tensor (second) to the caller's, after all pieces.
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_back;
  c10::intrusive_ptr<StagingWork> work;
  size_t pieces_started = 0;
  size_t pieces_copied_back = 0;
  bool settled = false;  // all pieces have been started, or the operation has failed
  bool failed = false;
};

class Staging {
 public:
  // `abort` ends the process group on all ranks, when a piece fails on this rank alone. `error` is
  // why the process group is unusable, or nullptr. `landing_bytes`: of a piece that lands while it
  // runs; 0: there are none. `in_place` finds the tensors that are not copied.
  Staging(std::function<void(const std::string&)> abort, std::function<std::exception_ptr()> error,
          size_t landing_bytes, std::shared_ptr<InPlace> in_place);
  ~Staging();  // stops

  void submit(std::shared_ptr<StagingOperation> operation);

  // Returns when the collectives submitted so far have been started or have failed, for what is
  // started next must come after them on all ranks.
  void awaitStarted();

  // Fails what has not been started. Not while holding the GIL, and after the process group has
  // ended, for it waits for what has been started.
  void stop();

 private:
  using OperationPtr = std::shared_ptr<StagingOperation>;
  enum class Stage { kCopyingIn, kStarted, kCopyingBack };

  struct Piece {
    OperationPtr operation;
    StagingPiece piece;
    size_t bytes;  // of host memory
    Stage stage = Stage::kCopyingIn;
    std::vector<at::Tensor> memory = {};
    std::vector<at::Tensor> host = {};           // views of it, or tensors in place
    bool in_place = false;                       // some are
    std::unique_ptr<StagingSlices> slices = {};  // if it lands while it runs
    std::optional<c10::Event> copied = {};
    c10::intrusive_ptr<c10d::Work> work = {};
    bool over = false;  // guarded by Wake::mutex
    std::exception_ptr error = {};
  };
  using PiecePtr = std::shared_ptr<Piece>;

  // Outlives this object: what runs elsewhere may still raise it.
  struct Wake {
    std::mutex mutex;
    std::condition_variable changed;
    bool raised = false;
  };

  struct Lane {
    size_t limit_bytes;
    size_t bytes = 0;  // of `pieces`
    std::deque<OperationPtr> operations = {};
    size_t next_piece = 0;  // of the first operation
    std::list<PiecePtr> pieces = {};
  };

  struct Streams {
    c10::Stream in;
    c10::Stream back;
  };

  void loop();
  bool takeSubmitted();  // false when there is nothing left to do and never will be
  bool busy() const;
  void pause(std::chrono::microseconds& interval);
  void progress(Lane& lane);
  void beginPieces(Lane& lane);
  void startPieces(Lane& lane);
  void endPieces(Lane& lane);
  void copyIn(Piece& piece);
  void takeMemory(Piece& piece);
  void start(const PiecePtr& piece);
  void copyBack(Piece& piece);
  void release(Lane& lane, Piece& piece);
  void copySlices(Piece& piece);
  bool readyToStart(Piece& piece);
  bool streamReached(Piece& piece);
  bool copied(Piece& piece);
  bool finished(Piece& piece);
  bool over(Piece& piece);
  void failHere(Piece& piece);
  void awaitCopies(Piece& piece);
  std::optional<c10::Event> copiesSoFar(c10::Device device);
  void failPiece(Piece& piece, std::exception_ptr error);
  void failOperation(StagingOperation& operation, std::exception_ptr error);
  void settle(StagingOperation& operation);
  bool awaitsDevice() const;
  const Streams& streamsOf(c10::Device device);

  const std::function<void(const std::string&)> abort_;
  const std::function<std::exception_ptr()> group_error_;
  const std::shared_ptr<Wake> wake_ = std::make_shared<Wake>();

  // Guarded by wake_->mutex.
  std::vector<OperationPtr> submitted_;
  uint64_t collectives_submitted_ = 0;
  uint64_t collectives_started_ = 0;
  std::condition_variable started_;
  bool stopping_ = false;

  // The thread's own.
  std::exception_ptr failure_;  // why nothing can be started any more
  Lane collectives_;
  Lane messages_{SIZE_MAX};
  std::unordered_map<c10::Device, Streams> streams_;
  const std::shared_ptr<InPlace> in_place_;
  StagingMemory memory_;

  std::mutex stop_mutex_;
  std::thread thread_;
};

}  // namespace topoopt
