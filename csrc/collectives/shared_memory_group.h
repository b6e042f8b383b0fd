// The collectives of a group whose members share memory (local_team.h): a synchronous one runs on
// its caller's thread, if no other is pending, else on a thread of the group.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/group.h"
#include "collectives/local_team.h"
#include "collectives/turn_queue.h"

namespace topoopt {

class SharedMemoryGroup final : public Group {
 public:
  // For Group::open.
  SharedMemoryGroup(std::shared_ptr<Endpoint> endpoint, GroupConfig config);

  uint64_t sequenceNumber() const override { return turns_.count(); }
  std::vector<RingCounters> counters() override;
  void shutdown() override;

 private:
  void submit(CollectiveRequest request, const CallTerms& terms, Done done) override;
  void endCollectives(std::exception_ptr error, Notify notify) override;
  std::optional<std::pair<Called, uint64_t>> current() override;
  void onUnmatched(int, uint32_t) override {}  // collectives send nothing

  void run(const CollectiveRequest& request, const CollectiveCall& call);
  std::string ownFailure(const std::string& why) const;  // as the other members see it

  const GroupLayout layout_;
  LocalTeam team_;
  std::atomic<bool> running_{false};
  TurnQueue turns_;
};

}  // namespace topoopt
