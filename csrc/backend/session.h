// State shared by the process groups of this process: the endpoint, and the threads that complete
// futures. The last group to shut down makes the shutdown handshake with the other ranks.

#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "backend/supervision/supervisor.h"
#include "backend/work/completion_pool.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {

class Session {
 public:
  // `closed` is called once, when links are idle and before they close, with the failure of the
  // session or "". `supervision` is optional. `recorder` may be nullptr, or shared with other
  // sessions.
  Session(EndpointConfig config, std::function<void(const std::string&)> closed,
          std::shared_ptr<FlightRecorder> recorder = nullptr,
          std::optional<SupervisorConfig> supervision = std::nullopt);
  ~Session();

  const std::shared_ptr<Endpoint>& endpoint() const { return endpoint_; }
  const std::shared_ptr<CompletionPool>& pool() const { return pool_; }
  // Returns whether links register memory with their hardware, which some memory does not allow.
  bool registersMemory() const { return registers_memory_; }
  // nullptr: no supervision.
  const std::shared_ptr<Supervisor>& supervisor() const { return supervisor_; }

  void groupOpened();
  // Not on the reactor thread, and without the GIL.
  void groupClosed(std::chrono::milliseconds limit);

  // Like groupClosed, but the last group does not wait for other ranks: they are notified of `why`.
  void groupAborted(const std::string& why);

  // Keeps the session open until release(): for ranks without groups, and for a default process
  // group of another backend, which outlives the others.
  void hold() { groupOpened(); }
  void release(std::chrono::milliseconds limit) { groupClosed(limit); }

  // Notifies all ranks of a failure, and closes at once.
  void fail(const std::string& why);

  bool closed() const;

  // Returns whether this process was forked from the session's: it has the memory, but no threads.
  bool inherited() const;

 private:
  bool lastGroupGone();
  bool beginClosing();
  void close(const std::string& why);

  const bool registers_memory_;
  const std::shared_ptr<Endpoint> endpoint_;
  const std::shared_ptr<CompletionPool> pool_;
  const std::shared_ptr<Supervisor> supervisor_;
  const std::function<void(const std::string&)> on_closed_;
  const unsigned forks_when_opened_;
  mutable std::mutex mutex_;
  int open_groups_ = 0;
  bool closed_ = false;
};

}  // namespace topoopt
