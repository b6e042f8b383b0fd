// The tables of CollNet's functions that NCCL loads. They use the network of plugin.cc, which NCCL
// starts first. Environment: TOPOOPT_ALGORITHM, as for the backend.

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "nccl/abi.h"
#include "nccl/collnet.h"
#include "nccl/plugin.h"

namespace topoopt::nccl {

namespace {

constexpr uint64_t kCollMagic = 0x746f706f6f707463ULL;

// The channels of the first member's handle are the communicator's.
struct CollHandle {
  uint64_t magic;
  uint64_t job;
  int32_t rank;
  uint32_t channel;
};
static_assert(sizeof(CollHandle) <= kHandleBytes);

std::mutex comms_mutex;
std::map<void*, std::shared_ptr<CollComm>> open_comms;

Result beginCollectives(void** context, uint64_t, Logger given) {
  *context = plugin_name;  // shared by all communicators
  return begin(given);
}

Result listenAll(int device, void* handle, void** listener) {
  if (!isDevice(device)) return report(kInvalidArgument, "there is device 0 only");
  CollHandle made{kCollMagic, net->job(), net->rank(), 0};
  const Result result = net->makeChannels(CollComm::kGroups, made.channel);
  std::memcpy(handle, &made, sizeof made);
  *listener = plugin_name;  // unused, but must not be null
  return report(result);
}

Result listenAllV11(void*, int device, void* handle, void** listener) {
  return listenAll(device, handle, listener);
}

// The groups need no agreement of their members, so only the cables are waited for.
Result connectAll(void** handles, int count, int rank, void*, void** comm) {
  *comm = nullptr;
  std::vector<int> ranks;
  uint32_t channel = 0;
  for (int i = 0; i < count; ++i) {
    CollHandle handle;
    std::memcpy(&handle, handles[i], sizeof handle);
    if (handle.magic != kCollMagic || handle.job != net->job()) {
      return report(kInvalidArgument, "a handle is of another job, or of another plugin");
    }
    ranks.push_back(handle.rank);
    if (i == 0) channel = handle.channel;
  }
  const std::shared_ptr<Endpoint> endpoint = net->awaitEndpoint();
  if (!endpoint) return report(kSystemError);
  try {
    GroupConfig group = collNetGroup(net->wiring(), std::move(ranks), rank, channel);
    if (const char* name = std::getenv("TOPOOPT_ALGORITHM"); name && *name) group.algorithm = name;
    const auto made = std::make_shared<CollComm>(endpoint, group);
    inform("CollNet of " + std::to_string(count) + " servers, algorithm " + group.algorithm);
    const std::lock_guard lock(comms_mutex);
    open_comms[made.get()] = made;
    *comm = made.get();
    return kSuccess;
  } catch (const std::invalid_argument& error) {
    return report(kInvalidArgument, error.what());
  }
}

Result supports(int element, int reduction, int* supported) {
  *supported = reductionOf(element, reduction) ? 1 : 0;
  return kSuccess;
}

Result unsupported(int element, int reduction) {
  return report(kInvalidArgument, "no reduction " + std::to_string(reduction) + " of elements " +
                                      std::to_string(element));
}

Result onePart() { return report(kInvalidUsage, "a collective needs one buffer of all members"); }

Result allReduce(void* comm, void* in, void* out, size_t count, int element, int reduction, void*,
                 void*, void** request) {
  const auto known = reductionOf(element, reduction);
  if (!known) return unsupported(element, reduction);
  *request = static_cast<CollComm*>(comm)->allReduce(in, out, count, *known);
  return kSuccess;
}

Result allReduceV8(void* comm, void* in, void* out, int count, int element, int reduction,
                   void* in_memory, void* out_memory, void** request) {
  if (count < 0) return report(kInvalidArgument, "an all_reduce of fewer than 0 elements");
  return allReduce(comm, in, out, static_cast<size_t>(count), element, reduction, in_memory,
                   out_memory, request);
}

template <typename Part>
Result allGather(void* comm, void* in, int parts, Part* out, size_t block_bytes,
                 size_t window_offset, size_t window_bytes, void*, void** request) {
  if (parts != 1) return onePart();
  const BlockWindow window{block_bytes, window_offset, window_bytes};
  *request = static_cast<CollComm*>(comm)->allGather(in, out->data, window);
  return kSuccess;
}

template <typename Part>
Result reduceScatter(void* comm, int parts, Part* in, void* out, size_t block_bytes,
                     size_t window_offset, size_t window_bytes, int element, int reduction, void*,
                     void** request) {
  if (parts != 1) return onePart();
  const auto known = reductionOf(element, reduction);
  if (!known) return unsupported(element, reduction);
  if ((block_bytes | window_offset | window_bytes) % elementSize(known->type) != 0) {
    return report(kInvalidArgument, "a window that divides an element");
  }
  const BlockWindow window{block_bytes, window_offset, window_bytes};
  *request = static_cast<CollComm*>(comm)->reduceScatter(in->data, out, window, *known);
  return kSuccess;
}

// Results are already in host memory.
Result flushOne(void*, void*, int, void*, void** request) {
  *request = nullptr;
  return kSuccess;
}

Result testCollective(void* of, int* done, int* bytes) {
  auto& request = *static_cast<CollRequest*>(of);
  bool is_done = false;
  const Result result = request.comm->test(request, is_done, bytes);
  *done = is_done ? 1 : 0;
  return result == kSuccess ? kSuccess : report(result, request.comm->why());
}

Result closeCollective(void* comm) {
  std::shared_ptr<CollComm> closed;
  {
    const std::lock_guard lock(comms_mutex);
    const auto found = open_comms.find(comm);
    if (found == open_comms.end()) return kSuccess;
    closed = std::move(found->second);
    open_comms.erase(found);
  }
  closed->close();
  return kSuccess;
}

Result closeListening(void*) { return kSuccess; }

template <typename Count, typename Part>
constexpr CollectiveFunctions<Count, Part> functionsWith(
    decltype(CollectiveFunctions<Count, Part>::all_reduce) all_reduce) {
  return {registerMemory,      registerDmaBuf, deregister,     all_reduce,      allGather<Part>,
          reduceScatter<Part>, flushOne,       testCollective, closeCollective, closeListening};
}

constexpr auto functions_v8 = functionsWith<int, BufferPartV8>(allReduceV8);
constexpr auto functions_v9 = functionsWith<size_t, BufferPart>(allReduce);

}  // namespace

void closeCommunicators() {
  std::map<void*, std::shared_ptr<CollComm>> left;
  {
    const std::lock_guard lock(comms_mutex);
    left.swap(open_comms);
  }
  for (const auto& [key, comm] : left) comm->close();
}

}  // namespace topoopt::nccl

