// NCCL's tuner: replaces its costs, which assume that all servers are equally near, by costs on the
// plan's cables. NCCL looks for it in the library of its network plugin. Environment:
// TOPOOPT_NCCL_WIRING (see wiring.h); without it, NCCL's costs stay.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "nccl/costs.h"
#include "nccl/tuner_abi.h"

namespace topoopt::nccl {

namespace {

constexpr double kUs = 1e6;
constexpr int kAlgorithms = 7, kProtocols = 3;
// Bytes on the wire per byte of the collective.
constexpr std::array<double, kProtocols> kWireBytes{2.0, 128.0 / 120.0, 1.0};
// Below this rate one channel saturates its cable: its buffer of 4 MiB is at least 3 ms of traffic.
constexpr double kOneChannelGbps = 10;
constexpr size_t kLoggedBytes = size_t{1} << 30;

// State of one communicator.
struct Tuner {
  FabricCosts fabric;
  size_t ranks;
  bool one_channel;

  // nullopt: unsupported or unknown.
  std::optional<Cost> costOf(NcclCollective collective, int algorithm) const {
    const bool gathers =
        collective == NcclCollective::kAllGather || collective == NcclCollective::kReduceScatter;
    if (collective > NcclCollective::kAllReduce) return std::nullopt;
    if (algorithm == kRing) return fabric.ring(collective, ranks);
    if (collective == NcclCollective::kAllReduce &&
        (algorithm == kTree || algorithm == kNvlsTree)) {
      return fabric.trees();
    }
    if (gathers && algorithm == kPat) return fabric.pat();
    return std::nullopt;
  }

  std::optional<double> secondsOf(NcclCollective collective, int algorithm, int protocol,
                                  size_t bytes) const {
    const bool known =
        collective >= NcclCollective::kAllGather && collective <= NcclCollective::kAllReduce;
    if (known && algorithm >= kCollNetDirect && algorithm <= kNvls) {
      return fabric.collNetSeconds(collective, bytes);
    }
    const auto cost = costOf(collective, algorithm);
    if (!cost) return std::nullopt;
    return cost->seconds(static_cast<double>(bytes) * kWireBytes[static_cast<size_t>(protocol)]);
  }
};

// The order of servers is known only for communicators with all of them.
Result begin(size_t ranks, size_t nodes, Logger logger, void** context) {
  *context = nullptr;
  const char* path = std::getenv("TOPOOPT_NCCL_WIRING");
  if (!path || !*path) return kSuccess;
  try {
    auto tuner = std::make_unique<Tuner>(Tuner{FabricCosts(Wiring::load(path)), ranks, false});
    if (nodes < 2 || static_cast<size_t>(tuner->fabric.servers()) != nodes) return kSuccess;
    tuner->one_channel = tuner->fabric.ringGbps() <= kOneChannelGbps;
    if (logger) {
      const auto gbps = [](const Cost& cost) { return 8e-9 / cost.s_per_byte; };
      logger(kInfoLevel, kTuningSubsystem, __FILE__, __LINE__,
             "TUNER/topoopt: AllReduce on these cables: ring %.3g Gb/s, trees %.3g Gb/s, CollNet "
             "(if enabled) %.3g Gb/s",
             gbps(tuner->fabric.ring(NcclCollective::kAllReduce, ranks)),
             gbps(tuner->fabric.trees()),
             8e-9 * kLoggedBytes /
                 tuner->fabric.collNetSeconds(NcclCollective::kAllReduce, kLoggedBytes));
    }
    *context = tuner.release();
  } catch (const std::exception& error) {
    if (logger) {
      logger(kWarnLevel, kTuningSubsystem, __FILE__, __LINE__, "TUNER/topoopt: %s", error.what());
    }
  }
  return kSuccess;
}

Result beginV5(void** context, uint64_t, size_t ranks, size_t nodes, Logger logger, NvlinkDomains*,
               TuningConstants*) {
  return begin(ranks, nodes, logger, context);
}

// Without NCCL's table, which has the limits of CollNet: the faster of ring and trees. Flags in the
// words save the receiver a wait, so use them while doubling the bytes costs no more than the
// latency.
Result chooseV2(void* context, NcclCollective collective, size_t bytes, int, int, int,
                int* algorithm, int* protocol, int* channels) {
  const auto* tuner = static_cast<const Tuner*>(context);
  const auto ring = tuner ? tuner->costOf(collective, kRing) : std::nullopt;
  if (!ring) return kSuccess;
  Cost best = *ring;
  *algorithm = kRing;
  if (const auto trees = tuner->costOf(collective, kTree)) {
    const auto size = static_cast<double>(bytes);
    if (trees->seconds(size) < best.seconds(size)) {
      best = *trees;
      *algorithm = kTree;
    }
  }
  const bool small = best.s_per_byte * static_cast<double>(bytes) < best.latency_s / 2;
  *protocol = small ? kLL : kSimple;
  if (tuner->one_channel) *channels = 1;
  return kSuccess;
}

// The time of an algorithm is the maximum of the cables' and NCCL's.
Result chooseV5(void* context, NcclCollective collective, size_t bytes, int, CostTable table,
                int algorithms, int protocols, int, int* channels) {
  const auto* tuner = static_cast<const Tuner*>(context);
  if (!tuner) return kSuccess;
  auto* costs = reinterpret_cast<float*>(table);
  for (int algorithm = 0; algorithm < std::min(algorithms, kAlgorithms); ++algorithm) {
    for (int protocol = 0; protocol < std::min(protocols, kProtocols); ++protocol) {
      float& there = costs[algorithm * protocols + protocol];
      if (there == kImpossible) continue;
      const auto seconds = tuner->secondsOf(collective, algorithm, protocol, bytes);
      if (seconds) there = std::max(there, static_cast<float>(*seconds * kUs));
    }
  }
  if (tuner->one_channel) *channels = 1;
  return kSuccess;
}

Result chooseV3(void* context, NcclCollective collective, size_t bytes, int operations,
                CostTable table, int algorithms, int protocols, int* channels) {
  return chooseV5(context, collective, bytes, operations, table, algorithms, protocols, 0,
                  channels);
}

Result destroy(void* context) {
  delete static_cast<Tuner*>(context);
  return kSuccess;
}

}  // namespace

}  // namespace topoopt::nccl

using namespace topoopt::nccl;

#define TOPOOPT_EXPORT extern "C" __attribute__((visibility("default"))) const

TOPOOPT_EXPORT TunerV2 ncclTunerPlugin_v2{"topoopt", begin, chooseV2, destroy};
TOPOOPT_EXPORT TunerV3 ncclTunerPlugin_v3{"topoopt", begin, chooseV3, destroy};
TOPOOPT_EXPORT TunerV4 ncclTunerPlugin_v4{"topoopt", begin, chooseV5, destroy};
TOPOOPT_EXPORT TunerV5 ncclTunerPlugin_v5{"topoopt", beginV5, chooseV5, destroy};
TOPOOPT_EXPORT TunerV6 ncclTunerPlugin_v6{{"topoopt", beginV5, chooseV5, destroy}, nullptr};
