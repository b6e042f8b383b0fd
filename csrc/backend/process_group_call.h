// One call of the process group: from its tensors to operations on contiguous host memory.
//
// Tensors on the CPU are used where they are, and an operation starts when it is added. Those on an
// accelerator are staged through host memory (staging.h): an operation that is long is cut into
// pieces, each of which is copied to the host, runs there and is copied back. What a call does on
// the device goes to the caller's current stream, before the call is submitted.

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
  int peer = -1;          // the root, or the other end of a message; -1: none, or any
  int tag = 0;
  StagingOperation::Order order = StagingOperation::Order::kCollective;
};

// Operations on host memory that complete one work when all of them are over, and the callback of
// each of them.
struct ProcessGroupTopoopt::HostCall {
  HostCall(ProcessGroupTopoopt& group, const CallKind& kind, const Tensors& inputs,
           const Tensors& outputs, const CallTerms& terms, size_t operations);

  // Before the operation is started: results are not final before the finisher has run.
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
  // A collective of large tensors is cut into pieces of a size that depends only on what all ranks
  // know. kLanding: they may begin before their data is all there. kWhole: ranks know only the
  // sizes of their own blocks, or blocks differ.
  enum class Cutting { kLanding, kPieces, kWhole };
  // Of a reduction: its input may have to be multiplied first.
  static Cutting cutOf(const c10d::ReduceOp& op) {
    return op.op_ == c10d::ReduceOp::PREMUL_SUM ? Cutting::kPieces : Cutting::kLanding;
  }

  // One tensor in host memory: what is read to it, tensor after tensor, and written back from it.
  // To be cut, all have equal sizes; or there is one, of `blocks` equal blocks. What is cut is each
  // of them.
  struct TensorSide {
    at::TensorList reads;
    at::TensorList writes;
    int64_t blocks = 1;
    // Of a staged call: read to the place of this rank's block among those that are written.
    std::optional<at::Tensor> own{};
  };

  // All tensors are on one device. `asked` without a limit means the group's. `operations` will be
  // added to the call. Raises ValueError naming `kind.name`.
  Call(ProcessGroupTopoopt& group, const CallKind& kind, const Tensors& inputs,
       const Tensors& outputs, const CallTerms& asked, size_t operations = 1);
  // On the given accelerator, or nothing for the CPU.
  Call(ProcessGroupTopoopt& group, const CallKind& kind, std::optional<c10::Device> device,
       const Tensors& inputs, const Tensors& outputs, const CallTerms& asked, size_t operations);
  ~Call();

  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // A contiguous tensor with the elements of `tensor`, ...
  at::Tensor read(const at::Tensor& tensor);
  // ... whose elements will be those of `tensor` when the call is over, ...
  at::Tensor write(const at::Tensor& tensor);
  // ... or both.
  at::Tensor update(const at::Tensor& tensor);
  Tensors readAll(const Tensors& tensors);
  Tensors writeAll(const Tensors& tensors);

  // Raises TypeError if `op` is not defined for the elements of `tensor`. A factor that lies on the
  // device is multiplied there, in the order of the caller's stream: then the result is another
  // tensor, and `op` a plain sum.
  at::Tensor premultiplied(const at::Tensor& tensor, c10d::ReduceOp& op) const;

  // Adds an operation: start(HostCall, at::TensorList with a host tensor per side).
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
  HostCall& hostCall() { return *host_call_; }  // of a call that is not staged
  TopooptWork& work() { return *work_; }

  // With `awaits_device`, a staged operation starts only when the caller's stream has done what it
  // has been given so far, even if it reads nothing.
  WorkPtr submit(bool awaits_device = false);

 private:
  void record(const Tensors& inputs, const Tensors& outputs);
  struct Slice {  // elements of every block
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
  // In the flight recorder, if the group is recorded.
  uint64_t record_ = 0;
  uint64_t number_ = 0;
  std::unique_ptr<ProfiledCall> profiled_;
  // Staged.
  std::vector<StagingPiece> pieces_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_back_;
};

}  // namespace topoopt
