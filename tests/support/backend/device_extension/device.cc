// A PyTorch device for tests, named "lag": asynchronous streams, memory that the host cannot touch,
// pinned host memory. Enough operators to fill tensors and calculate with them on the device; all
// others run on the CPU after waiting for the device.

// Without the functions of all operators, which take the compiler longer than all the rest.
#define AT_PER_OPERATOR_HEADERS

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/library.h>

#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "memory.h"
#include "streams.h"

namespace lag {
namespace {

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

DeviceAllocator& allocator() {
  static auto* allocator = new DeviceAllocator([] { return current_device; });
  return *allocator;
}

bool pinned_memory = true;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current_device = device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(current_device, device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    TORCH_CHECK(pinned_memory, "lag: no pinned memory");
    return &PinnedAllocator::instance();
  }
  bool isPinnedPtr(const void* address) const override {
    return PinnedAllocator::instance().contains(address) || Arena::instance().saysPinned(address);
  }
};

// ---- tensors -----------------------------------------------------------------------------------

using OptionalType = std::optional<at::ScalarType>;
using OptionalDevice = std::optional<at::Device>;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::DeviceGuard guardOf(const OptionalDevice& device) {
  const bool indexed = device && device->has_index();
  return c10::DeviceGuard(indexed ? *device : c10::Device(c10::kPrivateUse1, current_device));
}

at::Tensor empty(at::IntArrayRef sizes, OptionalType type, std::optional<at::Layout>,
                 OptionalDevice device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard = guardOf(device);
  return at::detail::empty_generic(sizes, &allocator(), kKeys, c10::dtype_or_default(type), format);
}

at::Tensor emptyStrided(at::IntArrayRef sizes, at::IntArrayRef strides, OptionalType type,
                        std::optional<at::Layout>, OptionalDevice device, std::optional<bool>) {
  const c10::DeviceGuard guard = guardOf(device);
  return at::detail::empty_strided_generic(sizes, strides, &allocator(), kKeys,
                                           c10::dtype_or_default(type));
}

// A CPU tensor over the same memory. Like a kernel's arguments, it keeps nothing alive.
at::Tensor aliasOnCpu(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  return at::from_blob(Arena::instance().usable(tensor.const_data_ptr()), tensor.sizes(),
                       tensor.strides(), tensor.options().device(at::kCPU));
}

at::Tensor copyFrom(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::Tensor& on_device = to.is_privateuseone() ? to : from;
  const at::Tensor& other = to.is_privateuseone() ? from : to;
  Queue& stream = queue(currentStream(on_device.device()));
  ++counters.copies;
  const at::Tensor expanded = from.expand_as(to);
  stream.push([a = aliasOnCpu(to), b = aliasOnCpu(expanded)] { a.copy_(b); }, true);
  const bool async = other.is_privateuseone() || (non_blocking && other.is_pinned());
  if (!async) {
    ++counters.blocking_copies;
    stream.synchronize();
  }
  return to;
}

at::Tensor copyFromAndResize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) to.resize_(from.sizes());
  return copyFrom(from, to, false);
}

at::Scalar localScalar(const at::Tensor& tensor) { return tensor.cpu().item(); }

const at::Tensor& resize(const at::Tensor& tensor, at::IntArrayRef sizes,
                         std::optional<at::MemoryFormat>) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  const size_t bytes = tensor.numel() * tensor.element_size();
  c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (storage->nbytes() < bytes) {
    const c10::DeviceGuard guard = guardOf(tensor.device());
    storage->set_data_ptr_noswap(allocator().allocate(bytes));
    storage->set_nbytes(bytes);
  }
  return tensor;
}

// ---- operators that run on the stream ----------------------------------------------------------

// An operator that changes its first argument: the same on the CPU, on aliases, when its turn
// comes.
void inPlace(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  torch::jit::Stack arguments(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
  const at::Tensor self = arguments[0].toTensor();
  for (c10::IValue& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().is_privateuseone()) {
      argument = aliasOnCpu(argument.toTensor());
    }
  }
  queue(currentStream(self.device()))
      .push([op, arguments]() mutable { op.callBoxed(&arguments); }, true);
  torch::jit::drop(*stack, count);
  torch::jit::push(*stack, self);
}

