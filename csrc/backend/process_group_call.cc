#include "backend/process_group_call.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "backend/graph_recording.h"

namespace topoopt {
namespace {

using Tensors = ProcessGroupTopoopt::Tensors;

// Calls `done` after `count` operations, with the first error if any.
Done joint(size_t count, Done done) {
  if (count == 1) return done;
  struct State {
    std::mutex mutex;
    size_t left;
    std::exception_ptr error;
    Done done;
  };
  auto state = std::make_shared<State>();
  state->left = count;
  state->done = std::move(done);
  return [state](std::exception_ptr error) {
    {
      std::lock_guard lock(state->mutex);
      if (error && !state->error) state->error = error;
      if (--state->left > 0) return;
    }
    state->done(state->error);
  };
}

// Returns the common accelerator of the tensors; nullopt if all are on the CPU.
std::optional<c10::Device> deviceOf(const char* what, const Tensors& inputs,
                                    const Tensors& outputs) {
  std::optional<c10::Device> device;
  for (const Tensors* list : {&inputs, &outputs}) {
    for (const at::Tensor& tensor : *list) {
      if (!device) device = tensor.device();
      TORCH_CHECK_VALUE(tensor.device() == *device, "topoopt: ", what,
                        " takes tensors on one device, got ", *device, " and ", tensor.device());
      TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "topoopt: ", what,
                        " takes dense tensors, got layout ", tensor.layout());
    }
  }
  if (!device || device->is_cpu()) return std::nullopt;
  TORCH_CHECK_VALUE(at::accelerator::isAccelerator(device->type()), "topoopt: ", what,
                    " takes tensors on the CPU or an accelerator, got one on ", *device);
  return device;
}

int64_t total(at::TensorList tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return elements;
}

bool coalesced(c10d::OpType type) {
  return type == c10d::OpType::ALLREDUCE_COALESCED || type == c10d::OpType::ALLGATHER_COALESCED ||
         type == c10d::OpType::COALESCED;
}

// The name in PyTorch's analyzer from torch 2.11 on.
const char* recordedName(const ProcessGroupTopoopt::CallKind& kind) {
  switch (kind.type) {
    case c10d::OpType::ALLREDUCE:
      return "all_reduce";  // also for sparse tensors
    case c10d::OpType::ALLREDUCE_COALESCED:
      return "allreduce_coalesced";
    case c10d::OpType::_ALLGATHER_BASE:
      return "_all_gather_base";
    case c10d::OpType::ALLGATHER_COALESCED:
      return "ALLGATHER_coalesced";
    case c10d::OpType::RECVANYSOURCE:
      return "recv";
    case c10d::OpType::BARRIER:
      return "all_reduce_barrier";
    default:
      return kind.title + sizeof "topoopt:" - 1;
  }
}

// Returns their bytes. Without `each`, several tensors are parts of one: equal ones are recorded
// with an additional dimension, others as one flat tensor.
size_t recordTensors(const Tensors& tensors, bool each, RecordedTensors& to) {
  size_t bytes = 0;
  to.clear();
  for (const at::Tensor& tensor : tensors) {
    // Works for sparse tensors, too.
    bytes += static_cast<size_t>(tensor.numel()) * tensor.element_size();
    if (each || tensors.size() == 1) {
      to.add(toString(tensor.scalar_type()), tensor.sizes().data(), tensor.sizes().size());
    }
  }
  if (each || tensors.size() <= 1) return bytes;
  std::vector<int64_t> sizes{static_cast<int64_t>(tensors.size())};
  const at::IntArrayRef first = tensors[0].sizes();
  sizes.insert(sizes.end(), first.begin(), first.end());
  for (const at::Tensor& tensor : tensors) {
    if (tensor.sizes() != first) sizes = {total(tensors)};
  }
  to.add(toString(tensors[0].scalar_type()), sizes.data(), sizes.size());
  return bytes;
}

// A graph would repeat the copies but not the operation between them.
void checkRecordsNoGraph(const char* name, c10::Device device) {
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  TORCH_CHECK(!recordsGraph(stream), "topoopt: ", name, ": the stream of ", device,
              " is recording a graph, and operations go through the host; call it outside of the "
              "capture");
}

}  // namespace

