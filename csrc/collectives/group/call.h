// One call of a collective: its arguments, its fingerprint and its time limit.

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

// Parameters of a call other than its data.
struct CallTerms {
  std::chrono::milliseconds limit;
  // The caller waits for the result, so its own thread may do the work.
  bool synchronous = false;
  // The caller's element type and reduction, if the engine's differ.
  std::optional<DataType> type{};
  CalledOp op = CalledOp::kNone;
  // The data lands while the collective runs. Only for engines whose landingBytes() is not 0.
  std::shared_ptr<Landing> landing{};

  // NOLINTNEXTLINE: most callers set only a time limit.
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

// A collective and its data, the same for every engine. In-place collectives have one buffer: the
// output of an all_gather, the input of the others.
struct CollectiveRequest {
  Called called;      // for messages and the comparison among members
  ScheduleKey shape;  // the collective, its sizes and its root
  Buffers buffers{};
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
};

// A request at its place in the order of the group's collectives.
struct CollectiveCall {
  Called called;
  uint64_t number = 0;  // position in the group's order, from 0
  std::chrono::milliseconds limit{0};
};

// Error text of a call that timed out; it waited for the ranks `waiting`.
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

// Statistics of one part of a group (a ring, a tree).
struct PartCounters {
  uint64_t sent_bytes = 0;
  double seconds = 0;  // from the start of an operation until the part is idle
};

}  // namespace topoopt
