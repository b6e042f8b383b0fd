// The c10d backend "topoopt": maps operations on tensors to operations of a Group.
// process_group_call.h copies the tensors to host memory and back.
//
// All tensors of a call are on one device: the CPU or an accelerator. They are dense except in
// all_reduce on the CPU. Non-contiguous tensors are copied and, if they receive data, written back.
// All ranks of a collective must use the same kind of device, because large collectives on
// accelerators are split. Messages are never split, so their ends may differ.

#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "backend/session.h"
#include "backend/staging/staging.h"
#include "backend/work/work.h"
#include "collectives/group/group.h"

namespace topoopt {

class ProcessGroupTopoopt final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  struct Options final : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout) : Backend::Options("topoopt", timeout) {}
  };

  // Makes the group of the given members (ranks of this group), each of which calls it.
  using Splitter = std::function<c10::intrusive_ptr<c10d::Backend>(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options)>;

  // `store` is the group's part of torch.distributed's store. `in_place`: do not copy device
  // tensors in memory that the host can access.
  ProcessGroupTopoopt(std::shared_ptr<Session> session, GroupConfig config,
                      c10::intrusive_ptr<Options> options, c10::intrusive_ptr<c10d::Store> store,
                      Splitter splitter, bool in_place);
  ~ProcessGroupTopoopt() override;

  const std::string getBackendName() const override { return "topoopt"; }
  // Returns a copy, because a caller that splits a group changes it.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}  // every group starts at 0
  uint64_t getSequenceNumberForGroup() override { return group_->sequenceNumber(); }
  c10d::ErrorType getError() override;
  void enableCollectivesTiming() override {}
  void eagerConnectSingleDevice(at::Device) override {}  // links already exist
  bool supportsSplitting() const override { return true; }
  // Allocation of tensors that operations use in place (host_tensors.h), an option of DDP and
  // FSDP2.
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  at::Tensor allocateTensor(long elements, at::TensorOptions options) override;
  // Returns nullptr on a rank outside of `ranks`.
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  // Fails pending operations on all ranks. The session's last group then ends it without waiting,
  // so the ranks may start a new, smaller group.
  void abort() override;
  void shutdown() override;
  const std::string& groupName() const { return group_->name(); }
  std::vector<RingCounters> ringCounters() const { return group_->counters(); }
  bool isShutDown() const { return shut_down_; }
  // Bytes of device tensors by memory kind, or by the reason for a copy.
  std::map<std::string, InPlace::Use> deviceMemory() const { return in_place_->uses(); }
  // Returns the calling thread's position in the user's script, "train.py:12"; "" if there is none.
  using PlaceOfCaller = std::function<std::string()>;
  // `companion` has the same members and ends with this group. With `place_of_caller`, members use
  // it to compare the call sites of collectives without a root. That detects equal calls in
  // different orders.
  void checkWith(c10::intrusive_ptr<ProcessGroupTopoopt> companion, PlaceOfCaller place_of_caller);

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
  // Rank 0 waits for all others through the store and notifies them. So the error names missing
  // ranks, and the group stays usable.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // One call of an operation (process_group_call.h).
  struct CallKind;
  struct HostCall;
  class Call;

 private:
  template <typename Options>
  static CallTerms termsOf(const Options& options) {
    return {options.timeout, !options.asyncOp};
  }
  // The group in the flight recorder, or nullptr. Created at the first call, because PyTorch sets
  // the description after construction.
  RecordedGroup* recordedGroup();
  void checkRank(int64_t rank, const char* what) const;
  void checkOther(int64_t rank, const char* what) const;  // raises for this rank
  void checkNotInherited() const;
  // Raises DistBackendError on all members unless all call sites are equal.
  void checkPlaces(const CallKind& kind);
  bool isRoot(int64_t root) const { return root == getRank(); }

  // Created with the first tensors on an accelerator; else nullptr.
  std::shared_ptr<Staging> staging(bool create);
  // Before a collective of CPU tensors: keeps the order with staged ones on all ranks.
  void awaitStaged();

  // Checks for the functions below. A call of several operations checks all before adding any.
  void checkAllGather(const at::Tensor& output, const at::Tensor& input) const;
  void checkAllGather(const Tensors& outputs, const at::Tensor& input) const;
  void checkReduceScatter(const at::Tensor& output, const at::Tensor& input,
                          const c10d::ReduceOp& op) const;

  // Each adds one operation to a call.
  void addAllReduce(Call& call, const at::Tensor& tensor, c10d::ReduceOp op);
  void addAllGather(Call& call, const at::Tensor& output, const at::Tensor& input);
  void addAllGather(Call& call, const Tensors& outputs, const at::Tensor& input);
  void stageAllGather(Call& call, at::TensorList outputs, const at::Tensor& input,
                      std::vector<size_t> sizes);
  void addReduceScatter(Call& call, const at::Tensor& output, const at::Tensor& input,
                        c10d::ReduceOp op);
  void addExchange(Call& call, CallName name, const Tensors& from, std::vector<size_t> send_bytes,
                   const Tensors& to, std::vector<size_t> receive_bytes);
  void addRooted(Call& call, CallName name, const Tensors& from, const Tensors& to, int root);

  // Each starts an operation on contiguous host tensors.
  void startAllReduce(const HostCall& call, const at::Tensor& data, const c10d::ReduceOp& op);
  void startReduce(const HostCall& call, const at::Tensor& data, int root,
                   const c10d::ReduceOp& op);
  void startReduceScatter(const HostCall& call, const at::Tensor& output, const at::Tensor& input,
                          std::vector<size_t> counts, const c10d::ReduceOp& op);
  void startAllGather(const HostCall& call, const at::Tensor& output, const at::Tensor& input,
                      std::vector<size_t> bytes);

  WorkPtr sparseAllReduce(Tensors& tensors, const c10d::AllreduceOptions& options);
  std::vector<int64_t> shareSparseSizes(const at::Tensor& tensor, std::chrono::milliseconds limit);

  void awaitMembers(c10d::Store& store, const std::string& prefix, std::chrono::milliseconds limit,
                    bool wait_all_ranks) const;
  void awaitVerdict(c10d::Store& store, const std::string& prefix,
                    std::chrono::milliseconds limit) const;

  const std::shared_ptr<Session> session_;
  const std::shared_ptr<Group> group_;
  std::atomic<int64_t> timeout_ms_;
  const c10::intrusive_ptr<Options> options_;
  const Splitter splitter_;
  std::atomic<bool> shut_down_{false};
  std::atomic<bool> left_session_{false};
  c10::intrusive_ptr<ProcessGroupTopoopt> companion_;  // set before first use
  PlaceOfCaller place_of_caller_;                      // set before first use
  std::mutex store_mutex_;
  c10::intrusive_ptr<c10d::Store> store_;  // until shutdown, because it may own a server's port
  uint64_t monitored_barriers_ = 0;
  std::once_flag recorded_once_;
  std::shared_ptr<RecordedGroup> recorded_;  // set once, by recordedGroup()
  const bool in_place_allowed_;
  const std::shared_ptr<InPlace> in_place_;
  std::mutex staging_mutex_;
  std::shared_ptr<Staging> staging_;  // guarded by staging_mutex_
};

}  // namespace topoopt
