// A group whose members share memory. A synchronous collective (local_team.h) runs on its caller's
// thread if no other is pending, else on a thread of the group. Calling and waiting threads move
// messages (local_messages.h), else the reactor does.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/group/group.h"
#include "collectives/memory/local_messages.h"
#include "collectives/memory/local_team.h"
#include "collectives/memory/turn_queue.h"

namespace topoopt {

class SharedMemoryGroup final : public Group {
 public:
  SharedMemoryGroup(std::shared_ptr<Endpoint> endpoint, GroupConfig config);

  uint64_t sequenceNumber() const override { return turns_.count(); }
  std::vector<RingCounters> counters() override;
  void shutdown() override;

  void send(const MessageBuffer& message, int target, int tag, const CallTerms& terms,
            Done done) override;
  void receive(const MessageBuffer& message, int source, int tag, const CallTerms& terms,
               Done done) override;
  void receiveAny(const MessageBuffer& message, int tag, const CallTerms& terms,
                  std::function<void(int)> from, Done done) override;
  void await(const std::function<bool()>& over,
             std::optional<Reactor::Clock::time_point> until) override;
  void wakeWaiting() override { messages_.wakeDriver(); }

 private:
  void submit(CollectiveRequest request, const CallTerms& terms, Done done) override;
  void endCollectives(std::exception_ptr error, Notify notify) override;
  std::optional<std::pair<Called, uint64_t>> current() override;
  void onUnmatched(int, uint32_t) override {}  // collectives send no frames
  void onControl(const FrameHeader& header, const std::string& payload) override;
  void onOpened() override { messages_.look(); }
  void onLeft(int rank) override;
  std::vector<std::string> messageTexts(size_t most) const override {
    return messages_.texts(most);
  }

  LocalMessages::Hooks hooks();
  void notify(int member);
  void tickAfter(std::chrono::microseconds pause);
  void onTick();
  void watchDeadline();
  void onLate();

  void run(const CollectiveRequest& request, const CollectiveCall& call);
  std::string ownFailure(const std::string& why) const;  // text for the other members

  const GroupLayout layout_;
  const std::shared_ptr<TeamSegment> segment_;
  LocalTeam team_;
  LocalMessages messages_;
  std::optional<Reactor::TimerId> late_timer_;  // reactor thread only
  std::atomic<bool> running_{false};
  TurnQueue turns_;
};

}  // namespace topoopt
