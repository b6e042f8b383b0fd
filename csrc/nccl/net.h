// A rank as NCCL's network: connections between any two ranks over one endpoint.
//
// Every connection is a channel of the endpoint. Messages of one tag form one flow; NCCL does not
// require an order among tags. A receive is posted as soon as NCCL requests it, with its size as
// the maximum.
//
// NCCL's threads wait here only to close something; test() reports completed requests.

#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "nccl/abi.h"
#include "nccl/cables.h"
#include "nccl/own_messages.h"
#include "nccl/wiring.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt::nccl {

class Comm;

// One isend or irecv; its connection outlives it.
struct NetRequest {
  std::shared_ptr<Comm> comm;
  bool used = false;
  int count = 0;  // of buffers
  std::array<size_t, kMostGrouped> bytes{};
  std::atomic<int> left{0};
  std::atomic<bool> bad{false};
};

// One end of a connection. NCCL uses it from one thread at a time.
class Comm : public std::enable_shared_from_this<Comm> {
 public:
  Comm(int peer, uint32_t channel, bool sends) : peer(peer), channel(channel), sends(sends) {}

  NetRequest* take(int count);
  // Returns whether nothing is in flight.
  bool idle() const;
  // On a connection of a rank with itself, each end has a number; returns the sending end's.
  uint32_t ownChannel() const { return sends ? channel : channel - 1; }
  void forgetRequests();
  void fail(const std::string& why);
  std::string why() const;

  const int peer;
  const uint32_t channel;
  const bool sends;
  std::atomic<bool> accepted{false};
  std::atomic<bool> failed{false};
  bool opened = false;         // reactor thread
  uint64_t messages = 0;       // reactor thread: sent or received
  uint64_t posted = 0;         // reactor thread: receives
  uint64_t most = UINT64_MAX;  // reactor thread: sent by the other end, once it has closed

 private:
  static constexpr size_t kRequests = 64;  // twice NCCL's requests in flight

  std::array<NetRequest, kRequests> requests_{};
  mutable std::mutex mutex_;
  std::string why_{};
};

struct Listener {
  uint32_t number;
  std::deque<std::shared_ptr<Comm>> waiting;  // guarded by the Net's mutex
};

// The listening end's address, which NCCL's own network passes to the other end.
struct Handle {
  uint64_t magic;
  uint64_t job;
  int32_t rank;
  uint32_t listener;
  void* connecting;  // dialling end's state between calls of connect
};
static_assert(sizeof(Handle) <= kHandleBytes);

struct NetLimits {
  std::chrono::milliseconds connect;  // for all cables, from the start
  std::chrono::milliseconds silence;  // of a rank, before its connections fail
};

class Net {
 public:
  // Starts connecting. Throws std::runtime_error for an invalid wiring.
  Net(Wiring wiring, int rank, const NetLimits& limits);
  // Notifies the other ranks if connections are still open.
  ~Net();

  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;

  int rank() const { return rank_; }
  int server() const { return server_; }
  uint64_t job() const { return job_; }
  const Wiring& wiring() const { return cables_.wiring(); }
  double rateGbps() const { return rate_gbps_; }

  Listener* listen(Handle& handle);
  // nullptr in `comm`: retry later.
  Result connect(Handle& handle, Comm*& comm);
  Result accept(Listener& listener, Comm*& comm);
  Result send(Comm& comm, const void* data, size_t bytes, int tag, NetRequest*& request);
  Result receive(Comm& comm, int count, void** data, const size_t* bytes, const int* tags,
                 NetRequest*& request);
  Result test(NetRequest& request, bool& done, int* bytes);
  void close(Comm& comm);
  void close(Listener& listener);

  // `count` consecutive channels that no other rank of the job uses.
  Result makeChannels(uint32_t count, uint32_t& first);
  // Blocks until all cables are connected; nullptr after a failure.
  std::shared_ptr<Endpoint> awaitEndpoint();

  // The last error of the calling thread.
  static const std::string& lastError();
  static Result failed(Result result, const std::string& why);

 private:
  enum class Kind : uint32_t { kConnect = 1, kAccepted, kRefused, kSenderClosed, kReceiverClosed };
  struct Control {
    Kind kind;
    uint32_t channel;
    uint64_t number;  // of the listener or of messages
  };

  void begin(const NetLimits& limits);
  void say(int peer, const Control& control);
  void onControl(int peer, const Control& control);
  void onConnect(int peer, const Control& control);
  void open(const std::shared_ptr<Comm>& comm);
  Result connectToItself(Handle& handle, Comm*& comm);
  void closeOwn(Comm& comm);
  void drop(uint32_t channel);
  void checkEnd(Comm& comm);
  Result nextChannels(uint32_t count, uint32_t& first);
  std::shared_ptr<Comm> commOf(int peer, uint32_t channel);
  void failAll(const std::string& why);

  const int rank_;
  const int server_;
  const int ranks_;
  const uint64_t job_;
  double rate_gbps_ = 0;
  Cables cables_;
  std::shared_ptr<Endpoint> endpoint_;
  std::atomic<bool> ready_{false};
  std::atomic<bool> broken_{false};
  std::mutex mutex_;
  std::condition_variable begun_;  // ready_ or broken_ is set
  std::string why_;
  uint32_t next_listener_ = 1;
  uint32_t next_channel_ = 1;
  std::map<uint32_t, std::unique_ptr<Listener>> listeners_;
  std::map<uint32_t, std::shared_ptr<Comm>> comms_;  // by channel
  OwnMessages own_;                                  // reactor thread
  std::thread beginning_;
};

}  // namespace topoopt::nccl
