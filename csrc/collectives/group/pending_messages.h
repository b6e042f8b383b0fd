// The point-to-point messages of a group that are pending, each with its time limit.
//
// A message is pending from add() until finish() or failAll(), whichever comes first. Its `done` is
// called at that moment, once, and its timer is stopped. So a message that find() knows has not
// been done, and one that it does not know never calls back again. Everything runs on the reactor
// thread.

#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "transport/endpoint/endpoint.h"
#include "transport/reactor.h"

namespace topoopt {

class PendingMessages {
 public:
  struct Message {
    std::string text;        // such as "send to rank 3"
    std::vector<int> peers;  // ranks of the endpoint
    int tag = 0;
    std::chrono::milliseconds limit{0};  // 0: none
    Done done{};
  };

  explicit PendingMessages(Reactor& reactor) : reactor_(reactor) {}

  // Returns the number of the message, which counts those of the group. Calls `late` with it when
  // the message is still pending after its limit.
  uint64_t add(Message message, std::function<void(uint64_t number)> late);
  const Message* find(uint64_t number) const;  // nullptr: it is not pending any more
  void finish(uint64_t number);                // which is pending
  void failAll(std::exception_ptr error);
  // Of those that were added first, at most so many.
  std::vector<std::string> texts(size_t most) const;

 private:
  struct Entry {
    Message message;
    std::optional<Reactor::TimerId> timer{};
  };

  void end(Entry entry, std::exception_ptr error);

  Reactor& reactor_;
  std::map<uint64_t, Entry> entries_;
  uint64_t next_ = 0;
};

}  // namespace topoopt