ProcessGroupTopoopt::HostCall::HostCall(ProcessGroupTopoopt& group, const CallKind& kind,
                                        const Tensors& inputs, const Tensors& outputs,
                                        const CallTerms& terms, size_t operations)
    : work(c10::make_intrusive<TopooptWork>(group.session_->pool(), group.getRank(), kind.type,
                                            kind.title, inputs, outputs,
                                            group.group_->sequenceNumber())),
      done(joint(operations,
                 [work = work](std::exception_ptr error) mutable {
                   TopooptWork::completeAndRelease(std::move(work), std::move(error));
                 })),
      terms(terms) {}

ProcessGroupTopoopt::Call::Call(ProcessGroupTopoopt& group, const CallKind& kind,
                                const Tensors& inputs, const Tensors& outputs,
                                const CallTerms& terms, size_t operations)
    : Call(group, kind, deviceOf(kind.name, inputs, outputs), inputs, outputs, terms, operations) {}

ProcessGroupTopoopt::Call::Call(ProcessGroupTopoopt& group, const CallKind& kind,
                                std::optional<c10::Device> device, const Tensors& inputs,
                                const Tensors& outputs, const CallTerms& terms, size_t operations)
    : group_(group), kind_(kind), device_(device), terms_(terms) {
  group.checkNotInherited();
  if (kind.title != nullptr) group.checkPlaces(kind);  // otherwise part of another call
  if (terms.limit == c10d::kUnsetTimeout) {
    terms_.limit = std::chrono::milliseconds(group.timeout_ms_.load());
  }
  if (device_) {
    checkRecordsNoGraph(kind.name, *device_);
    terms_.synchronous = false;  // pieces start on another thread
    work_ = c10::make_intrusive<StagingWork>(*device_, group.session_->pool(), group.getRank(),
                                             kind.type, kind.title, inputs, outputs,
                                             group.group_->sequenceNumber());
  } else {
    if (kind.order == StagingOperation::Order::kCollective) group.awaitStaged();
    work_ = host_call_.emplace(group, kind, inputs, outputs, terms_, operations).work;
  }
  if (group.recordedGroup() != nullptr) record(inputs, outputs);
  if (kind.title == nullptr) return;  // part of another call
  const auto shown = [&group] {
    return ProfiledGroup{group.getGroupUid(), group.getGroupDesc(), group.getRank(),
                         group.getSize(), group.options_->global_ranks_in_group};
  };
  const uint64_t number = number_ > 0 ? number_ : group.group_->sequenceNumber();
  profiled_ = ProfiledCall::of(shown, kind.type, number, inputs, outputs);
}

// A call refused before its start does not count: other members may not have made it.
ProcessGroupTopoopt::Call::~Call() {
  if (started_ || group_.recorded_ == nullptr) return;
  group_.session_->supervisor()->recorder()->drop(record_);
  group_.recorded_->giveBack(kind_.order == StagingOperation::Order::kMessage, number_);
}

void ProcessGroupTopoopt::Call::record(const Tensors& inputs, const Tensors& outputs) {
  const auto& supervisor = group_.session_->supervisor();
  RecordedGroup& group = *group_.recorded_;
  record_ = supervisor->recorder()->record([&](RecordedOperation& operation) {
    const bool message = kind_.order == StagingOperation::Order::kMessage;
    const bool sends = kind_.type == c10d::OpType::SEND;
    number_ = message ? group.nextMessage() : group.nextCollective();
    if (operation.group != group_.recorded_) operation.group = group_.recorded_;
    operation.name = recordedName(kind_);
    operation.message = message;
    operation.collective = message ? group.collectives() : number_;
    operation.number = message ? number_ : 0;
    operation.root = message ? -1 : kind_.peer;
    operation.limit_ms = terms_.limit.count();
    operation.in_flow = 0;
    if (message) {
      operation.sender = sends ? group_.getRank() : kind_.peer;
      operation.receiver = sends ? kind_.peer : group_.getRank();
      operation.tag = kind_.tag;
      if (kind_.peer >= 0) operation.in_flow = group.nextInFlow(sends, kind_.peer, kind_.tag);
    }
    const bool several = coalesced(kind_.type);
    operation.in_place = &inputs == &outputs && !message;
    static const Tensors none;
    const Tensors& read = message && !sends ? none : inputs;
    operation.bytes = recordTensors(read, several, operation.inputs);
    if (operation.in_place) return;
    const size_t out = recordTensors(sends ? none : outputs, several, operation.outputs);
    operation.bytes = std::max<uint64_t>(operation.bytes, out);
  });
  work_->recorded(supervisor, record_);
}

