// Access to CUDA's driver if the process has loaded it, without its headers.

#pragma once

namespace topoopt {

// A handle for dlsym; nullptr if the driver is not loaded.
void* cudaDriverLibrary();

}  // namespace topoopt
