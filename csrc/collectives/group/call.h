// One call of a collective: what is asked for, what all members must agree on, and how long it may
// take.

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "collectives/group/called.h"
#include "collectives/group/landing.h"
#include "common/reduce.h"
#include "plan/schedule_cache.h"
#include "transport/frames/frame.h"

namespace topoopt {

// What the caller asks for beside the data.
struct CallTerms {
  std::chrono::milliseconds limit;
  // The caller waits for the result, so its own thread may do the work.
  bool synchronous = false;
  // What the caller's elements and its reduction are called, if not as the engine sees them.
  std::optional<DataType> type{};
  CalledOp op = CalledOp::kNone;
  // The data lands while the collective runs. Only for engines whose landingBytes() is not 0.
  std::shared_ptr<Landing> landing{};

  // NOLINTNEXTLINE: a time limit is all that most callers have to say.
  CallTerms(std::chrono::milliseconds limit, bool synchronous = false)
      : limit(limit), synchronous(synchronous) {}

  CallTerms of(DataType elements, CalledOp reduction = CalledOp::kNone) const {
    CallTerms terms = *this;
    terms.type = elements;
    terms.op = reduction;
    return terms;
  }
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
  Called called;      // what messages say, and other members compare
  ScheduleKey shape;  // the collective, its sizes and its root
  Buffers buffers{};
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
};

// A request at its place in the order of the group's collectives.
struct CollectiveCall {
  Called called;
  uint64_t number = 0;  // in that order, from 0
  std::chrono::milliseconds limit{0};
};

// Why a call ended at its limit; `waiting` are ranks that it was waiting for.
inline std::string timedOutText(CallName name, uint64_t number, const std::string& group,
                                std::chrono::milliseconds limit, const std::set<int>& waiting) {
  std::string why = std::string(nameOf(name)) + " (operation " + std::to_string(number) +
                    " of group " + group + "): Timed out after " + std::to_string(limit.count()) +
                    " ms";
  if (!waiting.empty()) {
    why += " waiting for data from rank";
    for (int rank : waiting) why += (rank == *waiting.begin() ? " " : ", ") + std::to_string(rank);
  }
  return why;
}

// What one part of a group (a ring, a tree) has done so far.
struct PartCounters {
  uint64_t sent_bytes = 0;
  double seconds = 0;  // from the start of an operation until the part had nothing left to do
};

}  // namespace topoopt
