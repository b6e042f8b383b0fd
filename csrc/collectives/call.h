// One call of a collective: what is asked for, what all members must agree on, and how long it may
// take.

#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "common/reduce.h"
#include "plan/schedule_cache.h"
#include "transport/frame.h"

namespace topoopt {

// What the caller asks for beside the data.
struct CallTerms {
  std::chrono::milliseconds limit;
  // The caller waits for the result, so its own thread may do the work.
  bool synchronous = false;

  // NOLINTNEXTLINE: a time limit is all that most callers have to say.
  CallTerms(std::chrono::milliseconds limit, bool synchronous = false)
      : limit(limit), synchronous(synchronous) {}
};

// The memory of one collective; it must stay valid until the collective is done or its group has
// failed.
struct Buffers {
  void* input = nullptr;
  void* output = nullptr;
};

// A collective and its data, the same for every engine. One that works in place has one buffer: the
// output of an all_gather, the input of the others.
struct CollectiveRequest {
  std::string name;        // for messages, and part of the fingerprint
  uint64_t arguments = 0;  // hash of those that all members must give alike
  ScheduleKey shape;       // the collective, its sizes and its root
  Buffers buffers{};
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
};

// A request at its place in the order of the group's collectives.
struct CollectiveCall {
  std::string name;
  uint64_t number = 0;       // in that order, from 0
  uint32_t fingerprint = 0;  // of name, number and arguments
  std::chrono::milliseconds limit{0};
};

// The same on every machine, so no std::hash of strings.
inline uint32_t fingerprintOf(const std::string& name, uint64_t number, uint64_t arguments) {
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  hash = mixHash(mixHash(hash, number), arguments);
  return static_cast<uint32_t>(hash ^ (hash >> 32));
}

inline uint64_t hashSizes(const std::vector<size_t>& sizes) {
  size_t hash = sizes.size();
  for (size_t size : sizes) hash = mixHash(hash, size);
  return hash;
}

inline uint64_t hashReduction(size_t count, DataType type, ReduceOp op) {
  return mixHash(mixHash(count, static_cast<uint64_t>(type)), static_cast<uint64_t>(op));
}

// Why a call ended at its limit; `waiting` are ranks that it was waiting for.
inline std::string timedOutText(const std::string& name, uint64_t number, const std::string& group,
                                std::chrono::milliseconds limit, const std::set<int>& waiting) {
  std::string why = name + " (operation " + std::to_string(number) + " of group " + group +
                    "): Timed out after " + std::to_string(limit.count()) + " ms";
  if (!waiting.empty()) {
    why += " waiting for data from rank";
    for (int rank : waiting) why += (rank == *waiting.begin() ? " " : ", ") + std::to_string(rank);
  }
  return why;
}

}  // namespace topoopt
