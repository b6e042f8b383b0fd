#include "backend/graph_recording.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include "common/cuda_driver.h"

namespace topoopt {
namespace {

// As cuStreamIsCapturing of CUDA's driver: 0, or the number of an error.
using IsCapturing = int (*)(void* stream, int* status);
constexpr int kActive = 1;  // <cuda.h>: CU_STREAM_CAPTURE_STATUS_ACTIVE

// The driver's function, if the process has loaded it, so that the build needs no CUDA.
IsCapturing ofDriver() {
  void* const library = cudaDriverLibrary();
  if (library == nullptr) return nullptr;
  return reinterpret_cast<IsCapturing>(dlsym(library, "cuStreamIsCapturing"));
}

// Some versions of torch, 2.11 among them, do not ask devices.
template <typename Guard>
bool isCapturing(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.isStreamCapturing(stream); }) {
    return guard.isStreamCapturing(stream);
  } else {
    if (stream.device_type() != c10::DeviceType::CUDA) return false;
    static const IsCapturing is_capturing = ofDriver();
    int status = 0;
    return is_capturing != nullptr && is_capturing(stream.native_handle(), &status) == 0 &&
           status == kActive;
  }
}

}  // namespace

bool recordsGraph(const c10::Stream& stream) {
  return isCapturing(c10::impl::VirtualGuardImpl(stream.device_type()), stream);
}

}  // namespace topoopt
