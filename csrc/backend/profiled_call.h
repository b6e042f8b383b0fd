// A call of the process group as torch.profiler and torch's ExecutionTraceObserver see it: the
// event "record_param_comms" around the call, with name, sizes, type and group, as NCCL's backend
// has it. (When the operation runs is another event, "topoopt:all_reduce" for example: that of the
// work.)

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
  int rank;  // this one
  int size;
  const std::vector<uint64_t>& ranks;  // of its members in torch.distributed; empty: all
};

class ProfiledCall {
 public:
  // nullptr where nobody looks, which costs a look at a variable of the thread.
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
  // In this order: the event ends first, and reads the others then.
  std::vector<c10::IValue> arguments_;
  std::optional<c10::DebugInfoGuard> information_;
  at::RecordFunction event_;
};

}  // namespace topoopt
