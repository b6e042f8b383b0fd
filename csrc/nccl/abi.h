// The memory layout of NCCL's network plugins, point-to-point and CollNet: order and types of
// fields, versions 8 to 12. Written from NCCL's public interface, without NCCL's headers.

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

template <int kMost>
struct VirtualDeviceOf {
  int count;
  int devices[kMost];
};
using VirtualDevice = VirtualDeviceOf<4>;  // to version 11
using VirtualDeviceV12 = VirtualDeviceOf<8>;

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

template <typename Parts>
struct PropertiesOf {  // from version 9 on
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
  Parts parts;
  size_t most_p2p_bytes;
  size_t most_collective_bytes;
};
using PropertiesV9 = PropertiesOf<VirtualDevice>;  // and version 10

struct PropertiesV11 : PropertiesV9 {
  int most_multi_requests;
};

struct PropertiesV12 : PropertiesOf<VirtualDeviceV12> {
  int most_multi_requests;
  int16_t rail;
  int16_t plane;
};
inline constexpr int16_t kUndefined = -1;

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
using MakeDeviceV12 = Result (*)(int* device, VirtualDeviceV12* parts);
using Finalize = Result (*)(void* context);

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

template <typename Properties, typename Make>
struct NetWithContext {
  const char* name;
  Result (*init)(void** context, uint64_t communicator, CommConfig*, Logger, ProfilerCallback);
  Devices devices;
  Result (*properties)(int device, Properties*);
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
  Make make_device;
  Finalize finalize;
  Result (*set_attributes)(void* context, void* attributes);
};
using NetV11 = NetWithContext<PropertiesV11, MakeDevice>;
using NetV12 = NetWithContext<PropertiesV12, MakeDeviceV12>;

// ---- CollNet -----------------------------------------------------------------------------------

// Element types and reductions that have a number in NCCL's interface.
enum ElementNumber : int {
  kInt8Number = 0,
  kUint8Number,
  kInt32Number,
  kUint32Number,
  kInt64Number,
  kUint64Number,
  kFloat16Number,
  kFloat32Number,
  kFloat64Number,
  kBfloat16Number,
};
enum ReductionNumber : int { kSumNumber = 0, kProductNumber, kMaxNumber, kMinNumber };

// One of the buffers whose bytes follow each other in the window of a collective.
template <typename Size>
struct BufferPartOf {
  void* memory;
  void* data;
  Size bytes;
};
using BufferPartV8 = BufferPartOf<uint32_t>;
using BufferPart = BufferPartOf<size_t>;

// Functions with the same types in all versions. `handles` are those of all members, by their rank.
using ConnectAll = Result (*)(void** handles, int count, int rank, void* listener, void** comm);
using Supports = Result (*)(int element, int reduction, int* supported);
using FlushOne = Result (*)(void* comm, void* data, int bytes, void* memory, void** request);

// The functions between registration and the end, where only sizes differ. The collectives of all
// members' blocks see a window of them; the own block's part of it is contiguous.
template <typename Count, typename Part>
struct CollectiveFunctions {
  Register register_memory;
  RegisterDmaBuf register_dma_buf;
  Deregister deregister;
  Result (*all_reduce)(void* comm, void* in, void* out, Count count, int element, int reduction,
                       void* in_memory, void* out_memory, void** request);
  Result (*all_gather)(void* comm, void* in, int parts, Part* out, size_t block_bytes,
                       size_t window_offset, size_t window_bytes, void* in_memory, void** request);
  Result (*reduce_scatter)(void* comm, int parts, Part* in, void* out, size_t block_bytes,
                           size_t window_offset, size_t window_bytes, int element, int reduction,
                           void* out_memory, void** request);
  FlushOne flush;
  Test test;
  Close close;
  Close close_listen;
};

struct CollNetV8 {
  const char* name;
  Result (*init)(Logger);
  Devices devices;
  Result (*properties)(int device, PropertiesV8*);
  Result (*listen)(int device, void* handle, void** listener);
  ConnectAll connect;
  Supports supports;
  CollectiveFunctions<int, BufferPartV8> functions;
};

struct CollNetV9 {  // and version 10
  const char* name;
  Result (*init)(Logger);
  Devices devices;
  Result (*properties)(int device, PropertiesV9*);
  Result (*listen)(int device, void* handle, void** listener);
  ConnectAll connect;
  Supports supports;
  CollectiveFunctions<size_t, BufferPart> functions;
  MakeDevice make_device;
};

template <typename Properties, typename Make>
struct CollNetWithContext {
  const char* name;
  Result (*init)(void** context, uint64_t communicator, Logger);
  Devices devices;
  Result (*properties)(int device, Properties*);
  Result (*listen)(void* context, int device, void* handle, void** listener);
  ConnectAll connect;
  Supports supports;
  CollectiveFunctions<size_t, BufferPart> functions;
  Make make_device;
  Finalize finalize;
};
using CollNetV11 = CollNetWithContext<PropertiesV11, MakeDevice>;
using CollNetV12 = CollNetWithContext<PropertiesV12, MakeDeviceV12>;

}  // namespace topoopt::nccl
