#include "backend/staging/staging.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "common/errors.h"
#include "common/thread.h"

namespace topoopt {
namespace {

// Polling interval for device events, which notify no thread; doubled while nothing happens.
constexpr std::chrono::microseconds kShortestPause{20};
constexpr std::chrono::microseconds kLongestPause{200};

std::string withoutBacktrace(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& exception) {
    return exception.what_without_backtrace();
  } catch (const std::exception& exception) {
    return exception.what();
  }
}

// Required host memory.
size_t bytesOf(const StagingPiece& piece) {
  size_t bytes = 0;
  for (const StagingBuffer& buffer : piece.buffers) {
    if (!buffer.inPlace())
      bytes += static_cast<size_t>(buffer.elements) * c10::elementSize(buffer.type);
  }
  return bytes;
}

bool reads(const StagingPiece& piece) {
  return std::any_of(piece.buffers.begin(), piece.buffers.end(),
                     [](const StagingBuffer& buffer) { return !buffer.reads.empty(); });
}

void copyTensor(const at::Tensor& to, const at::Tensor& from) {
  if (to.numel() > 0) to.copy_(from, /*non_blocking=*/true);
}

std::exception_ptr shutDown() {
  return std::make_exception_ptr(AbortedError("the process group was shut down"));
}

c10::Event recorded(const c10::Stream& stream) {
  c10::Event event(stream.device_type());
  event.record(stream);
  return event;
}

}  // namespace

StagingOperation::StagingOperation(c10::Device device, Order order)
    : device(device),
      order(order),
      submitted(recorded(c10::impl::VirtualGuardImpl(device.type()).getStream(device))) {}

Staging::Staging(std::function<void(const std::string&)> abort,
                 std::function<std::exception_ptr()> error, size_t landing_bytes,
                 std::shared_ptr<InPlace> in_place)
    : abort_(std::move(abort)),
      group_error_(std::move(error)),
      collectives_{kStagingBytes + 2 * landing_bytes},
      in_place_(std::move(in_place)),
      memory_{kStagingBytes + 2 * landing_bytes} {
  thread_ = quietThread([this] { loop(); });
}

Staging::~Staging() { stop(); }

void Staging::submit(std::shared_ptr<StagingOperation> operation) {
  std::unique_lock lock(wake_->mutex);
  if (stopping_) {
    lock.unlock();
    return operation->work->complete(shutDown());
  }
  if (operation->order == StagingOperation::Order::kCollective) ++collectives_submitted_;
  submitted_.push_back(std::move(operation));
  wake_->raised = true;
  wake_->changed.notify_one();
}

void Staging::awaitStarted() {
  std::unique_lock lock(wake_->mutex);
  const uint64_t target = collectives_submitted_;
  started_.wait(lock, [&] { return collectives_started_ >= target; });
}