at::Tensor ProcessGroupTopoopt::Call::flat(const at::Tensor& tensor) const {
  return device_ ? tensor.view({tensor.numel()}) : tensor;
}

// `copy` will be written to `tensor` at the end of the call.
at::Tensor ProcessGroupTopoopt::Call::returned(const at::Tensor& tensor, const at::Tensor& copy) {
  if (device_) {
    copies_back_.emplace_back(tensor, copy);
  } else {
    host_call_->finish([tensor, copy] { tensor.copy_(copy); });
  }
  return flat(copy);
}

at::Tensor ProcessGroupTopoopt::Call::read(const at::Tensor& tensor) {
  const at::Tensor data = tensor.contiguous();
  if (!device_ && !data.is_same(tensor)) work_->keep(data);
  return flat(data);
}

at::Tensor ProcessGroupTopoopt::Call::write(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return flat(tensor);
  return returned(tensor, at::empty(tensor.sizes(), tensor.options()));
}

at::Tensor ProcessGroupTopoopt::Call::update(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return flat(tensor);
  return returned(tensor, tensor.contiguous());
}

// hostTensor() joins several host tensors, contiguous or not.
Tensors ProcessGroupTopoopt::Call::readAll(const Tensors& tensors) {
  Tensors made = tensors;
  if (device_ || made.size() == 1) {
    for (at::Tensor& tensor : made) tensor = read(tensor);
  }
  return made;
}

Tensors ProcessGroupTopoopt::Call::writeAll(const Tensors& tensors) {
  Tensors made = tensors;
  if (device_ || made.size() == 1) {
    for (at::Tensor& tensor : made) tensor = write(tensor);
  }
  return made;
}

at::Tensor ProcessGroupTopoopt::Call::premultiplied(const at::Tensor& tensor,
                                                    c10d::ReduceOp& op) const {
  if (!device_) return tensor;
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) {
    const auto* supplement =
        static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
    if (supplement != nullptr && supplement->tensor_factor.defined() &&
        !supplement->tensor_factor.is_cpu()) {
      TORCH_CHECK_TYPE(tensor.is_floating_point(), "ReduceOp.PREMUL_SUM needs floats, not ",
                       tensor.scalar_type());
      op = c10d::ReduceOp::SUM;
      return tensor.mul(supplement->tensor_factor.to(tensor.options(), /*non_blocking=*/true));
    }
  }
  // The check needs any tensor of the type.
  const at::Tensor like = at::empty({0}, at::TensorOptions().dtype(tensor.scalar_type()));
  reductionOf(asReal(like, op), op, group_.getSize());
  return tensor;
}

at::Tensor ProcessGroupTopoopt::Call::hostTensor(const TensorSide& side) {
  if (side.reads.size() <= 1 && side.writes.size() <= 1) {
    const at::TensorList one = side.reads.empty() ? side.writes : side.reads;
    return one.empty() ? at::Tensor() : one[0];
  }
  if (!side.reads.empty()) {
    const at::Tensor flat = flatten(side.reads);
    work_->keep(flat);
    return flat;
  }
  const at::Tensor flat = flatLike(side.writes[0], total(side.writes));
  host_call_->finish([flat, to = side.writes.vec()] { unflatten(flat, to); });
  return flat;
}

