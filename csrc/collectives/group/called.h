// The description of a call that members compare.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/reduce.h"

namespace topoopt {

enum class CallName : uint8_t {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kGather,
  kScatter,
  kAllToAll,
  kAllToAllSingle,
  kBarrier,
};
const char* nameOf(CallName name);

// Reductions as callers request them; the engines run an average as a sum.
enum class CalledOp : uint8_t {
  kNone,
  kSum,
  kProduct,
  kMin,
  kMax,
  kBitAnd,
  kBitOr,
  kBitXor,
  kAverage,
};
CalledOp calledOp(ReduceOp op);

// Sent over links and stored in shared memory as raw bytes.
struct Called {
  uint64_t bytes = 0;  // of all blocks; exchange: sent bytes; scatter: received bytes
  int32_t root = -1;   // rank of the group; -1: none
  uint32_t hash = 0;   // of the arguments that all members must share
  CallName name = CallName::kBarrier;
  DataType type = DataType::kUint8;
  CalledOp op = CalledOp::kNone;
  uint8_t reserved[5]{};
};
static_assert(sizeof(Called) == 24, "three words");

// Sets the hash over name, type, reduction, root and `arguments`.
Called hashed(Called called, uint64_t arguments);

// The same on every machine.
uint64_t hashSizes(const std::vector<size_t>& sizes);
uint64_t mixBits(uint64_t seed, uint64_t value);

// "10 float32", or "3 bytes" if the size is not a multiple of the element.
std::string textOf(size_t bytes, DataType type);

// "broadcast of 10 float32 from rank 3"; `ranks` maps members to ranks in messages.
std::string textOf(const Called& called, const std::vector<int>& ranks);

// One side of a disagreement.
struct Caller {
  int rank;  // as in messages
  Called called;
};

// "rank 1 and rank 2 disagree about operation 7 of group g: rank 1 called ..., rank 2 called ..."
std::string disagreement(Caller a, Caller b, const std::vector<int>& ranks, uint64_t number,
                         const std::string& group);

// Disagreement of two members of one exchange: "rank 1 and rank 2 disagree in all_to_all (operation
// 7 of group g): rank 1 sends 8 float32, rank 2 receives 9 float32".
struct PairExchange {
  int sender;
  size_t sent_bytes;
  int receiver;
  size_t expected_bytes;
};
std::string disagreement(const PairExchange& transfer, const Called& called, uint64_t number,
                         const std::string& group);

// Returns whether a received call has valid enum values.
bool isValid(const Called& called);

// The recent calls of a member.
class CallHistory {
 public:
  void add(uint64_t number, const Called& called);  // in ascending order
  std::optional<Called> at(uint64_t number) const;

 private:
  std::vector<Called> calls_;  // ring buffer by number once it holds kKept
  uint64_t next_ = 0;
};

}  // namespace topoopt
