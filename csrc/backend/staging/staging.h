// Operations on device tensors through host memory.
//
// Over links, an operation is a single one of the group, or a few if it is long. Each piece starts
// when its first slice is on the host, uses the others as they land, and returns results as they
// become final (collectives/group/landing.h). Pieces are large enough to keep the links busy
// (Group::landingBytes), and the next one lands while one is on the network. Shared memory needs
// all data at the start, so collectives over it are split into small pieces. They are copied to the
// host, run and copied back in parallel.
//
// Tensors in memory that the host can access are not copied (in_place.h). Their operation starts
// after the work enqueued on the caller's stream at submission.
//
// Copies use two side streams of the device, one per direction, which wait for the same work; no
// thread waits for a whole device. One thread per process group polls the device's events.
//
// Collectives start in the order of submission, a few pieces at a time. Messages start in their own
// order, independently and without limit, because two ranks may each send before they receive.

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

// Maximum of a piece's buffers, if the operation can be split and the engine has no landing.
constexpr size_t kStagingPieceBytes = 4 << 20;
// Host memory for a process group's collectives, without two landing pieces. Enough for small
// pieces of two buffers: one copied in, one on the network, one queued and one copied back.
constexpr size_t kStagingBytes = 8 * kStagingPieceBytes;

struct StagingPiece {
  // Starts the operation on one host tensor per buffer; without a landing all data is there.
  using Start = std::function<c10::intrusive_ptr<c10d::Work>(std::vector<at::Tensor>&,
                                                             const std::shared_ptr<Landing>&)>;

  std::vector<StagingBuffer> buffers;
  Start start;
  bool lands = false;   // it may start before all data has landed
  bool placed = false;  // buffers in place are known
};

struct StagingOperation {
  enum class Order { kCollective, kMessage };

  StagingOperation(c10::Device device,
                   Order order);  // records the current stream

  const c10::Device device;
  const Order order;
  c10::Event submitted;
  bool reached = false;        // `submitted` has passed
  bool awaits_device = false;  // even if it reads nothing
  std::vector<StagingPiece> pieces;
  // From a contiguous device tensor (second) to the caller's tensor, after all pieces.
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_back;
  c10::intrusive_ptr<StagingWork> work;
  size_t pieces_started = 0;
  size_t pieces_copied_back = 0;
  bool settled = false;  // all pieces were started, or it has failed
  bool failed = false;
};

class Staging {
 public:
  // `abort` ends the process group on all ranks if a piece fails only here. `error` returns the
  // process group's failure, or nullptr. `landing_bytes`: size of a landing piece; 0: no landing.
  // `in_place` finds the tensors that are not copied.
  Staging(std::function<void(const std::string&)> abort, std::function<std::exception_ptr()> error,
          size_t landing_bytes, std::shared_ptr<InPlace> in_place);
  ~Staging();

  void submit(std::shared_ptr<StagingOperation> operation);

  // Waits until the submitted collectives have started or failed, because later ones must follow
  // them on all ranks.
  void awaitStarted();

  // Fails operations that have not started, and waits for the others. Call it without the GIL,
  // after the process group has ended.
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
    std::vector<at::Tensor> host = {};           // views of it, or in place
    bool in_place = false;                       // some are
    std::unique_ptr<StagingSlices> slices = {};  // if it lands
    std::optional<c10::Event> copied = {};
    c10::intrusive_ptr<c10d::Work> work = {};
    bool over = false;  // guarded by Wake::mutex
    std::exception_ptr error = {};
  };
  using PiecePtr = std::shared_ptr<Piece>;

  // Outlives this object, because other threads may still notify it.
  struct Wake {
    std::mutex mutex;
    std::condition_variable changed;
    bool raised = false;
  };

  struct Lane {
    size_t limit_bytes;
    size_t bytes = 0;  // of `pieces`
    std::deque<OperationPtr> operations = {};
    size_t next_piece = 0;  // in the first operation
    std::list<PiecePtr> pieces = {};
  };

  struct Streams {
    c10::Stream in;
    c10::Stream back;
  };

  void loop();
  bool takeSubmitted();  // false: no more work will come
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

  // Used only by the thread.
  std::exception_ptr failure_;  // later operations cannot start
  Lane collectives_;
  Lane messages_{SIZE_MAX};
  std::unordered_map<c10::Device, Streams> streams_;
  const std::shared_ptr<InPlace> in_place_;
  StagingMemory memory_;

  std::mutex stop_mutex_;
  std::thread thread_;
};

}  // namespace topoopt
