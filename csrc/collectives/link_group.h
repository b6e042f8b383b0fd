// The collectives of a group over the links of an endpoint: one schedule after the other, on the
// reactor thread.

#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/group.h"
#include "collectives/scratch.h"
#include "plan/schedule_cache.h"

namespace topoopt {

class LinkGroup final : public Group {
 public:
  // For Group::open.
  LinkGroup(std::shared_ptr<Endpoint> endpoint, GroupConfig config);

  uint64_t sequenceNumber() const override;

  // Of scratch memory that is held at this moment. Not on the reactor thread.
  size_t scratchBytes();

 private:
  struct Pending {
    std::string name;
    uint64_t number = 0;
    Milliseconds limit{};
    Operation::Setup setup;
    Done done;
  };

  void submit(CollectiveRequest request, const CallTerms& terms, Done done) override;
  void endCollectives(std::exception_ptr error, Notify notify) override;
  const GroupLayout& layout() const override { return schedules_.layout(); }
  std::vector<PartCounters> partCounters() override;

  void logChoice(const CollectiveRequest& request, const PreparedSchedule& prepared);
  void takeSubmitted();
  void startNext();
  void onOperationDone(std::exception_ptr error);
  void callDone();
  void watchDeadline();
  void onTimeout();

  // Guarded by mutex_.
  uint64_t called_ = 0;
  std::deque<Pending> submitted_;  // that the reactor thread has not taken yet
  ScheduleCache schedules_;
  std::set<std::tuple<std::string, Algorithm, int>> logged_;  // operation, algorithm, size class

  // Reactor thread only.
  std::deque<Pending> queue_;  // the first one runs, if running_
  Operation operation_;
  Scratch scratch_;
  uint8_t barrier_byte_ = 0;  // what barriers reduce
  bool running_ = false;
  bool starting_ = false;
  std::deque<Done> over_;  // callbacks of operations that are over
  bool calling_done_ = false;
  std::optional<Reactor::Clock::time_point> deadline_;  // of the one that runs
  std::optional<Reactor::TimerId> timer_;               // not later than the deadline
};

}  // namespace topoopt
