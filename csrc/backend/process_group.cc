#include "backend/process_group.h"

#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "backend/host_tensors.h"
#include "backend/process_group_call.h"
#include "backend/tensors.h"
#include "backend/without_gil.h"
#include "common/errors.h"

namespace topoopt {
namespace {

// Divides the reduced elements of `tensor`, if needed, off the reactor thread.
void addDivision(const Reduction& reduction, const at::Tensor& tensor,
                 const ProcessGroupTopoopt::HostCall& call) {
  if (reduction.divisor == 1) return;
  call.finish([type = reduction.type, divisor = reduction.divisor, tensor] {
    divideBy(type, bytesOf(tensor), static_cast<size_t>(tensor.numel()), divisor);
  });
}

// A failed group triggers a dump of the flight recorder, even on an idle rank.
GroupConfig reporting(GroupConfig config, const Session& session) {
  if (session.supervisor()) {
    config.failed = [supervisor = session.supervisor()](const std::string& why) {
      supervisor->failed(why);
    };
  }
  return config;
}

}  // namespace

ProcessGroupTopoopt::ProcessGroupTopoopt(std::shared_ptr<Session> session, GroupConfig config,
                                         c10::intrusive_ptr<Options> options,
                                         c10::intrusive_ptr<c10d::Store> store, Splitter splitter,
                                         bool in_place)
    : Backend(config.rank, static_cast<int>(config.ranks.size())),
      session_(std::move(session)),
      group_(Group::open(session_->endpoint(), reporting(std::move(config), *session_))),
      timeout_ms_(options->timeout.count()),
      options_(std::move(options)),
      splitter_(std::move(splitter)),
      store_(std::move(store)),
      in_place_allowed_(in_place),
      in_place_(std::make_shared<InPlace>(in_place, session_->registersMemory())) {
  init();
  session_->groupOpened();
}

ProcessGroupTopoopt::~ProcessGroupTopoopt() {
  try {
    shutdown();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "topoopt: the end of group %s: %s\n", group_->name().c_str(),
                 error.what());
  }
}

void ProcessGroupTopoopt::setTimeout(std::chrono::milliseconds timeout) {
  timeout_ms_ = timeout.count();
}

