// The function tables that NCCL loads. Environment: TOPOOPT_NCCL_WIRING (see wiring.h),
// TOPOOPT_NCCL_RANK (else RANK), TOPOOPT_NCCL_CONNECT_LIMIT_S, TOPOOPT_SILENCE_LIMIT_S.

#include "nccl/plugin.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "nccl/abi.h"
#include "nccl/net.h"

namespace topoopt::nccl {

char plugin_name[] = "topoopt";
std::unique_ptr<Net> net;

namespace {

constexpr size_t kMostBytes = size_t{1} << 30;
constexpr int kMostComms = 65536;
constexpr double kConnectLimitS = 60;
constexpr double kSilenceLimitS = 20;
constexpr double kLongestLimitS = 86400;
constexpr double kMbpsPerGbps = 1000;
constexpr int kUnknownMbps = 10000;  // default rate
constexpr double kLeastMbps = 1000;  // NCCL finds no way to CollNet over a slower device

std::mutex beginning;
Logger logger = nullptr;

void log(int level, const std::string& what) {
  if (logger) logger(level, kNetSubsystem, __FILE__, __LINE__, "NET/topoopt: %s", what.c_str());
}

const char* variable(const char* name) {
  const char* text = std::getenv(name);
  return text && *text ? text : nullptr;
}

std::chrono::milliseconds limitOf(const char* name, double usual_s) {
  const char* text = variable(name);
  if (!text) return std::chrono::milliseconds(std::llround(usual_s * 1000));
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end != '\0' || !(seconds >= 1) || seconds > kLongestLimitS) {
    throw std::runtime_error(std::string(name) + ": \"" + text +
                             "\" is not a number of seconds in 1..86400");
  }
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

int rankOf(int ranks) {
  const char* name = variable("TOPOOPT_NCCL_RANK") ? "TOPOOPT_NCCL_RANK" : "RANK";
  const char* text = variable(name);
  if (!text) throw std::runtime_error("neither TOPOOPT_NCCL_RANK nor RANK is set");
  char* end = nullptr;
  const long rank = std::strtol(text, &end, 10);
  if (*end != '\0' || rank < 0 || rank >= ranks) {
    throw std::runtime_error(std::string(name) + ": \"" + text + "\" is not a rank in 0.." +
                             std::to_string(ranks - 1));
  }
  return static_cast<int>(rank);
}

int speedMbps() {
  const double mbps = net->rateGbps() * kMbpsPerGbps;
  if (!(mbps >= 1)) return kUnknownMbps;
  return static_cast<int>(std::clamp(mbps, kLeastMbps, double{std::numeric_limits<int>::max()}));
}

// Fields of all versions.
template <typename Properties>
void describe(Properties& properties) {
  properties = {};
  properties.name = plugin_name;
  properties.guid = static_cast<uint64_t>(net->server()) + 1;  // ranks of a server share its cables
  properties.memory_kinds = kHostMemory;
  properties.registration_is_global = 1;
  properties.speed_mbps = speedMbps();
  properties.most_comms = kMostComms;
  properties.most_grouped = kMostGrouped;
}

template <typename Properties>
void describeV9(Properties& properties) {
  describe(properties);
  properties.parts = {1, {0}};
  properties.most_p2p_bytes = kMostBytes;
  properties.most_collective_bytes = kMostBytes;
}

}  // namespace

// ---- shared with CollNet -----------------------------------------------------------------------

Result report(Result result, const std::string& what) {
  if (result != kSuccess) log(kWarnLevel, what);
  return result;
}

Result report(Result result) { return report(result, Net::lastError()); }

void inform(const std::string& what) { log(kInfoLevel, what); }

Result begin(Logger given) {
  const std::lock_guard lock(beginning);
  logger = given;
  if (net) return kSuccess;
  try {
    const char* path = variable("TOPOOPT_NCCL_WIRING");
    if (!path) throw std::runtime_error("TOPOOPT_NCCL_WIRING is not set; see docs/guides/nccl.md");
    Wiring wiring = Wiring::load(path);
    const int rank = rankOf(wiring.ranks());
    const NetLimits limits{limitOf("TOPOOPT_NCCL_CONNECT_LIMIT_S", kConnectLimitS),
                           limitOf("TOPOOPT_SILENCE_LIMIT_S", kSilenceLimitS)};
    net = std::make_unique<Net>(std::move(wiring), rank, limits);
    std::atexit([] {
      closeCommunicators();
      net = nullptr;
    });
    return kSuccess;
  } catch (const std::exception& error) {
    return report(kSystemError, error.what());
  }
}

Result devices(int* count) {
  *count = net ? 1 : 0;
  return kSuccess;
}

bool isDevice(int device) { return net && device == 0; }

Result propertiesV8(int device, PropertiesV8* properties) {
  if (!isDevice(device)) return report(kInvalidArgument, "there is device 0 only");
  describe(*properties);
  return kSuccess;
}

Result propertiesV9(int device, PropertiesV9* properties) {
  if (!isDevice(device)) return report(kInvalidArgument, "there is device 0 only");
  describeV9(*properties);
  return kSuccess;
}

Result propertiesV11(int device, PropertiesV11* properties) {
  const Result result = propertiesV9(device, properties);
  if (result == kSuccess) properties->most_multi_requests = 1;
  return result;
}

Result propertiesV12(int device, PropertiesV12* properties) {
  if (!isDevice(device)) return report(kInvalidArgument, "there is device 0 only");
  describeV9(*properties);
  properties->most_multi_requests = 1;
  properties->rail = kUndefined;
  properties->plane = kUndefined;
  return kSuccess;
}

Result registerMemory(void*, void* data, size_t, int type, void** memory) {
  if (type != kHostMemory) return report(kInvalidUsage, "only host memory can be registered");
  *memory = data ? data : plugin_name;  // unused, but a handle must not be null
  return kSuccess;
}

Result registerDmaBuf(void*, void*, size_t, int, uint64_t, int, void**) {
  return report(kInvalidUsage, "memory of devices cannot be registered");
}

Result deregister(void*, void*) { return kSuccess; }

Result makeDevice(int*, VirtualDevice*) {
  return report(kInvalidUsage, "the links of a rank are one device already");
}

Result makeDeviceV12(int*, VirtualDeviceV12*) { return makeDevice(nullptr, nullptr); }

// Later communicators reuse the links, so they stay until the process ends.
Result finalize(void*) { return kSuccess; }

// ---- messages ----------------------------------------------------------------------------------

namespace {

Result listen(int device, void* handle, void** listener) {
  if (!isDevice(device)) return report(kInvalidArgument, "there is device 0 only");
  Handle made;  // NCCL's memory may be unaligned
  *listener = net->listen(made);
  std::memcpy(handle, &made, sizeof made);
  return kSuccess;
}

Result connect(int device, void* handle, void** comm, DeviceHandle** offload) {
  *comm = nullptr;
  if (offload) *offload = nullptr;
  if (!isDevice(device)) return report(kInvalidArgument, "there is device 0 only");
  Handle given;
  std::memcpy(&given, handle, sizeof given);
  Comm* made = nullptr;
  const Result result = net->connect(given, made);
  std::memcpy(handle, &given, sizeof given);
  *comm = made;
  return report(result);
}

Result accept(void* listener, void** comm, DeviceHandle** offload) {
  if (offload) *offload = nullptr;
  Comm* made = nullptr;
  const Result result = net->accept(*static_cast<Listener*>(listener), made);
  *comm = made;
  return report(result);
}

Result sendOf(void* to, void* data, size_t bytes, int tag, void** request) {
  Comm& comm = *static_cast<Comm*>(to);
  if (!comm.sends) return report(kInvalidUsage, "a send over the receiving end of a connection");
  NetRequest* made = nullptr;
  const Result result = net->send(comm, data, bytes, tag, made);
  *request = made;
  return report(result);
}

Result sendV8(void* comm, void* data, int bytes, int tag, void*, void** request) {
  if (bytes < 0) return report(kInvalidArgument, "a message of fewer than 0 bytes");
  return sendOf(comm, data, static_cast<size_t>(bytes), tag, request);
}

Result sendV9(void* comm, void* data, size_t bytes, int tag, void*, void** request) {
  return sendOf(comm, data, bytes, tag, request);
}

Result sendV10(void* comm, void* data, size_t bytes, int tag, void*, void*, void** request) {
  return sendOf(comm, data, bytes, tag, request);
}

Result receiveV9(void* from, int count, void** data, size_t* bytes, int* tags, void**,
                 void** request) {
  Comm& comm = *static_cast<Comm*>(from);
  if (comm.sends) return report(kInvalidUsage, "a receive over the sending end of a connection");
  NetRequest* made = nullptr;
  const Result result = net->receive(comm, count, data, bytes, tags, made);
  *request = made;
  return report(result);
}

Result receiveV8(void* comm, int count, void** data, int* bytes, int* tags, void** memory,
                 void** request) {
  if (count < 1 || count > kMostGrouped) {
    return report(kInvalidArgument, "a receive of " + std::to_string(count) + " buffers");
  }
  std::vector<size_t> sizes(bytes, bytes + count);
  return receiveV9(comm, count, data, sizes.data(), tags, memory, request);
}

Result receiveV10(void* comm, int count, void** data, size_t* bytes, int* tags, void** memory,
                  void**, void** request) {
  return receiveV9(comm, count, data, bytes, tags, memory, request);
}

// Received data is already in host memory.
Result flush(void*, int, void**, int*, void**, void** request) {
  *request = nullptr;
  return kSuccess;
}

Result test(void* request, int* done, int* bytes) {
  bool is_done = false;
  const Result result = net->test(*static_cast<NetRequest*>(request), is_done, bytes);
  *done = is_done ? 1 : 0;
  return report(result);
}

Result closeComm(void* comm) {
  if (net && comm) net->close(*static_cast<Comm*>(comm));
  return kSuccess;
}

Result closeListener(void* listener) {
  if (net && listener) net->close(*static_cast<Listener*>(listener));
  return kSuccess;
}

Result listenV11(void*, int device, void* handle, void** listener) {
  return listen(device, handle, listener);
}

Result connectV10(int device, CommConfig*, void* handle, void** comm, DeviceHandle** offload) {
  return connect(device, handle, comm, offload);
}

Result connectV11(void*, int device, void* handle, void** comm, DeviceHandle** offload) {
  return connect(device, handle, comm, offload);
}

Result beginV10(Logger given, ProfilerCallback) { return begin(given); }

Result beginV11(void** context, uint64_t, CommConfig*, Logger given, ProfilerCallback) {
  *context = plugin_name;  // shared by all communicators
  return begin(given);
}

Result setAttributes(void*, void*) { return kSuccess; }

}  // namespace

}  // namespace topoopt::nccl

