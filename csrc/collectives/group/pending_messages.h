// The point-to-point messages of a group that are pending, each with its time limit.
//
// A message is pending from add() until finish() or failAll(), which call its `done` once and stop
// its timer. So a message that find() returns is not done, and one that it does not know never
// calls back again. Reactor thread only.

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

  // Returns the number of the message in the group. Calls `late` with it if the limit expires.
  uint64_t add(Message message, std::function<void(uint64_t number)> late);
  const Message* find(uint64_t number) const;  // nullptr: no longer pending
  void finish(uint64_t number);                // it must be pending
  void failAll(std::exception_ptr error);
  // Texts of the oldest messages, at most `most`.
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
