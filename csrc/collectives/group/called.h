// What a member has called, in a form that others can compare with their own call and name.

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

// Reductions as callers ask for them; engines know sums only where this says average.
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

// Goes over links and through shared memory as it lies in memory.
struct Called {
  uint64_t bytes = 0;  // of all blocks; of an exchange: of those that this member sends, or, of a
                       // scatter, receives
  int32_t root = -1;   // rank of the group; -1: there is none
  uint32_t hash = 0;   // of what all members must give alike
  CallName name = CallName::kBarrier;
  DataType type = DataType::kUint8;
  CalledOp op = CalledOp::kNone;
  uint8_t reserved[5]{};
};
static_assert(sizeof(Called) == 24, "three words");

// Sets the hash: of name, type, reduction and root, and of `arguments`.
Called hashed(Called called, uint64_t arguments);

// The same on every machine.
uint64_t hashSizes(const std::vector<size_t>& sizes);
uint64_t mixBits(uint64_t seed, uint64_t value);

// "10 float32"; "3 bytes" where they are no whole elements.
std::string textOf(size_t bytes, DataType type);

// "broadcast of 10 float32 from rank 3"; `ranks` are the members as messages call them.
std::string textOf(const Called& called, const std::vector<int>& ranks);

// One side of a disagreement.
struct Caller {
  int rank;  // as messages call it
  Called called;
};

// "rank 1 and rank 2 disagree about operation 7 of group g: rank 1 called ..., rank 2 called ..."
std::string disagreement(Caller a, Caller b, const std::vector<int>& ranks, uint64_t number,
                         const std::string& group);

// Of an exchange that both are in: "rank 1 and rank 2 disagree in all_to_all (operation 7 of group
// g): rank 1 sends 8 float32, rank 2 receives 9 float32".
struct PairExchange {
  int sender;
  size_t sent_bytes;
  int receiver;
  size_t expected_bytes;
};
std::string disagreement(const PairExchange& transfer, const Called& called, uint64_t number,
                         const std::string& group);

// Whether another member may have said this: its numbers are those of names.
bool isValid(const Called& called);

// What a member has called lately.
class CallHistory {
 public:
  void add(uint64_t number, const Called& called);  // one after the other
  std::optional<Called> at(uint64_t number) const;

 private:
  std::vector<Called> calls_;  // by number, modulo its size once that is kKept
  uint64_t next_ = 0;
};

}  // namespace topoopt
