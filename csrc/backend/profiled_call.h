// Reports calls of the process group to torch.profiler and torch's ExecutionTraceObserver. The
// event "record_param_comms" encloses the call, with name, sizes, type and group, as in NCCL's
// backend. The running operation is a separate event, such as "topoopt:all_reduce", of the work.

#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace topoopt {

struct ProfiledGroup {
  std::string name;
  std::string description;
  int rank;  // this rank
  int size;
  const std::vector<uint64_t>& ranks;  // members in torch.distributed; empty: all
};

class ProfiledCall {
 public:
  // nullptr without an observer, at the cost of reading a thread-local variable.
  template <typename MakeGroup>
  static std::unique_ptr<ProfiledCall> of(const MakeGroup& group, c10d::OpType type,
                                          uint64_t number, const std::vector<at::Tensor>& inputs,
                                          const std::vector<at::Tensor>& outputs) {
    auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
    if (!callbacks) return nullptr;
    return std::make_unique<ProfiledCall>(std::move(*callbacks), group(), type, number, inputs,
                                          outputs);
  }

  ProfiledCall(at::StepCallbacks&& callbacks, const ProfiledGroup& group, c10d::OpType type,
               uint64_t number, const std::vector<at::Tensor>& inputs,
               const std::vector<at::Tensor>& outputs);

 private:
  // The order matters: the event is destroyed first and then reads the others.
  std::vector<c10::IValue> arguments_;
  std::optional<c10::DebugInfoGuard> information_;
  at::RecordFunction event_;
};

}  // namespace topoopt
