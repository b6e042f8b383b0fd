// What NCCL's tuner plugins look like in memory: the order and types of fields, versions 2 to 6.
// Facts of NCCL's public interface, in our words: a library of ours includes no header of NCCL.

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
  kNvlsTree = 5,  // NVLink inside a server, a tree between them
  kPat = 6,       // trees for AllGather and ReduceScatter, of one rank on every server
};

// How bytes pass the wire: with a flag beside every word, beside 120 of 128 bytes, or none.
enum Protocol : int { kLL = 0, kLL128 = 1, kSimple = 2 };

inline constexpr float kImpossible = -1.0F;  // in a table of costs
inline constexpr unsigned long kTuningSubsystem = 0x40;

struct NvlinkDomains;    // which we do not look at
struct TuningConstants;  // nor change

// Microseconds of each algorithm with each protocol: `protocols` in a row, for each algorithm.
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
                       int channels, size_t* chunk_bytes);  // may be missing
};

}  // namespace topoopt::nccl
