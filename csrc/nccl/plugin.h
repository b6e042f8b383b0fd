// Functions that the plugin's point-to-point and CollNet tables share.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "nccl/abi.h"
#include "nccl/net.h"

namespace topoopt::nccl {

extern char plugin_name[];
extern std::unique_ptr<Net> net;  // one per process, for all communicators

// Logs an error in NCCL's log; without a text, the last error of the calling thread.
Result report(Result result, const std::string& what);
Result report(Result result);
void inform(const std::string& what);

// Starts the network on the first call.
Result begin(Logger given);
Result devices(int* count);
bool isDevice(int device);
Result propertiesV8(int device, PropertiesV8* properties);
Result propertiesV9(int device, PropertiesV9* properties);
Result propertiesV11(int device, PropertiesV11* properties);
Result propertiesV12(int device, PropertiesV12* properties);
Result registerMemory(void* comm, void* data, size_t bytes, int type, void** memory);
Result registerDmaBuf(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                      void** memory);
Result deregister(void* comm, void* memory);
Result makeDevice(int* device, VirtualDevice* parts);
Result makeDeviceV12(int* device, VirtualDeviceV12* parts);
Result finalize(void* context);

// Closes CollNet's communicators that NCCL has left open, before the network ends.
void closeCommunicators();

}  // namespace topoopt::nccl
