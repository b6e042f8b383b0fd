// The memory layout of NCCL's tuner plugins: order and types of fields, versions 2 to 6. Written
// from NCCL's public interface, without NCCL's headers.

#pragma once

#include <cstddef>
#include <cstdint>

#include "nccl/abi.h"

namespace topoopt::nccl {

enum class NcclCollective : int {
  kBroadcast = 0,
  kReduce = 1,
  kAllGather = 2,
  kReduceScatter = 3,
  kAllReduce = 4,
};

enum NcclAlgorithm : int {
  kTree = 0,
  kRing = 1,
  kCollNetDirect = 2,  // every rank exchanges its part over CollNet
  kCollNetChain = 3,   // a chain inside a server, CollNet between them
  kNvls = 4,           // NVLink inside a server, CollNet between them
  kNvlsTree = 5,       // NVLink inside a server, a tree between them
  kPat = 6,            // trees for AllGather and ReduceScatter with one rank per server
};

// Wire formats: a flag per word, a flag per 120 of 128 bytes, or no flags.
enum Protocol : int { kLL = 0, kLL128 = 1, kSimple = 2 };

inline constexpr float kImpossible = -1.0F;  // in a cost table
inline constexpr unsigned long kTuningSubsystem = 0x40;

struct NvlinkDomains;    // unused
struct TuningConstants;  // unused

// Microseconds: a row of `protocols` values for each algorithm.
using CostTable = float**;

struct TunerV2 {
  const char* name;
  Result (*init)(size_t ranks, size_t nodes, Logger, void** context);
  Result (*choose)(void* context, NcclCollective, size_t bytes, int has_collnet, int has_nvls,
                   int operations, int* algorithm, int* protocol, int* channels);
  Result (*destroy)(void* context);
};

struct TunerV3 {
  const char* name;
  Result (*init)(size_t ranks, size_t nodes, Logger, void** context);
  Result (*choose)(void* context, NcclCollective, size_t bytes, int operations, CostTable,
                   int algorithms, int protocols, int* channels);
  Result (*destroy)(void* context);
};

struct TunerV4 {
  const char* name;
  Result (*init)(size_t ranks, size_t nodes, Logger, void** context);
  Result (*choose)(void* context, NcclCollective, size_t bytes, int operations, CostTable,
                   int algorithms, int protocols, int registered, int* channels);
  Result (*destroy)(void* context);
};

struct TunerV5 {
  const char* name;
  Result (*init)(void** context, uint64_t communicator, size_t ranks, size_t nodes, Logger,
                 NvlinkDomains*, TuningConstants*);
  Result (*choose)(void* context, NcclCollective, size_t bytes, int operations, CostTable,
                   int algorithms, int protocols, int registered, int* channels);
  Result (*finalize)(void* context);
};

struct TunerV6 : TunerV5 {
  Result (*chunk_size)(void* context, NcclCollective, size_t bytes, int algorithm, int protocol,
                       int channels, size_t* chunk_bytes);  // may be null
};

}  // namespace topoopt::nccl