c10d::ErrorType ProcessGroupTopoopt::getError() {
  const std::exception_ptr error = group_->error();
  if (!error) return c10d::ErrorType::SUCCESS;
  try {
    std::rethrow_exception(error);
  } catch (const TimeoutError&) {
    return c10d::ErrorType::TIMEOUT;
  } catch (const PeerLostError&) {
    return c10d::ErrorType::REMOTE_ERROR;
  } catch (const std::exception&) {
    return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupTopoopt::checkWith(c10::intrusive_ptr<ProcessGroupTopoopt> companion,
                                    PlaceOfCaller place_of_caller) {
  companion_ = std::move(companion);
  place_of_caller_ = std::move(place_of_caller);
}

void ProcessGroupTopoopt::abort() {
  checkNotInherited();
  const WithoutGil without_gil;
  if (companion_) companion_->abort();
  const std::string why = "the process group was aborted by rank " + std::to_string(getRank());
  group_->abort(why);
  if (!left_session_.exchange(true)) session_->groupAborted(why);
}

void ProcessGroupTopoopt::shutdown() {
  if (session_->inherited()) {
    // A forked process has no thread to stop; leak the copied state.
    if (staging_) new std::shared_ptr<Staging>(staging_);
    return;
  }
  const WithoutGil without_gil;
  if (!shut_down_.exchange(true)) {
    if (companion_) companion_->shutdown();
    {
      std::lock_guard lock(store_mutex_);
      store_.reset();
    }
    group_->shutdown();
    if (!left_session_.exchange(true)) {
      session_->groupClosed(std::chrono::milliseconds(timeout_ms_.load()));
    }
  }
  if (const auto staged = staging(false)) staged->stop();
}

std::shared_ptr<Staging> ProcessGroupTopoopt::staging(bool create) {
  std::lock_guard lock(staging_mutex_);
  if (!staging_ && create) {
    staging_ = std::make_shared<Staging>([this](const std::string& why) { group_->abort(why); },
                                         [this] { return group_->error(); }, group_->landingBytes(),
                                         in_place_);
  }
  return staging_;
}

void ProcessGroupTopoopt::awaitStaged() {
  if (const auto staged = staging(false)) staged->awaitStarted();
}

bool ProcessGroupTopoopt::supportsTensorAlloc(c10::DeviceIndex device) {
  return in_place_allowed_ && device >= 0 && at::accelerator::getAccelerator().has_value();
}

at::Tensor ProcessGroupTopoopt::allocateTensor(long elements, at::TensorOptions options) {
  TORCH_CHECK_VALUE(elements >= 0, "topoopt: allocate_tensor: ", elements, " elements");
  TORCH_CHECK_VALUE(at::accelerator::isAccelerator(options.device().type()),
                    "topoopt: allocate_tensor makes tensors on an accelerator, not on ",
                    options.device());
  return allocateHostTensor(elements, options);
}

RecordedGroup* ProcessGroupTopoopt::recordedGroup() {
  const auto& supervisor = session_->supervisor();
  if (!supervisor || !supervisor->recorder()) return nullptr;
  std::call_once(recorded_once_, [&] {
    const std::vector<uint64_t>& ranks = options_->global_ranks_in_group;
    const std::string description = getGroupDesc().empty() ? "undefined" : getGroupDesc();
    recorded_ = supervisor->recorder()->addGroup(groupName(), description, ranks);
  });
  return recorded_.get();
}

void ProcessGroupTopoopt::checkRank(int64_t rank, const char* what) const {
  TORCH_CHECK_VALUE(rank >= 0 && rank < getSize(), "topoopt: ", what, ": rank ", rank,
                    " is not in 0..", getSize() - 1);
}

void ProcessGroupTopoopt::checkOther(int64_t rank, const char* what) const {
  checkRank(rank, what);
  TORCH_CHECK_VALUE(rank != getRank(), "topoopt: ", what, ": rank ", rank, " is this rank");
}

void ProcessGroupTopoopt::checkNotInherited() const {
  TORCH_CHECK(!session_->inherited(),
              "topoopt: this process was forked from a rank and cannot use its process groups; "
              "communicate in the rank itself, or start the process with the method 'spawn'");
}

// Calls with a root, and barriers, often come from different branches of a script.
void ProcessGroupTopoopt::checkPlaces(const CallKind& kind) {
  if (!place_of_caller_ || kind.order != StagingOperation::Order::kCollective || kind.peer >= 0 ||
      kind.type == c10d::OpType::BARRIER) {
    return;
  }
  constexpr int64_t kLongest = 128;
  const std::string place = place_of_caller_().substr(0, kLongest - 1);
  at::Tensor own = at::zeros({kLongest}, at::kByte);
  copyBytes(bytesOf(own), reinterpret_cast<const std::byte*>(place.data()), place.size());
  at::Tensor all = at::empty({getSize() * kLongest}, at::kByte);
  companion_->_allgather_base(all, own, {})->wait();
  const auto place_of = [&all](int rank) {
    return std::string(reinterpret_cast<const char*>(bytesOf(all)) + rank * kLongest);
  };
  for (int rank = 1; rank < getSize(); ++rank) {
    if (place_of(rank) == place_of(0)) continue;
    const auto shown = [&](int which) {
      const std::string at = place_of(which);
      return "rank " + std::to_string(options_->global_ranks_in_group[which]) + " called it " +
             (at.empty() ? "outside of the script" : "at " + at);
    };
    C10_THROW_ERROR(DistBackendError,
                    std::string("topoopt: ") + kind.name + " of group " + groupName() +
                        ": ranks call it at different places of the script: " + shown(0) + ", " +
                        shown(rank) +
                        "; if they should, set TOPOOPT_COMPARE_PLACES=0 on all ranks");
  }
}

// ---- reductions --------------------------------------------------------------------------------

void ProcessGroupTopoopt::startAllReduce(const HostCall& call, const at::Tensor& data,
                                         const c10d::ReduceOp& op) {
  const at::Tensor real = asReal(data, op);
  const Reduction reduction = reductionOf(real, op, getSize());
  if (reduction.factor) real.mul_(*reduction.factor);
  addDivision(reduction, real, call);
  group_->allReduce(bytesOf(real), real.numel(), reduction.type, reduction.op,
                    call.terms.of(elementTypeOf(data), reduction.called), call.done);
}

void ProcessGroupTopoopt::addAllReduce(Call& call, const at::Tensor& tensor, c10d::ReduceOp op) {
  const at::Tensor to = call.update(tensor);
  const at::Tensor from = call.premultiplied(to, op);
  call.add(Call::cutOf(op), {{from, to}}, [this, op](const HostCall& on, at::TensorList host) {
    startAllReduce(on, host[0], op);
  });
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::allreduce(Tensors& tensors,
                                                            const c10d::AllreduceOptions& options) {
  checkOne(tensors, "all_reduce");
  if (tensors[0].layout() == at::kSparse) return sparseAllReduce(tensors, options);
  Call call(*this, {c10d::OpType::ALLREDUCE, "topoopt:all_reduce", "all_reduce"}, tensors, tensors,
            termsOf(options));
  addAllReduce(call, tensors[0], options.reduceOp);
  return call.submit();
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK_VALUE(!tensors.empty(), "topoopt: all_reduce_coalesced: no tensors");
  Call call(
      *this,
      {c10d::OpType::ALLREDUCE_COALESCED, "topoopt:all_reduce_coalesced", "all_reduce_coalesced"},
      tensors, tensors, termsOf(options), tensors.size());
  if (!call.staged()) {  // a CPU operation starts before the next tensor is checked
    for (const at::Tensor& tensor : tensors) {
      reductionOf(asReal(tensor, options.reduceOp), options.reduceOp, getSize());
    }
  }
  for (const at::Tensor& tensor : tensors) addAllReduce(call, tensor, options.reduceOp);
  return call.submit();
}

// The root receives in `data`; the other members' `data` is unchanged.
void ProcessGroupTopoopt::startReduce(const HostCall& call, const at::Tensor& data, int root,
                                      const c10d::ReduceOp& op) {
  const at::Tensor real = asReal(data, op);
  const Reduction reduction = reductionOf(real, op, getSize());
  const at::Tensor input = reduction.factor ? real.mul(*reduction.factor) : real;
  call.work->keep(input);
  void* memory = nullptr;
  if (isRoot(root)) {
    const at::Tensor output = getSize() == 1 ? input.clone() : at::empty_like(input);
    memory = bytesOf(output);
    call.finish([real, output] { real.copy_(output); });
    addDivision(reduction, output, call);
  }
  group_->reduce(bytesOf(input), memory, input.numel(), reduction.type, reduction.op, root,
                 call.terms.of(elementTypeOf(data), reduction.called), call.done);
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::reduce(Tensors& tensors,
                                                         const c10d::ReduceOptions& options) {
  checkOne(tensors, "reduce");
  checkRank(options.rootRank, "reduce");
  const int root = static_cast<int>(options.rootRank);
  Call call(*this, {c10d::OpType::REDUCE, "topoopt:reduce", "reduce", root}, tensors, tensors,
            termsOf(options));
  c10d::ReduceOp op = options.reduceOp;
  const at::Tensor to = isRoot(root) ? call.update(tensors[0]) : call.read(tensors[0]);
  const at::Tensor from = call.premultiplied(to, op);
  call.add(Call::cutOf(op), {{from, isRoot(root) ? at::TensorList(to) : at::TensorList()}},
           [this, root, op](const HostCall& on, at::TensorList host) {
             startReduce(on, host[0], root, op);
           });
  return call.submit();
}

// The input has `counts` elements for each member.
void ProcessGroupTopoopt::startReduceScatter(const HostCall& call, const at::Tensor& output,
                                             const at::Tensor& input, std::vector<size_t> counts,
                                             const c10d::ReduceOp& op) {
  at::Tensor from = asReal(input, op);
  const at::Tensor to = asReal(output, op);
  if (input.is_complex()) {
    for (size_t& count : counts) count *= 2;
  }
  const Reduction reduction = reductionOf(from, op, getSize());
  if (reduction.factor) from = from.mul(*reduction.factor);
  // The output may lie inside the input (as in FSDP), which other members still read.
  const bool direct = !to.is_alias_of(from);
  const at::Tensor data = direct ? to : at::empty(to.sizes(), to.options());
  if (!direct) call.finish([to, data] { to.copy_(data); });
  call.work->keep(from);
  call.work->keep(data);
  if (getSize() == 1) copyBytes(bytesOf(data), bytesOf(from), from.nbytes());
  addDivision(reduction, data, call);
  group_->reduceScatter(bytesOf(from), bytesOf(data), std::move(counts), reduction.type,
                        reduction.op, call.terms.of(elementTypeOf(input), reduction.called),
                        call.done);
}

void ProcessGroupTopoopt::checkReduceScatter(const at::Tensor& output, const at::Tensor& input,
                                             const c10d::ReduceOp& op) const {
  checkSameType(output, input, "reduce_scatter");
  TORCH_CHECK_VALUE(input.numel() == output.numel() * getSize(),
                    "topoopt: reduce_scatter_tensor: the input has ", input.numel(),
                    " elements, not the output's ", output.numel(), " times ", getSize(), " ranks");
  if (input.device().is_cpu()) reductionOf(asReal(input, op), op, getSize());
}

void ProcessGroupTopoopt::addReduceScatter(Call& call, const at::Tensor& output,
                                           const at::Tensor& input, c10d::ReduceOp op) {
  const at::Tensor from = call.premultiplied(call.read(input), op);
  const at::Tensor to = call.write(output);
  call.add(Call::cutOf(op), {{from, {}, getSize()}, {{}, to}},
           [this, op](const HostCall& on, at::TensorList host) {
             const auto count = static_cast<size_t>(host[1].numel());
             startReduceScatter(on, host[1], host[0], std::vector<size_t>(getSize(), count), op);
           });
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  checkOne(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1 && static_cast<int>(inputs[0].size()) == getSize(),
                    "topoopt: reduce_scatter takes one input tensor per rank");
  for (const at::Tensor& input : inputs[0]) checkSameType(outputs[0], input, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs[0][getRank()].numel() == outputs[0].numel(),
                    "topoopt: reduce_scatter: the output has ", outputs[0].numel(),
                    " elements, input ", getRank(), " has ", inputs[0][getRank()].numel());
  Call call(*this, {c10d::OpType::REDUCE_SCATTER, "topoopt:reduce_scatter", "reduce_scatter"},
            inputs[0], outputs, termsOf(options));
  Tensors from = call.readAll(inputs[0]);
  c10d::ReduceOp op = options.reduceOp;
  for (at::Tensor& tensor : from) {
    op = options.reduceOp;
    tensor = call.premultiplied(tensor, op);
  }
  const at::Tensor to = call.write(outputs[0]);
  const bool even = sameSizes(inputs[0]);
  call.add(even ? Call::cutOf(op) : Call::Cutting::kWhole, {{from, {}}, {{}, to}},
           [this, op, sizes = even ? std::vector<size_t>() : sizesInElements(inputs[0])](
               const HostCall& on, at::TensorList host) {
             const auto count = static_cast<size_t>(host[1].numel());
             startReduceScatter(on, host[1], host[0],
                                sizes.empty() ? std::vector<size_t>(getSize(), count) : sizes, op);
           });
  return call.submit();
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  Call call(
      *this,
      {c10d::OpType::_REDUCE_SCATTER_BASE, "topoopt:_reduce_scatter_base", "reduce_scatter_tensor"},
      {input}, {output}, termsOf(options));
  checkReduceScatter(output, input, options.reduceOp);
  addReduceScatter(call, output, input, options.reduceOp);
  return call.submit();
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(!outputs.empty() && outputs.size() == inputs.size(),
                    "topoopt: reduce_scatter_tensor_coalesced: ", outputs.size(), " outputs and ",
                    inputs.size(), " inputs");
  Call call(*this,
            {c10d::OpType::COALESCED, "topoopt:reduce_scatter_tensor_coalesced",
             "reduce_scatter_tensor_coalesced"},
            inputs, outputs, termsOf(options), outputs.size());
  // Check all before starting the first.
  for (size_t i = 0; i < outputs.size(); ++i) {
    checkReduceScatter(outputs[i], inputs[i], options.reduceOp);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    addReduceScatter(call, outputs[i], inputs[i], options.reduceOp);
  }
  return call.submit();
}

}  // namespace topoopt