using namespace topoopt::nccl;

#define TOPOOPT_EXPORT extern "C" __attribute__((visibility("default"))) const

TOPOOPT_EXPORT NetV8 ncclNetPlugin_v8{
    plugin_name,    begin,          devices,       propertiesV8, listen,    connect, accept,
    registerMemory, registerDmaBuf, deregister,    sendV8,       receiveV8, flush,   test,
    closeComm,      closeComm,      closeListener, nullptr,      nullptr};

TOPOOPT_EXPORT NetV9 ncclNetPlugin_v9{
    plugin_name,    begin,          devices,       propertiesV9, listen,    connect,   accept,
    registerMemory, registerDmaBuf, deregister,    sendV9,       receiveV9, flush,     test,
    closeComm,      closeComm,      closeListener, nullptr,      nullptr,   makeDevice};

TOPOOPT_EXPORT NetV10 ncclNetPlugin_v10{
    plugin_name,    beginV10,       devices,       propertiesV9, listen,     connectV10, accept,
    registerMemory, registerDmaBuf, deregister,    sendV10,      receiveV10, flush,      test,
    closeComm,      closeComm,      closeListener, nullptr,      nullptr,    makeDevice};

TOPOOPT_EXPORT NetV11 ncclNetPlugin_v11{
    plugin_name, beginV11,       devices,        propertiesV11, listenV11,     connectV11,
    accept,      registerMemory, registerDmaBuf, deregister,    sendV10,       receiveV10,
    flush,       test,           closeComm,      closeComm,     closeListener, nullptr,
    nullptr,     makeDevice,     finalize,       setAttributes};

TOPOOPT_EXPORT NetV12 ncclNetPlugin_v12{
    plugin_name, beginV11,       devices,        propertiesV12, listenV11,     connectV11,
    accept,      registerMemory, registerDmaBuf, deregister,    sendV10,       receiveV10,
    flush,       test,           closeComm,      closeComm,     closeListener, nullptr,
    nullptr,     makeDeviceV12,  finalize,       setAttributes};
