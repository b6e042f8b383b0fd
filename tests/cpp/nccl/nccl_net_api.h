// The plugin's tables of functions, of whatever version of NCCL's interface, as one.

#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "nccl/abi.h"

namespace topoopt::nccl {

inline void must(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

inline void quietly(int level, unsigned long, const char*, int, const char* format, ...) {
  if (level <= kWarnLevel) std::fprintf(stderr, "plugin: %s\n", format);
}

// One version of the interface, as if it were all of them.
struct Api {
  std::function<Result()> init;
  Devices devices;
  std::function<Result(int, PropertiesV11&)> properties;
  std::function<Result(int, void*, void**)> listen;
  std::function<Result(int, void*, void**)> connect;
  Accept accept;
  Register register_memory;
  RegisterDmaBuf register_dma_buf;
  Deregister deregister;
  std::function<Result(void*, void*, size_t, int, void*, void**)> send;
  std::function<Result(void*, int, void**, size_t*, int*, void**, void**)> receive;
  Flush flush;
  Test test;
  Close close_send, close_receive, close_listen;
};

template <typename Net>
Api common(const Net& net) {
  Api api;
  api.devices = net.devices;
  api.accept = net.accept;
  api.register_memory = net.register_memory;
  api.register_dma_buf = net.register_dma_buf;
  api.deregister = net.deregister;
  api.flush = net.flush;
  api.test = net.test;
  api.close_send = net.close_send;
  api.close_receive = net.close_receive;
  api.close_listen = net.close_listen;
  return api;
}

template <typename Net>
const Net& symbol(void* library, const char* name) {
  const void* found = dlsym(library, name);
  must(found != nullptr, std::string(name) + " is missing");
  return *static_cast<const Net*>(found);
}

inline Api apiV8(const NetV8& net) {
  Api api = common(net);
  api.init = [&net] { return net.init(quietly); };
  api.properties = [&net](int device, PropertiesV11& all) {
    PropertiesV8 own{};
    const Result result = net.properties(device, &own);
    all = {};
    all.memory_kinds = own.memory_kinds;
    all.speed_mbps = own.speed_mbps;
    all.most_grouped = own.most_grouped;
    return result;
  };
  api.listen = [&net](int device, void* handle, void** to) {
    return net.listen(device, handle, to);
  };
  api.connect = [&net](int device, void* handle, void** to) {
    DeviceHandle* offload = nullptr;
    return net.connect(device, handle, to, &offload);
  };
  api.send = [&net](void* comm, void* data, size_t bytes, int tag, void* memory, void** request) {
    return net.send(comm, data, static_cast<int>(bytes), tag, memory, request);
  };
  api.receive = [&net](void* comm, int count, void** data, size_t* bytes, int* tags, void** memory,
                       void** request) {
    std::vector<int> sizes(bytes, bytes + count);
    return net.receive(comm, count, data, sizes.data(), tags, memory, request);
  };
  return api;
}

inline Api apiV9(const NetV9& net) {
  Api api = common(net);
  api.init = [&net] { return net.init(quietly); };
  api.properties = [&net](int device, PropertiesV11& all) { return net.properties(device, &all); };
  api.listen = net.listen;
  api.connect = [&net](int device, void* handle, void** to) {
    return net.connect(device, handle, to, nullptr);
  };
  api.send = net.send;
  api.receive = net.receive;
  return api;
}

template <typename Net>
void addProfiled(Api& api, const Net& net) {
  api.send = [&net](void* comm, void* data, size_t bytes, int tag, void* memory, void** request) {
    return net.send(comm, data, bytes, tag, memory, nullptr, request);
  };
  api.receive = [&net](void* comm, int count, void** data, size_t* bytes, int* tags, void** memory,
                       void** request) {
    return net.receive(comm, count, data, bytes, tags, memory, nullptr, request);
  };
}

inline Api apiV10(const NetV10& net) {
  Api api = common(net);
  api.init = [&net] { return net.init(quietly, nullptr); };
  api.properties = [&net](int device, PropertiesV11& all) { return net.properties(device, &all); };
  api.listen = net.listen;
  api.connect = [&net](int device, void* handle, void** to) {
    CommConfig config{-1};
    return net.connect(device, &config, handle, to, nullptr);
  };
  addProfiled(api, net);
  return api;
}

inline Result knownOf(const NetV11& net, int device, PropertiesV11& all) {
  return net.properties(device, &all);
}

inline Result knownOf(const NetV12& net, int device, PropertiesV11& all) {
  PropertiesV12 own{};
  const Result result = net.properties(device, &own);
  must(result != kSuccess || (own.rail == kUndefined && own.plane == kUndefined), "rail, plane");
  all = {};
  all.memory_kinds = own.memory_kinds;
  all.speed_mbps = own.speed_mbps;
  all.most_grouped = own.most_grouped;
  return result;
}

template <typename Net>
Api apiWithContext(const Net& net) {
  Api api = common(net);
  static void* context = nullptr;
  api.init = [&net] {
    CommConfig config{-1};
    return net.init(&context, 7, &config, quietly, nullptr);
  };
  api.properties = [&net](int device, PropertiesV11& all) { return knownOf(net, device, all); };
  api.listen = [&net](int device, void* handle, void** to) {
    return net.listen(context, device, handle, to);
  };
  api.connect = [&net](int device, void* handle, void** to) {
    return net.connect(context, device, handle, to, nullptr);
  };
  addProfiled(api, net);
  return api;
}

inline Api load(const char* path, int version) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  must(library != nullptr, library ? "" : dlerror());
  const std::string name = "ncclNetPlugin_v" + std::to_string(version);
  if (version == 8) return apiV8(symbol<NetV8>(library, name.c_str()));
  if (version == 9) return apiV9(symbol<NetV9>(library, name.c_str()));
  if (version == 10) return apiV10(symbol<NetV10>(library, name.c_str()));
  if (version == 11) return apiWithContext(symbol<NetV11>(library, name.c_str()));
  return apiWithContext(symbol<NetV12>(library, name.c_str()));
}

}  // namespace topoopt::nccl
