#include "backend/profiled_call.h"

#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <tuple>
#include <utility>

namespace topoopt {
namespace {

// Names of NCCL's backend, which trace tools look for.
const char* nameOf(c10d::OpType type) {
  switch (type) {
    case c10d::OpType::ALLREDUCE:
      return "allreduce";
    case c10d::OpType::ALLREDUCE_COALESCED:
      return "allreduce_coalesced";
    case c10d::OpType::ALLGATHER:
      return "all_gather";
    case c10d::OpType::_ALLGATHER_BASE:
      return "_allgather_base";
    case c10d::OpType::ALLGATHER_COALESCED:
      return "all_gather_into_tensor_coalesced";
    case c10d::OpType::REDUCE_SCATTER:
      return "reduce_scatter";
    case c10d::OpType::_REDUCE_SCATTER_BASE:
      return "_reduce_scatter_base";
    case c10d::OpType::COALESCED:
      return "reduce_scatter_tensor_coalesced";
    case c10d::OpType::ALLTOALL:
    case c10d::OpType::ALLTOALL_BASE:
      return "all_to_all";
    case c10d::OpType::BROADCAST:
      return "broadcast";
    case c10d::OpType::REDUCE:
      return "reduce";
    case c10d::OpType::GATHER:
      return "gather";
    case c10d::OpType::SCATTER:
      return "scatter";
    case c10d::OpType::SEND:
      return "send";
    case c10d::OpType::RECV:
      return "recv";
    case c10d::OpType::RECVANYSOURCE:
      return "recvAnysource";
    case c10d::OpType::BARRIER:
      return "barrier";
    default:
      return "other";
  }
}

bool isMessage(c10d::OpType type) {
  return type == c10d::OpType::SEND || type == c10d::OpType::RECV ||
         type == c10d::OpType::RECVANYSOURCE;
}

int64_t elementsOf(const std::vector<at::Tensor>& tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return elements;
}

at::ScalarType typeOf(const std::vector<at::Tensor>& inputs,
                      const std::vector<at::Tensor>& outputs) {
  for (const auto* tensors : {&inputs, &outputs}) {
    if (!tensors->empty()) return tensors->front().scalar_type();
  }
  return at::kByte;  // for a barrier
}

// Returns the first member and the constant distance between members: -1 if it varies, 0 for one
// member. PyTorch lists the ranks for a positive distance.
std::pair<int, int> strideOf(const std::vector<uint64_t>& ranks) {
  if (ranks.empty()) return {0, 1};
  const int first = static_cast<int>(ranks[0]);
  if (ranks.size() == 1) return {first, 0};
  const int stride = static_cast<int>(ranks[1]) - first;
  for (size_t i = 1; i < ranks.size(); ++i) {
    if (static_cast<int>(ranks[i]) - static_cast<int>(ranks[i - 1]) != stride) return {first, -1};
  }
  return {first, stride > 0 ? stride : -1};
}

template <typename Information>
void setSequence(Information& information, int64_t number, bool message) {
  if constexpr (requires { information.setSequenceInfo(number, message); }) {
    information.setSequenceInfo(number, message);  // later than the first supported torch
  }
}

}  // namespace

ProfiledCall::ProfiledCall(at::StepCallbacks&& callbacks, const ProfiledGroup& group,
                           c10d::OpType type, uint64_t number,
                           const std::vector<at::Tensor>& inputs,
                           const std::vector<at::Tensor>& outputs)
    : event_(std::move(callbacks)) {
  const auto [first, stride] = strideOf(group.ranks);
  const std::tuple<std::string, std::string> name{group.name, group.description};
  const auto sequence = std::make_tuple(static_cast<int64_t>(number), isMessage(type));
  const std::vector<int64_t> no_splits;
  auto information = std::make_shared<torch::ParamCommsDebugInfo>(
      name, group.rank, nameOf(type), elementsOf(inputs), elementsOf(outputs),
      typeOf(inputs, outputs), no_splits, no_splits, first, stride, group.size);
  setSequence(*information, static_cast<int64_t>(number), isMessage(type));
  information_.emplace(c10::DebugInfoKind::PARAM_COMMS_INFO, std::move(information));
  if (event_.needsInputs()) {
    arguments_ = {c10::IValue(inputs),
                  c10::IValue(sequence),
                  c10::IValue(name),
                  int64_t{group.rank},
                  std::string(nameOf(type)),
                  no_splits,
                  no_splits,
                  int64_t{first},
                  int64_t{stride},
                  int64_t{group.size},
                  true};
    event_.before(at::kParamCommsCallName,
                  c10::ArrayRef<const c10::IValue>(arguments_.data(), arguments_.size()));
  } else {
    event_.before(at::kParamCommsCallName);
  }
  if (event_.needsOutputs()) event_.setOutputs(std::vector<c10::IValue>{c10::IValue(outputs)});
}

}  // namespace topoopt