// Returns the slice of each block of each tensor in order; all elements without a slice.
ProcessGroupTopoopt::Call::Parts ProcessGroupTopoopt::Call::partsOf(
    at::TensorList flats, int64_t blocks, const std::optional<Slice>& slice) {
  Parts parts;
  int64_t offset = 0;
  for (const at::Tensor& flat : flats) {
    for (int64_t block = 0; block < (slice ? blocks : 1); ++block) {
      const at::Tensor part =
          slice ? flat.narrow(0, block * (flat.numel() / blocks) + slice->first, slice->count)
                : flat;
      parts.push_back({part, offset});
      offset += part.numel();
    }
  }
  return parts;
}

StagingBuffer ProcessGroupTopoopt::Call::bufferOf(const TensorSide& side,
                                                  const std::optional<Slice>& slice) const {
  const at::TensorList like = side.reads.empty() ? side.writes : side.reads;
  if (like.empty()) return {};
  const int64_t elements =
      slice ? slice->count * side.blocks * static_cast<int64_t>(like.size()) : total(like);
  StagingBuffer buffer{like[0].scalar_type(), elements, partsOf(side.reads, side.blocks, slice),
                       partsOf(side.writes, side.blocks, slice)};
  if (!side.own) return buffer;
  const int64_t rank = group_.getRank();
  if (slice) {
    buffer.reads.push_back({side.own->narrow(0, slice->first, slice->count), rank * slice->count});
  } else {
    const int64_t before = side.writes.size() == 1
                               ? rank * (side.writes[0].numel() / side.blocks)
                               : total(side.writes.slice(0, static_cast<size_t>(rank)));
    buffer.reads.push_back({*side.own, before});
  }
  return buffer;
}

// Returns equal pieces with host tensors of at most `piece_bytes`; a single piece has no slice.
std::vector<std::optional<ProcessGroupTopoopt::Call::Slice>> ProcessGroupTopoopt::Call::cutInPieces(
    std::initializer_list<TensorSide> sides, size_t piece_bytes) {
  int64_t elements = 0;
  size_t bytes = 0;
  for (const auto& side : sides) {
    const at::TensorList like = side.reads.empty() ? side.writes : side.reads;
    elements = like[0].numel() / side.blocks;
    bytes = std::max(bytes, static_cast<size_t>(total(like)) * like[0].element_size());
  }
  const auto wanted = static_cast<int64_t>((bytes + piece_bytes - 1) / piece_bytes);
  const int64_t count = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(elements, 1));
  if (count == 1) return {std::nullopt};
  std::vector<std::optional<Slice>> slices;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = elements * i / count;
    slices.push_back(Slice{first, elements * (i + 1) / count - first});
  }
  return slices;
}

void ProcessGroupTopoopt::Call::stage(Cutting cut, std::initializer_list<TensorSide> sides,
                                      const StagingPiece::Start& start) {
  const bool whole = cut == Cutting::kWhole || sides.size() == 0;
  const size_t landing_bytes = group_.group_->landingBytes();
  const size_t piece_bytes = landing_bytes > 0 ? landing_bytes : kStagingPieceBytes;
  const bool lands = cut == Cutting::kLanding && landing_bytes > 0;
  for (const auto& slice :
       whole ? std::vector<std::optional<Slice>>(1) : cutInPieces(sides, piece_bytes)) {
    std::vector<StagingBuffer> buffers;
    for (const TensorSide& side : sides) buffers.push_back(bufferOf(side, slice));
    pieces_.push_back({std::move(buffers), start, lands});
  }
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::Call::submit(bool awaits_device) {
  started_ = true;
  if (device_) {
    auto operation = std::make_shared<StagingOperation>(*device_, kind_.order);
    operation->awaits_device = awaits_device;
    operation->pieces = std::move(pieces_);
    operation->copies_back = std::move(copies_back_);
    operation->work =
        c10::intrusive_ptr<StagingWork>::reclaim_copy(static_cast<StagingWork*>(work_.get()));
    group_.staging(true)->submit(std::move(operation));
  } else if (terms_.synchronous && kind_.order == StagingOperation::Order::kCollective &&
             work_->succeeded() && !c10d::allow_inflight_collective_as_graph_input()) {
    return nullptr;  // as PyTorch does for completed calls without an object to wait for
  }
  return work_;
}

}  // namespace topoopt