using namespace topoopt::nccl;

#define TOPOOPT_EXPORT extern "C" __attribute__((visibility("default"))) const

TOPOOPT_EXPORT CollNetV8 ncclCollNetPlugin_v8{plugin_name, begin,      devices,  propertiesV8,
                                              listenAll,   connectAll, supports, functions_v8};

TOPOOPT_EXPORT CollNetV9 ncclCollNetPlugin_v9{plugin_name,  begin,        devices,
                                              propertiesV9, listenAll,    connectAll,
                                              supports,     functions_v9, makeDevice};

TOPOOPT_EXPORT CollNetV9 ncclCollNetPlugin_v10{plugin_name,  begin,        devices,
                                               propertiesV9, listenAll,    connectAll,
                                               supports,     functions_v9, makeDevice};

TOPOOPT_EXPORT CollNetV11 ncclCollNetPlugin_v11{
    plugin_name, beginCollectives, devices,      propertiesV11, listenAllV11,
    connectAll,  supports,         functions_v9, makeDevice,    finalize};

TOPOOPT_EXPORT CollNetV12 ncclCollNetPlugin_v12{
    plugin_name, beginCollectives, devices,      propertiesV12, listenAllV11,
    connectAll,  supports,         functions_v9, makeDeviceV12, finalize};
