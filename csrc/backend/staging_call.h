// One call with device tensors: from its tensors to the pieces of a StagingOperation.
//
// What a call does on the device goes to the caller's current stream, before the operation is
// submitted.

#pragma once

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
#include <vector>

#include "backend/staging.h"
#include "backend/staging_work.h"

namespace topoopt {

class StagingCall {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Parts = std::vector<StagingBuffer::Part>;

  StagingCall(c10::Device device, StagingOperation::Order order,
              c10::intrusive_ptr<StagingWork> work)
      : device_(device), order_(order), work_(std::move(work)) {}

  // A contiguous 1-d tensor on the device: with the elements of `tensor`, ...
  at::Tensor read(const at::Tensor& tensor);
  // ... whose elements will be those of `tensor` when the operation is over, ...
  at::Tensor write(const at::Tensor& tensor);
  // ... or both.
  at::Tensor update(const at::Tensor& tensor);
  Tensors readAll(const Tensors& tensors);
  Tensors writeAll(const Tensors& tensors);

  void add(std::vector<StagingBuffer> buffers, StagingPiece::Start start);

  const c10::intrusive_ptr<StagingWork>& work() const { return work_; }

  // With `awaits_device`, the operation starts only when the caller's stream has done what it has
  // been given so far, even if it reads nothing.
  c10::intrusive_ptr<c10d::Work> submitTo(Staging& staging, bool awaits_device = false);

 private:
  at::Tensor spread(const at::Tensor& tensor, at::Tensor flat);

  const at::AutoDispatchBelowADInplaceOrView below_autograd_;
  const c10::Device device_;
  const StagingOperation::Order order_;
  const c10::intrusive_ptr<StagingWork> work_;
  std::vector<StagingPiece> pieces_;
  std::vector<std::pair<at::Tensor, at::Tensor>> spreads_;
};

// Cuts `elements` into equal pieces, such that none takes more than kStagingPieceBytes of `bytes`.
void forEachPiece(int64_t elements, size_t bytes,
                  const std::function<void(int64_t first, int64_t count)>& function);

StagingBuffer bufferFor(const at::Tensor& flat, StagingCall::Parts reads,
                        StagingCall::Parts writes);

// All of the tensors, one after the other, for reading or for writing.
StagingBuffer bufferToRead(const StagingCall::Tensors& flats);
StagingBuffer bufferToWrite(const StagingCall::Tensors& flats);

// The same range of each of `blocks` equal blocks of `flat`, one after the other.
StagingCall::Parts partsOfBlocks(const at::Tensor& flat, int blocks, int64_t first, int64_t count);
// The same range of each of the tensors, one after the other.
StagingCall::Parts partsOf(const StagingCall::Tensors& flats, int64_t first, int64_t count);

std::vector<int64_t> numels(const StagingCall::Tensors& tensors);
bool sameNumels(const StagingCall::Tensors& tensors);

// Raises TypeError if `op` is not defined for the elements of `flat`. A factor that lies on the
// device is multiplied there, in the order of the caller's stream: then the result is another
// tensor, and `op` a plain sum.
at::Tensor premultiplied(const at::Tensor& flat, c10d::ReduceOp& op);

}  // namespace topoopt
