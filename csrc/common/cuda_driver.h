// CUDA's driver, where the process has loaded it: nothing here needs its headers.

#pragma once

namespace topoopt {

// For dlsym; nullptr if the process has not loaded the driver.
void* cudaDriverLibrary();

}  // namespace topoopt
