// The extension module torch_topoopt._backend: the process group "topoopt".

#include <torch/extension.h>

PYBIND11_MODULE(_backend, module) { module.doc() = "The process group \"topoopt\"."; }
