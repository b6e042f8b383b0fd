// The backend "topoopt" for tensors on any device: those on the CPU go to ProcessGroupTopoopt,
// those on an accelerator are staged through host memory.
//
// All tensors of a call are on one device. Large collectives are cut into pieces of a size that
// depends only on what all ranks know, so the ranks of a group call with tensors of the same kind
// of device. Messages are never cut: sender and receiver may differ in that.

#pragma once

#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "backend/process_group.h"
#include "backend/staging.h"
#include "backend/staging_call.h"

namespace topoopt {

class StagingProcessGroup final : public ProcessGroupTopoopt {
 public:
  using ProcessGroupTopoopt::ProcessGroupTopoopt;
  ~StagingProcessGroup() override;

  void shutdown() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int target, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  using Order = StagingOperation::Order;

  // The accelerator that all the tensors are on, or nothing if they are all on the CPU.
  static std::optional<c10::Device> deviceOf(const char* what,
                                             std::initializer_list<const Tensors*> lists);
  // Before a collective of CPU tensors: those staged earlier come first on all ranks.
  void afterStaged();
  std::shared_ptr<Staging> staging(bool create);
  StagingCall begin(c10::Device device, c10d::OpType type, const char* title, const Tensors& inputs,
                    const Tensors& outputs, Order order = Order::kCollective);
  WorkPtr submit(StagingCall& call);

  void addAllReduce(StagingCall& call, const at::Tensor& tensor, c10d::AllreduceOptions options);
  void addAllGather(StagingCall& call, const at::Tensor& output, const at::Tensor& input,
                    c10d::AllgatherOptions options);
  void addAllGather(StagingCall& call, const Tensors& outputs, const at::Tensor& input,
                    c10d::AllgatherOptions options);
  void addReduceScatter(StagingCall& call, const at::Tensor& output, const at::Tensor& input,
                        c10d::ReduceScatterOptions options);
  void addExchange(StagingCall& call, const char* name, const Tensors& from,
                   const std::vector<size_t>& send_bytes, const Tensors& to,
                   const std::vector<size_t>& receive_bytes, c10d::AllToAllOptions options);

  std::mutex mutex_;
  std::shared_ptr<Staging> staging_;  // guarded by mutex_; made when needed
};

}  // namespace topoopt
