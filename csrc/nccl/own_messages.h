// Messages of a rank to itself: they wait here for their receives, and are copied.
//
// Reactor thread only, which runs no callback of a closed end.

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
  // `data` must stay valid until `done`, which follows the receive.
  void send(uint32_t channel, int tag, const void* data, size_t bytes, Done done);
  // Receives the next message of the tag, at most `capacity` bytes; sets `bytes` before `done`. A
  // larger message fails here, and counts as received.
  void receive(uint32_t channel, int tag, void* data, size_t capacity, size_t* bytes, Done done);
  // Drops the messages or receives of a channel.
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
