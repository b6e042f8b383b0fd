// Several endpoints in one process, joined by socket pairs in place of cables.

#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/seed.h"
#include "support/test_limits.h"
#include "transport/descriptor.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {

// What became of one operation. `done()` may be called from any thread, once.
class Outcome {
 public:
  Done done();

  // Waits at most kWaitLimit; a test that waits longer fails, with `what` as what was pending.
  // Returns "" on success, else the error's kind and message.
  std::string wait(const std::string& what);
  bool over() const {
    return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

 private:
  struct State {
    std::promise<std::exception_ptr> promise;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::shared_future<std::exception_ptr> future_ = state_->promise.get_future().share();
};

// "PeerLostError: ..." and so on; "" for no error.
std::string describe(std::exception_ptr error);

// Fails unless it comes true in time.
template <typename Condition>
void eventually(const char* what, const Condition& condition) {
  const auto limit = std::chrono::steady_clock::now() + kWaitLimit;
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), limit) << what;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Both ends of a TCP connection, as between two machines; `address` of this one in host order.
std::pair<int, int> connectedPair(uint32_t address = INADDR_LOOPBACK);
// Whether the kernel counts what a connection has sent and acknowledged (TCP_INFO). Cables that are
// silent or slow are noticed by these counters only. QEMU's user mode does not pass them on.
bool kernelCountsConnections();
// Whether the kernel sends without copy (SO_ZEROCOPY). QEMU's user mode does not.
bool kernelSendsWithoutCopy();
// Of which the kernel may hold as much as of a fast link's.
std::pair<int, int> fastPair();

struct Cable {
  int a;
  int b;
  bool duplex = true;  // else only a sends to b
  LinkKind kind = LinkKind::kSocket;
};

std::vector<Cable> ringOf(int size);
std::vector<Cable> simplexRingOf(int size);
std::vector<Cable> lineOf(int size);
std::vector<Cable> starOf(int size);  // rank 0 is the centre
std::vector<Cable> completeOf(int size);
// The same cables, each of a random kind (a simplex one cannot be shared memory).
std::vector<Cable> ofRandomKinds(std::vector<Cable> cables, TestRandom& random);

// The networks that most tests go through.
struct Shape {
  const char* name;
  std::vector<Cable> cables;
  int size;
};
std::vector<Shape> shapes();

// What moves the bytes of the cables that are sockets; by threads and without copy, fast ones.
enum class Moved { kPlain, kEncrypted, kByThreads, kWithoutCopy, kByThreadsWithoutCopy };
const char* nameOf(Moved moved);
inline bool byThreads(Moved moved) {
  return moved == Moved::kByThreads || moved == Moved::kByThreadsWithoutCopy;
}
inline bool withoutCopy(Moved moved) {
  return moved == Moved::kWithoutCopy || moved == Moved::kByThreadsWithoutCopy;
}

struct NetworkOptions {
  int size = 2;
  std::vector<Cable> cables;
  size_t window_bytes = 4 << 20;
  size_t routes = 1;      // at most, per pair
  int socket_bytes = 0;   // of each socket's send buffer; 0 for the system's default
  bool recovers = false;  // cables are TCP connections, and may be lost and replaced
  std::chrono::milliseconds silence_limit = kWaitLimit;
  std::chrono::milliseconds cable_tick = EndpointConfig{}.cable_tick;
  Moved moved = Moved::kPlain;
  size_t workers = 0;  // of each endpoint
};

// What can become of a cable that recovers.
enum class Fault {
  kClosed,     // both ends read their end
  kHalf,       // one end reads its end
  kSilent,     // nothing passes any more, and nobody is notified
  kOneWay,     // nothing arrives at the second end
  kOtherWay,   // nothing arrives at the first end
  kCorrupted,  // bytes arrive that are no frame; only while the cable is idle
};

class Network {
 public:
  // Pairs get their shortest paths as routes, with random weights.
  Network(const NetworkOptions& options, TestRandom& random);
  ~Network();

  int size() const { return static_cast<int>(endpoints_.size()); }
  const std::shared_ptr<Endpoint>& at(int rank) const { return endpoints_[rank]; }
  const std::vector<plan::Route>& routes() const { return routes_; }

  // Runs `function` on the loop of the rank and returns when it has run.
  void on(int rank, const std::function<void(Endpoint&)>& function);

  // The cable breaks, for both ends at once. This and write() are for cables that are still open.
  void cut(size_t cable);
  // Bytes that are no frame arrive at the first end of the cable, a socket.
  void write(size_t cable, const void* data, size_t bytes);

  // Of a network that recovers.
  void hurt(size_t cable, Fault fault);
  // Whether the ends of the cable have lost its last connection.
  bool lost(size_t cable);
  // Whether both ends use it, and all ranks know that: a rank that still takes it for lost takes
  // the rank behind it for gone when the next cable of that one is lost.
  bool up(size_t cable);
  // A new connection, for both ends.
  void replace(size_t cable);
  // The same of a cable that is in use and shall stay so; `first`: the end that gets it first.
  // Returns when the old connection has ended and both ends use the new one.
  void move(size_t cable, int first);

  // All ranks leave at the same time; one entry per rank, "" for good order.
  std::vector<std::string> leaveAll(std::chrono::milliseconds limit);

 private:
  std::vector<std::shared_ptr<Endpoint>> endpoints_;
  std::vector<plan::Route> routes_;
  // Of each cable: the descriptor of its second end, which its endpoint owns.
  struct Path {
    int far_fd = -1;
    Descriptor near{};  // copies of both descriptors, of a cable that recovers
    Descriptor far{};
  };
  // Of the next connection; "" where cables are not encrypted.
  std::string nextKey();
  Path lay(const Cable& cable, const NetworkOptions& options, LinkSpec& near, LinkSpec& far);

  std::vector<Path> paths_;
  std::vector<Cable> cables_;
  const bool encrypted_;
  const bool fast_;
  char keys_ = 0;
};

// The channel of a group without the group: opened on all ranks, remembers how it failed.
class Channel {
 public:
  Channel(Network& network, uint32_t number);

  uint32_t number() const { return number_; }
  // The error that the rank was notified of.
  std::string failure(int rank);

 private:
  const uint32_t number_;
  std::vector<Outcome> outcomes_;
};

}  // namespace topoopt
