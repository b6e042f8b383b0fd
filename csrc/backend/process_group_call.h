// One call of the process group: from its tensors to operations on contiguous host memory.
//
// CPU tensors are used in place, and their operations start when they are added. Tensors on an
// accelerator are staged through host memory (staging.h): long operations are split into pieces,
// each copied to the host, run there and copied back. Device work of a call is enqueued on the
// caller's current stream, before submission.

#pragma once

#include <ATen/core/LegacyTypeDispatch.h>

#include <array>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backend/process_group.h"
#include "backend/profiled_call.h"
#include "backend/staging/staging.h"
#include "backend/tensors.h"

namespace topoopt {

struct ProcessGroupTopoopt::CallKind {
  c10d::OpType type;
  const char* title;      // for the profiler
  const char* name = "";  // for messages
  int peer = -1;          // root or peer; -1: none or any
  int tag = 0;
  StagingOperation::Order order = StagingOperation::Order::kCollective;
};

// The host operations of one work, which completes after all of them, and their common callback.
struct ProcessGroupTopoopt::HostCall {
  HostCall(ProcessGroupTopoopt& group, const CallKind& kind, const Tensors& inputs,
           const Tensors& outputs, const CallTerms& terms, size_t operations);

  // Before the start: results are not final until the finisher has run.
  void finish(std::function<void()> finisher) const {
    if (terms.landing) terms.landing->holdResults();
    work->finishWith(std::move(finisher));
  }

  c10::intrusive_ptr<TopooptWork> work;
  Done done;
  CallTerms terms;
};

class ProcessGroupTopoopt::Call {
  using Parts = std::vector<StagingBuffer::Part>;

 public:
  // How a collective of large tensors is split. Piece sizes depend only on values known to all
  // ranks. kLanding: a piece may start before all of its data has landed. kWhole: not split,
  // because ranks know only their own block sizes, or blocks differ.
  enum class Cutting { kLanding, kPieces, kWhole };
  // A reduction that multiplies its input first cannot land piecewise.
  static Cutting cutOf(const c10d::ReduceOp& op) {
    return op.op_ == c10d::ReduceOp::PREMUL_SUM ? Cutting::kPieces : Cutting::kLanding;
  }

  // A host tensor: the tensors that are read into it in order, and those that it is written back
  // to. To be split, all must have equal sizes, or there is one with `blocks` equal blocks; each of
  // them is split.
  struct TensorSide {
    at::TensorList reads;
    at::TensorList writes;
    int64_t blocks = 1;
    // Staged calls: read into this rank's block of the output.
    std::optional<at::Tensor> own{};
  };

  // All tensors must be on one device. No limit in `terms` means the group's. `operations` will be
  // added. Raises ValueError with `kind.name`.
  Call(ProcessGroupTopoopt& group, const CallKind& kind, const Tensors& inputs,
       const Tensors& outputs, const CallTerms& terms, size_t operations = 1);
  // On the given accelerator, or the CPU if nullopt.
  Call(ProcessGroupTopoopt& group, const CallKind& kind, std::optional<c10::Device> device,
       const Tensors& inputs, const Tensors& outputs, const CallTerms& terms, size_t operations);
  ~Call();

  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Returns a contiguous tensor with the elements of `tensor`.
  at::Tensor read(const at::Tensor& tensor);
  // Returns a contiguous tensor that is written to `tensor` at the end of the call.
  at::Tensor write(const at::Tensor& tensor);
  // Does both.
  at::Tensor update(const at::Tensor& tensor);
  Tensors readAll(const Tensors& tensors);
  Tensors writeAll(const Tensors& tensors);

  // Raises TypeError if `op` is undefined for the elements of `tensor`. A factor on the device is
  // multiplied there, on the caller's stream. Then the result is another tensor, and `op` a plain
  // sum.
  at::Tensor premultiplied(const at::Tensor& tensor, c10d::ReduceOp& op) const;

  // Adds an operation: start(HostCall, at::TensorList with one host tensor per side).
  template <typename Start>
  void add(Cutting cut, std::initializer_list<TensorSide> sides, Start start) {
    if (device_) {
      return stage(cut, sides,
                   [group = &group_, kind = kind_, terms = terms_, start](
                       Tensors& host, const std::shared_ptr<Landing>& landing) {
                     CallTerms of_piece = terms;
                     of_piece.landing = landing;
                     const HostCall call(*group, kind, host, {}, of_piece, 1);
                     start(call, at::TensorList(host));
                     return call.work;
                   });
    }
    std::array<at::Tensor, 2> host;
    size_t count = 0;
    for (const TensorSide& side : sides) host.at(count++) = hostTensor(side);
    start(*host_call_, at::TensorList(host.data(), count));
    started_ = true;
  }

  bool staged() const { return device_.has_value(); }
  HostCall& hostCall() { return *host_call_; }  // requires an unstaged call
  TopooptWork& work() { return *work_; }

  // With `awaits_device`, a staged operation starts only after the work enqueued on the caller's
  // stream, even if it reads no tensor.
  WorkPtr submit(bool awaits_device = false);

 private:
  void record(const Tensors& inputs, const Tensors& outputs);
  struct Slice {  // element range of every block
    int64_t first;
    int64_t count;
  };

  static Parts partsOf(at::TensorList flats, int64_t blocks, const std::optional<Slice>& slice);
  static std::vector<std::optional<Slice>> cutInPieces(std::initializer_list<TensorSide> sides,
                                                       size_t piece_bytes);
  at::Tensor flat(const at::Tensor& tensor) const;
  at::Tensor returned(const at::Tensor& tensor, const at::Tensor& copy);
  at::Tensor hostTensor(const TensorSide& side);
  StagingBuffer bufferOf(const TensorSide& side, const std::optional<Slice>& slice) const;
  void stage(Cutting cut, std::initializer_list<TensorSide> sides,
             const StagingPiece::Start& start);

  const at::AutoDispatchBelowADInplaceOrView below_autograd_;
  ProcessGroupTopoopt& group_;
  const CallKind kind_;
  const std::optional<c10::Device> device_;
  CallTerms terms_;
  std::optional<HostCall> host_call_;
  c10::intrusive_ptr<TopooptWork> work_;
  bool started_ = false;
  // Id in the flight recorder, if recorded.
  uint64_t record_ = 0;
  uint64_t number_ = 0;
  std::unique_ptr<ProfiledCall> profiled_;
  // For staged calls.
  std::vector<StagingPiece> pieces_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_back_;
};

}  // namespace topoopt
