// What a rank sends to itself: messages wait for their receives here, and are copied.
//
// The functions may only be called on the loop, which runs no callback of an end that is closed.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "transport/links/link.h"

namespace topoopt::nccl {

class OwnMessages {
 public:
  // `data` must stay until `done`, which follows when the message has been received.
  void send(uint32_t channel, int tag, const void* data, size_t bytes, Done done);
  // Takes the next message of the tag, of `capacity` bytes at most; `bytes` has how many it is
  // before `done` follows. A larger one fails here, and counts as received.
  void receive(uint32_t channel, int tag, void* data, size_t capacity, size_t* bytes, Done done);
  // Forgets the messages, or the receives, of a channel.
  void forget(uint32_t channel, bool sent);

 private:
  struct Sent {
    const void* data;
    size_t bytes;
    Done done;
  };
  struct Posted {
    void* data;
    size_t capacity;
    size_t* bytes;
    Done done;
  };
  struct Lane {
    std::deque<Sent> sent{};
    std::deque<Posted> posted{};
  };

  void match(Lane& lane);

  std::map<std::pair<uint32_t, int>, Lane> lanes_;  // by channel and tag
};

}  // namespace topoopt::nccl
