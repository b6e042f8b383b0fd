#include "backend/stream_gates.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <string>

namespace topoopt {
namespace {

constexpr int64_t kWordsOfPage = 1024;
constexpr unsigned kGreaterOrEqual = 0;  // <cuda.h>: CU_STREAM_WAIT_VALUE_GEQ
constexpr unsigned kAfterAllWrites = 0;  // CU_STREAM_WRITE_VALUE_DEFAULT

std::mutex registered_mutex;
std::map<c10::DeviceType, StreamWaits> registered;

// A function of the driver that the process has loaded, so that the build needs no CUDA; or
// nullptr.
template <typename Function>
Function ofCuda(const char* name) {
  // Its name on Linux, whatever the release of CUDA. The handle is never closed.
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

// Version 2 needs no setting of the driver's module.
StreamWaits waitsOfCuda() {
  return {ofCuda<StreamWaits::Function>("cuStreamWaitValue32_v2"),
          ofCuda<StreamWaits::Function>("cuStreamWriteValue32_v2")};
}

// Torch 2.11 does not know.
template <typename Guard>
bool recordsGraph(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.isStreamCapturing(stream); }) {
    return guard.isStreamCapturing(stream);
  } else {
    if (stream.device_type() != c10::DeviceType::CUDA) return false;
    static const auto asks = ofCuda<int (*)(void* stream, int* status)>("cuStreamIsCapturing");
    int status = 0;  // an enumeration of the driver: 1 is active
    return asks != nullptr && asks(stream.native_handle(), &status) == 0 && status == 1;
  }
}

StreamWaits waitsOf(c10::DeviceType type) {
  {
    std::lock_guard lock(registered_mutex);
    const auto found = registered.find(type);
    if (found != registered.end()) return found->second;
  }
  return type == c10::DeviceType::CUDA ? waitsOfCuda() : StreamWaits{};
}

}  // namespace

bool recordsGraph(const c10::Stream& stream) {
  return recordsGraph(c10::impl::VirtualGuardImpl(stream.device_type()), stream);
}

void registerStreamWaits(c10::DeviceType type, StreamWaits waits) {
  std::lock_guard lock(registered_mutex);
  registered[type] = waits;
}

StreamGates::StreamGates(c10::Device device) : device_(device), waits_(waitsOf(device.type())) {
  if (waits_.wait == nullptr || waits_.write == nullptr) {
    C10_THROW_ERROR(DistBackendError,
                    "topoopt: TOPOOPT_BLOCKING_WAIT: 0, but streams of " + device.str() +
                        " cannot wait for memory; set it to 1, and wait() blocks the host");
  }
}

StreamGates::Gate StreamGates::take() {
  std::lock_guard lock(mutex_);
  const auto free = std::find_if(taken_.begin(), taken_.end(), [](const Gate& gate) {
    return std::atomic_ref(*gate.word).load(std::memory_order_acquire) == gate.number;
  });
  if (free != taken_.end()) {
    ++free->number;
    return *free;
  }
  const size_t used = taken_.size() % kWordsOfPage;
  if (used == 0) {
    const c10::DeviceGuard guard(device_);
    c10::Allocator* const pinned = at::globalContext().getPinnedMemoryAllocator(device_.type());
    pages_.push_back(at::detail::empty_generic({kWordsOfPage}, pinned,
                                               c10::DispatchKeySet(c10::DispatchKey::CPU), at::kInt,
                                               std::nullopt));
    std::memset(pages_.back().data_ptr(), 0, pages_.back().nbytes());
  }
  auto* const words = reinterpret_cast<uint32_t*>(pages_.back().data_ptr<int32_t>());
  return taken_.emplace_back(Gate{words + used, 1});
}

void StreamGates::await(const Gate& gate, const c10::Stream& stream) {
  call("wait for", waits_.wait, gate, stream);
}

void StreamGates::openAfter(const Gate& gate, const c10::Stream& stream) {
  call("write to", waits_.write, gate, stream);
}

void StreamGates::open(const Gate& gate) {
  std::atomic_ref(*gate.word).store(gate.number, std::memory_order_release);
}

// Page-locked memory has one address for the host and for all devices of the process.
void StreamGates::call(const char* name, StreamWaits::Function function, const Gate& gate,
                       const c10::Stream& stream) const {
  const c10::DeviceGuard guard(device_);
  static_assert(kGreaterOrEqual == kAfterAllWrites);
  const int error = function(stream.native_handle(), reinterpret_cast<uintptr_t>(gate.word),
                             gate.number, kGreaterOrEqual);
  if (error == 0) return;
  C10_THROW_ERROR(DistBackendError, std::string("topoopt: a stream of ") + device_.str() +
                                        " cannot " + name + " memory: error " +
                                        std::to_string(error) + " of the driver");
}

}  // namespace topoopt
