#include "common/cuda_driver.h"

#include <dlfcn.h>

namespace topoopt {

// The name is the same for all CUDA releases. The handle is never closed.
void* cudaDriverLibrary() { return dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD); }

}  // namespace topoopt