at::Tensor multiply(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor product = a.is_privateuseone() ? a.clone() : a.to(b.device()).expand_as(b).clone();
  return product.mul_(b);
}

void onCpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, module) {
  module.fallback(torch::CppFunction::makeFromBoxedFunction<&onCpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, module) {
  module.impl("empty.memory_format", &empty);
  module.impl("empty_strided", &emptyStrided);
  module.impl("as_strided", &at::native::as_strided_tensorimpl);
  module.impl("view", &at::native::view);
  module.impl("view_as_real", &at::native::view_as_real);
  module.impl("_reshape_alias", &at::native::_reshape_alias);
  module.impl("resize_", &resize);
  module.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  module.impl("_copy_from", &copyFrom);
  module.impl("_copy_from_and_resize", &copyFromAndResize);
  module.impl("_local_scalar_dense", &localScalar);
  module.impl("mul.Tensor", &multiply);
  for (const char* name :
       {"fill_.Scalar", "fill_.Tensor", "zero_", "add_.Tensor", "mul_.Tensor", "div_.Tensor"}) {
    module.impl(name, torch::CppFunction::makeFromBoxedFunction<&inPlace>());
  }
}

// DistributedDataParallel wants a timer for each kind of device.
struct Timer final : c10d::Timer {
  explicit Timer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};

}  // namespace
}  // namespace lag

namespace c10d {
C10_DECLARE_TYPED_REGISTRY(TimerRegistry, c10::DeviceType, Timer, std::unique_ptr, c10::Device);
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, lag::Timer)
}  // namespace c10d

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  c10::register_privateuse1_backend("lag");
  c10::SetAllocator(c10::kPrivateUse1, &lag::allocator());
  at::RegisterPrivateUse1HooksInterface(new lag::Hooks);
  // How long each kernel and each copy takes, on the default streams and on the others.
  module.def("set_delays_s", [](double default_s, double pool_s) {
    lag::default_delay_us = static_cast<int>(default_s * 1e6);
    lag::pool_delay_us = static_cast<int>(pool_s * 1e6);
  });
  module.def("hold_streams", [] { lag::pool_gate.set(false); });
  module.def("release_streams", [] { lag::pool_gate.set(true); });
  module.def("set_memory", [](const std::string& kind) {  // of tensors that are made from now on
    lag::kind = kind == "host"        ? lag::Kind::kHost
                : kind == "not there" ? lag::Kind::kNotThere
                                      : lag::Kind::kDevice;
  });
  module.attr("knows_graphs") = lag::kKnowsGraphs<c10::impl::DeviceGuardImplInterface>;
  module.def("record_graphs", [](bool record) { lag::recording = record; });
  module.def("fail_events", [](bool fail) { lag::events_fail = fail; });
  module.def("set_pinned_memory", [](bool available) { lag::pinned_memory = available; });
  module.def("pinned_bytes", [] { return lag::PinnedAllocator::instance().bytes(); });
  module.def("counters", [] {
    const lag::Counters& counters = lag::counters;
    return std::map<std::string, int>{{"device_synchronizations", counters.device_synchronizations},
                                      {"stream_synchronizations", counters.stream_synchronizations},
                                      {"event_synchronizations", counters.event_synchronizations},
                                      {"blocking_copies", counters.blocking_copies},
                                      {"copies", counters.copies}};
  });
  module.def("is_available", [] { return true; });
  module.def("device_count", [] { return lag::kDevices; });
  module.def("_is_in_bad_fork", [] { return false; });
  module.def("manual_seed_all", [](int64_t) {});  // it has no random numbers
  module.def("current_device", [] { return static_cast<int>(lag::current_device); });
  module.def("set_device", [](int device) { lag::current_device = device; });
}
