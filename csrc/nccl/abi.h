// The memory layout of NCCL's network plugins: order and types of fields, versions 8 to 11. Written
// from NCCL's public interface, without NCCL's headers.

#pragma once

#include <cstddef>
#include <cstdint>

namespace topoopt::nccl {

enum Result : int {
  kSuccess = 0,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
};

inline constexpr size_t kHandleBytes = 128;
inline constexpr int kHostMemory = 1;  // of `type` and `memory_kinds`
inline constexpr int kMostGrouped = 8;
inline constexpr int kWarnLevel = 2;
inline constexpr int kInfoLevel = 3;
inline constexpr unsigned long kNetSubsystem = 0x10;

// level, subsystems, file, line, format, ...
using Logger = void (*)(int, unsigned long, const char*, int, const char*, ...);
using ProfilerCallback = Result (*)(void**, int, void*, int64_t, void*);

struct DeviceHandle;  // offload to a device, unused

struct VirtualDevice {
  int count;
  int devices[4];
};

struct CommConfig {
  int traffic_class;
};

struct PropertiesV8 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int memory_kinds;
  int registration_is_global;
  int speed_mbps;
  int port;
  float latency_us;
  int most_comms;
  int most_grouped;
  int offload_kind;
  int offload_version;
};

struct PropertiesV9 {  // and version 10
  char* name;
  char* pci_path;
  uint64_t guid;
  int memory_kinds;
  int registration_is_global;
  int force_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int most_comms;
  int most_grouped;
  int offload_kind;
  int offload_version;
  VirtualDevice parts;
  size_t most_p2p_bytes;
  size_t most_collective_bytes;
};

struct PropertiesV11 : PropertiesV9 {
  int most_multi_requests;
};

// Functions with the same types in all versions.
using Devices = Result (*)(int* count);
using Accept = Result (*)(void* listener, void** comm, DeviceHandle** device);
using Register = Result (*)(void* comm, void* data, size_t bytes, int type, void** memory);
using RegisterDmaBuf = Result (*)(void* comm, void* data, size_t bytes, int type, uint64_t offset,
                                  int fd, void** memory);
using Deregister = Result (*)(void* comm, void* memory);
using Flush = Result (*)(void* comm, int count, void** data, int* bytes, void** memory,
                         void** request);
using Test = Result (*)(void* request, int* done, int* bytes);
using Close = Result (*)(void* comm);
using DeviceMemory = Result (*)(void* comm, void* memory, void** device);
using Consumed = Result (*)(void* comm, int count, void* request);
using MakeDevice = Result (*)(int* device, VirtualDevice* parts);

struct NetV8 {
  const char* name;
  Result (*init)(Logger);
  Devices devices;
  Result (*properties)(int device, PropertiesV8*);
  Result (*listen)(int device, void* handle, void** listener);
  Result (*connect)(int device, void* handle, void** comm, DeviceHandle**);
  Accept accept;
  Register register_memory;
  RegisterDmaBuf register_dma_buf;
  Deregister deregister;
  Result (*send)(void* comm, void* data, int bytes, int tag, void* memory, void** request);
  Result (*receive)(void* comm, int count, void** data, int* bytes, int* tags, void** memory,
                    void** request);
  Flush flush;
  Test test;
  Close close_send;
  Close close_receive;
  Close close_listen;
  DeviceMemory device_memory;
  Consumed consumed;
};

struct NetV9 {
  const char* name;
  Result (*init)(Logger);
  Devices devices;
  Result (*properties)(int device, PropertiesV9*);
  Result (*listen)(int device, void* handle, void** listener);
  Result (*connect)(int device, void* handle, void** comm, DeviceHandle**);
  Accept accept;
  Register register_memory;
  RegisterDmaBuf register_dma_buf;
  Deregister deregister;
  Result (*send)(void* comm, void* data, size_t bytes, int tag, void* memory, void** request);
  Result (*receive)(void* comm, int count, void** data, size_t* bytes, int* tags, void** memory,
                    void** request);
  Flush flush;
  Test test;
  Close close_send;
  Close close_receive;
  Close close_listen;
  DeviceMemory device_memory;
  Consumed consumed;
  MakeDevice make_device;
};

struct NetV10 {
  const char* name;
  Result (*init)(Logger, ProfilerCallback);
  Devices devices;
  Result (*properties)(int device, PropertiesV9*);
  Result (*listen)(int device, void* handle, void** listener);
  Result (*connect)(int device, CommConfig*, void* handle, void** comm, DeviceHandle**);
  Accept accept;
  Register register_memory;
  RegisterDmaBuf register_dma_buf;
  Deregister deregister;
  Result (*send)(void* comm, void* data, size_t bytes, int tag, void* memory, void* profiler,
                 void** request);
  Result (*receive)(void* comm, int count, void** data, size_t* bytes, int* tags, void** memory,
                    void** profilers, void** request);
  Flush flush;
  Test test;
  Close close_send;
  Close close_receive;
  Close close_listen;
  DeviceMemory device_memory;
  Consumed consumed;
  MakeDevice make_device;
};

struct NetV11 {
  const char* name;
  Result (*init)(void** context, uint64_t communicator, CommConfig*, Logger, ProfilerCallback);
  Devices devices;
  Result (*properties)(int device, PropertiesV11*);
  Result (*listen)(void* context, int device, void* handle, void** listener);
  Result (*connect)(void* context, int device, void* handle, void** comm, DeviceHandle**);
  Accept accept;
  Register register_memory;
  RegisterDmaBuf register_dma_buf;
  Deregister deregister;
  Result (*send)(void* comm, void* data, size_t bytes, int tag, void* memory, void* profiler,
                 void** request);
  Result (*receive)(void* comm, int count, void** data, size_t* bytes, int* tags, void** memory,
                    void** profilers, void** request);
  Flush flush;
  Test test;
  Close close_send;
  Close close_receive;
  Close close_listen;
  DeviceMemory device_memory;
  Consumed consumed;
  MakeDevice make_device;
  Result (*finalize)(void* context);
  Result (*set_attributes)(void* context, void* attributes);
};

}  // namespace topoopt::nccl
