// CollNet's tables of functions, of whatever version of NCCL's interface, as one.

#pragma once

#include <functional>
#include <string>

#include "nccl_net_api.h"

namespace topoopt::nccl {

struct CollApi {
  std::function<Result()> init;
  Devices devices;
  std::function<Result(int, void*, void**)> listen;
  ConnectAll connect;
  Supports supports;
  CollectiveFunctions<size_t, BufferPart> functions;
  int memory_kinds = 0;
};

inline BufferPartV8 shortened(const BufferPart& part) {
  return {part.memory, part.data, static_cast<uint32_t>(part.bytes)};
}

// Functions of version 8, whose sizes are shorter.
inline CollectiveFunctions<int, BufferPartV8> functions_v8;

inline CollectiveFunctions<size_t, BufferPart> lengthened(
    const CollectiveFunctions<int, BufferPartV8>& of) {
  functions_v8 = of;
  CollectiveFunctions<size_t, BufferPart> all{};
  all.register_memory = of.register_memory;
  all.register_dma_buf = of.register_dma_buf;
  all.deregister = of.deregister;
  all.all_reduce = [](void* comm, void* in, void* out, size_t count, int element, int reduction,
                      void* in_memory, void* out_memory, void** request) {
    return functions_v8.all_reduce(comm, in, out, static_cast<int>(count), element, reduction,
                                   in_memory, out_memory, request);
  };
  all.all_gather = [](void* comm, void* in, int parts, BufferPart* out, size_t block, size_t offset,
                      size_t bytes, void* memory, void** request) {
    BufferPartV8 part = shortened(*out);
    return functions_v8.all_gather(comm, in, parts, &part, block, offset, bytes, memory, request);
  };
  all.reduce_scatter = [](void* comm, int parts, BufferPart* in, void* out, size_t block,
                          size_t offset, size_t bytes, int element, int reduction, void* memory,
                          void** request) {
    BufferPartV8 part = shortened(*in);
    return functions_v8.reduce_scatter(comm, parts, &part, out, block, offset, bytes, element,
                                       reduction, memory, request);
  };
  all.flush = of.flush;
  all.test = of.test;
  all.close = of.close;
  all.close_listen = of.close_listen;
  return all;
}

template <typename Net, typename Properties>
int memoryKinds(const Net& net, Result (*)(int, Properties*)) {
  Properties properties{};
  return net.properties(0, &properties) == kSuccess ? properties.memory_kinds : 0;
}

template <typename Net>
CollApi collApi(const Net& net, CollectiveFunctions<size_t, BufferPart> functions) {
  CollApi api{.init = {},
              .devices = net.devices,
              .listen = {},
              .connect = net.connect,
              .supports = net.supports,
              .functions = functions};
  if constexpr (requires { net.finalize; }) {
    static void* context = nullptr;
    api.init = [&net] { return net.init(&context, 7, quietly); };
    api.listen = [&net](int device, void* handle, void** listener) {
      return net.listen(context, device, handle, listener);
    };
  } else {
    api.init = [&net] { return net.init(quietly); };
    api.listen = net.listen;
  }
  api.memory_kinds = memoryKinds(net, net.properties);
  return api;
}

inline CollApi loadCollNet(const char* path, int version) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const std::string name = "ncclCollNetPlugin_v" + std::to_string(version);
  if (version == 8) {
    const auto& net = symbol<CollNetV8>(library, name.c_str());
    return collApi(net, lengthened(net.functions));
  }
  const auto api = [](const auto& net) { return collApi(net, net.functions); };
  if (version < 11) return api(symbol<CollNetV9>(library, name.c_str()));
  if (version == 11) return api(symbol<CollNetV11>(library, name.c_str()));
  return api(symbol<CollNetV12>(library, name.c_str()));
}

}  // namespace topoopt::nccl
