// Messages between endpoints, posted in random orders, and checked when they have arrived. What a
// message is sent from is overwritten as soon as the endpoint says that it is free.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "support/network.h"

namespace topoopt {

std::vector<std::byte> randomBytes(size_t count, TestRandom& random);
// As ==, in one call: element by element, the comparison takes most of a test under a sanitizer.
bool sameBytes(const std::vector<std::byte>& some, const std::vector<std::byte>& others);

// Owns the memory, so it must be made before the network (and go after it).
class Traffic {
 public:
  // The next message of its flow.
  void add(int source, int target, uint32_t channel, uint64_t stream, size_t bytes,
           TestRandom& random);

  // `count` messages between random ranks, of 0 to `max_bytes` bytes, on channels 0 and 1.
  void addRandom(int size, size_t count, size_t max_bytes, TestRandom& random);

  // Hands all sends and receives to the endpoints, those of a flow in order, all else at random.
  void start(Network& network, TestRandom& random) { start(network, random, true, true); }
  void startSends(Network& network, TestRandom& random) { start(network, random, true, false); }
  void startReceives(Network& network, TestRandom& random) { start(network, random, false, true); }

  // Waits for everything; fails the test if something is missing, an error, or has wrong bytes.
  void check();
  // What this rank still has to wait for: all its sends and receives.
  void waitFor(int rank);
  void waitForSends(int rank);

 private:
  struct Message {
    FlowId flow;  // peer: the target
    int source;
    std::vector<std::byte> data;
    std::vector<std::byte> arrived;
    std::vector<std::byte> sent_from = data;
    Outcome sent{};
    Outcome received{};

    Done sentDone();
    std::string text() const;
  };
  void start(Network& network, TestRandom& random, bool sends, bool receives);

  std::deque<Message> messages_;
};

}  // namespace topoopt
