#include "backend/graph_recording.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include "common/cuda_driver.h"

namespace topoopt {
namespace {

// CUDA driver's cuStreamIsCapturing: returns 0 or an error number.
using IsCapturing = int (*)(void* stream, int* status);
constexpr int kActive = 1;  // <cuda.h>: CU_STREAM_CAPTURE_STATUS_ACTIVE

// Returns the driver's function if it is loaded, so that the build needs no CUDA.
IsCapturing ofDriver() {
  void* const library = cudaDriverLibrary();
  if (library == nullptr) return nullptr;
  return reinterpret_cast<IsCapturing>(dlsym(library, "cuStreamIsCapturing"));
}

// Some versions of torch, such as 2.11, do not query devices.
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
