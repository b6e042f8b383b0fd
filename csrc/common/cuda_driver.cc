#include "common/cuda_driver.h"

#include <dlfcn.h>

namespace topoopt {

// By its name on Linux, whatever the release of CUDA. The handle is never closed.
void* cudaDriverLibrary() { return dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD); }

}  // namespace topoopt