void Staging::stop() {
  std::lock_guard once(stop_mutex_);
  {
    std::lock_guard lock(wake_->mutex);
    stopping_ = true;
    wake_->raised = true;
    wake_->changed.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

// ---- the thread --------------------------------------------------------------------------------

void Staging::loop() {
  // Copies to parameters are neither differentiated nor seen by autograd's version checks.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::chrono::microseconds interval = kShortestPause;
  while (takeSubmitted()) {
    progress(collectives_);
    progress(messages_);
    pause(interval);
  }
}

bool Staging::takeSubmitted() {
  std::vector<OperationPtr> submitted;
  bool stopping;
  {
    std::lock_guard lock(wake_->mutex);
    submitted.swap(submitted_);
    wake_->raised = false;
    stopping = stopping_;
  }
  if (!failure_) failure_ = group_error_();
  if (!failure_ && stopping) failure_ = shutDown();
  for (OperationPtr& operation : submitted) {
    const bool message = operation->order == StagingOperation::Order::kMessage;
    (message ? messages_ : collectives_).operations.push_back(std::move(operation));
  }
  return !stopping || busy();
}

bool Staging::busy() const {
  const auto empty = [](const Lane& lane) {
    return lane.operations.empty() && lane.pieces.empty();
  };
  return !empty(collectives_) || !empty(messages_);
}

void Staging::pause(std::chrono::microseconds& interval) {
  std::unique_lock lock(wake_->mutex);
  const auto raised = [this] { return wake_->raised || (stopping_ && !busy()); };
  if (!awaitsDevice()) {
    wake_->changed.wait(lock, raised);
  } else if (!wake_->changed.wait_for(lock, interval, raised)) {
    interval = std::min(2 * interval, kLongestPause);
    return;
  }
  interval = kShortestPause;
}

bool Staging::awaitsDevice() const {
  for (const Lane* lane : {&collectives_, &messages_}) {
    for (const PiecePtr& piece : lane->pieces) {
      if (piece->stage != Stage::kStarted) return true;
      if (piece->slices && piece->slices->copyingIn()) return true;
    }
  }
  return false;
}

// Ends pieces first, because the others may need their memory.
void Staging::progress(Lane& lane) {
  endPieces(lane);
  beginPieces(lane);
  startPieces(lane);
}

void Staging::beginPieces(Lane& lane) {
  while (!lane.operations.empty()) {
    const OperationPtr operation = lane.operations.front();
    if (failure_) failOperation(*operation, failure_);
    if (operation->failed || lane.next_piece == operation->pieces.size()) {
      lane.operations.pop_front();
      lane.next_piece = 0;
      continue;
    }
    StagingPiece& next = operation->pieces[lane.next_piece];
    if (!std::exchange(next.placed, true)) in_place_->find(next.buffers);
    const size_t bytes = bytesOf(next);
    if (!lane.pieces.empty() && bytes > lane.limit_bytes - std::min(lane.limit_bytes, lane.bytes)) {
      return;
    }
    const auto piece = std::make_shared<Piece>(Piece{operation, std::move(next), bytes});
    ++lane.next_piece;
    lane.bytes += bytes;
    lane.pieces.push_back(piece);
    try {
      copyIn(*piece);
    } catch (const std::exception&) {
      failHere(*piece);
    }
  }
}

void Staging::startPieces(Lane& lane) {
  for (const PiecePtr& piece : lane.pieces) {
    if (piece->stage != Stage::kCopyingIn) continue;
    if (failure_) failOperation(*piece->operation, failure_);
    if (piece->operation->failed) {
      piece->stage = Stage::kCopyingBack;  // no copies, but its memory may still be written
      if (piece->slices) awaitCopies(*piece);
      continue;
    }
    if (!readyToStart(*piece)) return;
    if (piece->operation->failed) continue;
    try {
      start(piece);
    } catch (const std::exception&) {
      failHere(*piece);
    }
  }
}

void Staging::endPieces(Lane& lane) {
  for (auto entry = lane.pieces.begin(); entry != lane.pieces.end();) {
    Piece& piece = **entry;
    if (piece.stage == Stage::kStarted && piece.slices) copySlices(piece);
    if (piece.stage == Stage::kStarted && over(piece)) {
      if (piece.error) {
        if (piece.slices) awaitCopies(piece);
        failPiece(piece, piece.error);
      } else if (!piece.slices || !piece.slices->copyingIn()) {
        try {
          copyBack(piece);
        } catch (const std::exception&) {
          failHere(piece);
        }
      }
    }
    if (piece.stage == Stage::kCopyingBack && copied(piece) && finished(piece)) {
      release(lane, piece);
      entry = lane.pieces.erase(entry);
    } else {
      ++entry;
    }
  }
}

// ---- one piece ---------------------------------------------------------------------------------

void Staging::takeMemory(Piece& piece) {
  for (const StagingBuffer& buffer : piece.piece.buffers) {
    if (buffer.inPlace()) {
      piece.host.push_back(buffer.host);
      piece.in_place = true;
      continue;
    }
    const auto bytes =
        static_cast<int64_t>(static_cast<size_t>(buffer.elements) * c10::elementSize(buffer.type));
    piece.memory.push_back(memory_.take(piece.operation->device.type(), bytes));
    piece.host.push_back(piece.memory.back().narrow(0, 0, bytes).view(buffer.type));
  }
}

void Staging::copyIn(Piece& piece) {
  const StagingOperation& operation = *piece.operation;
  takeMemory(piece);
  if (piece.piece.lands && piece.bytes > kStagingSliceBytes) {
    piece.slices = std::make_unique<StagingSlices>(piece.piece.buffers, piece.host, [wake = wake_] {
      std::lock_guard lock(wake->mutex);
      wake->raised = true;
      wake->changed.notify_one();
    });
  }
  if (!reads(piece.piece) && !operation.awaits_device) return;
  const c10::Stream& stream = streamsOf(operation.device).in;
  const c10::StreamGuard guard(stream);
  operation.submitted.block(stream);
  for (size_t i = 0; i < piece.host.size(); ++i) {
    const StagingBuffer& buffer = piece.piece.buffers[i];
    if (piece.slices && !buffer.inPlace()) continue;
    const at::Tensor& to = buffer.inPlace() ? buffer.place : piece.host[i];
    for (const StagingBuffer::Part& part : buffer.reads) {
      copyTensor(to.narrow(0, part.offset, part.tensor.numel()), part.tensor);
    }
  }
  piece.copied = recorded(stream);
  if (piece.slices) piece.slices->copyIn(stream);
}

void Staging::start(const PiecePtr& piece) {
  piece->copied.reset();
  piece->work = piece->piece.start(
      piece->host, piece->slices ? piece->slices->landing() : std::shared_ptr<Landing>());
  piece->stage = Stage::kStarted;
  StagingOperation& operation = *piece->operation;
  if (++operation.pieces_started == operation.pieces.size()) settle(operation);
  piece->work->getFuture()->addCallback([piece, wake = wake_](c10::ivalue::Future& future) {
    std::lock_guard lock(wake->mutex);
    piece->over = true;
    if (future.hasError()) piece->error = future.exception_ptr();
    wake->raised = true;
    wake->changed.notify_one();
  });
}

// Copies slices to the host, and final ones back while the collective runs.
void Staging::copySlices(Piece& piece) {
  try {
    const Streams& streams = streamsOf(piece.operation->device);
    if (piece.slices->copyingIn()) {
      const c10::StreamGuard guard(streams.in);
      piece.slices->copyIn(streams.in);
    }
    if (piece.stage != Stage::kStarted || piece.operation->failed) return;
    const auto final = piece.slices->takeFinal();
    if (final.empty()) return;
    const c10::StreamGuard guard(streams.back);
    piece.operation->submitted.block(streams.back);
    piece.slices->copyBack(final);
  } catch (const std::exception&) {
    failHere(piece);
  }
}

// Returns whether the caller's stream no longer uses the tensors in place, or has failed.
bool Staging::streamReached(Piece& piece) {
  StagingOperation& operation = *piece.operation;
  try {
    operation.reached = operation.reached || operation.submitted.query();
    return operation.reached;
  } catch (const std::exception&) {
    failHere(piece);
    return true;
  }
}

// Returns true also after a failure.
bool Staging::readyToStart(Piece& piece) {
  if (piece.in_place && !streamReached(piece)) return false;
  if (!piece.operation->failed && !copied(piece)) return false;
  if (!piece.slices || piece.operation->failed) return true;
  copySlices(piece);
  return piece.operation->failed || piece.slices->begun();
}

void Staging::copyBack(Piece& piece) {
  StagingOperation& operation = *piece.operation;
  const c10::Stream& stream = streamsOf(operation.device).back;
  const c10::StreamGuard guard(stream);
  // The caller's stream may use the written tensors until this event.
  operation.submitted.block(stream);
  if (piece.slices) piece.slices->copyRest();
  for (size_t i = 0; !piece.slices && i < piece.host.size(); ++i) {
    for (const StagingBuffer::Part& part : piece.piece.buffers[i].writes) {
      copyTensor(part.tensor, piece.host[i].narrow(0, part.offset, part.tensor.numel()));
    }
  }
  const bool last = ++operation.pieces_copied_back == operation.pieces.size();
  if (last) {
    for (const auto& [to, from] : operation.copies_back) copyTensor(to, from);
  }
  piece.copied = recorded(stream);
  piece.stage = Stage::kCopyingBack;
  if (!last || operation.failed) return;
  if (operation.work->retrieveOpType() == c10d::OpType::RECVANYSOURCE) {
    operation.work->setSource(piece.work->sourceRank());
  }
  operation.work->copyingBack(stream);
  operation.work->complete(nullptr);
}

void Staging::release(Lane& lane, Piece& piece) {
  piece.host.clear();
  for (at::Tensor& memory : piece.memory) {
    memory_.giveBack(piece.operation->device.type(), std::move(memory));
  }
  lane.bytes -= piece.bytes;
}

bool Staging::copied(Piece& piece) {
  try {
    return !piece.copied || piece.copied->query();
  } catch (const std::exception&) {
    failHere(piece);
    piece.memory.clear();  // not reused, because copies may be running
    return true;
  }
}

// Returns whether the network no longer uses the memory either.
bool Staging::finished(Piece& piece) { return !piece.work || over(piece); }

bool Staging::over(Piece& piece) {
  std::lock_guard lock(wake_->mutex);
  return piece.over;
}

// ---- failures ----------------------------------------------------------------------------------

// Other ranks wait for this piece, so notify them of its failure.
void Staging::failHere(Piece& piece) {
  const std::exception_ptr error = std::current_exception();
  awaitCopies(piece);
  failPiece(piece, error);
  abort_(withoutBacktrace(error));
}

// Running copies may use the memory of a failed piece.
void Staging::awaitCopies(Piece& piece) {
  piece.copied = copiesSoFar(piece.operation->device);
  if (!piece.copied) piece.memory.clear();  // not reused
}

// Returns nullopt for a failed device, which runs no copies.
std::optional<c10::Event> Staging::copiesSoFar(c10::Device device) {
  try {
    const Streams& streams = streamsOf(device);
    const c10::Event in = recorded(streams.in);
    in.block(streams.back);
    return recorded(streams.back);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void Staging::failPiece(Piece& piece, std::exception_ptr error) {
  piece.stage = Stage::kCopyingBack;
  failOperation(*piece.operation, std::move(error));
}

void Staging::failOperation(StagingOperation& operation, std::exception_ptr error) {
  settle(operation);
  if (std::exchange(operation.failed, true)) return;
  operation.work->complete(std::move(error));
}

void Staging::settle(StagingOperation& operation) {
  if (std::exchange(operation.settled, true)) return;
  if (operation.order != StagingOperation::Order::kCollective) return;
  std::lock_guard lock(wake_->mutex);
  ++collectives_started_;
  started_.notify_all();
}

const Staging::Streams& Staging::streamsOf(c10::Device device) {
  const auto found = streams_.find(device);
  if (found != streams_.end()) return found->second;
  const c10::impl::VirtualGuardImpl guard(device.type());
  const Streams streams{guard.getStreamFromGlobalPool(device),
                        guard.getStreamFromGlobalPool(device)};
  return streams_.emplace(device, streams).first->second;
}

}  // namespace topoopt
