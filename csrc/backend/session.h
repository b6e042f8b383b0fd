// What the process groups of this process share: the endpoint, and the threads that complete
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
  // `closed` is called once, after the links have come to rest and before they close, with why the
  // session could not end in good order, or "". Without `supervision` nobody watches. `recorder`
  // may be nullptr, or serve several sessions of this process.
  Session(EndpointConfig config, std::function<void(const std::string&)> closed,
          std::shared_ptr<FlightRecorder> recorder = nullptr,
          std::optional<SupervisorConfig> supervision = std::nullopt);
  ~Session();

  const std::shared_ptr<Endpoint>& endpoint() const { return endpoint_; }
  const std::shared_ptr<CompletionPool>& pool() const { return pool_; }
  // Whether links register memory with what carries them, which not all memory allows.
  bool registersMemory() const { return registers_memory_; }
  // nullptr: nobody watches.
  const std::shared_ptr<Supervisor>& supervisor() const { return supervisor_; }

  void groupOpened();
  // Not on the reactor thread, and without the GIL.
  void groupClosed(std::chrono::milliseconds limit);

  // As groupClosed, but the last one to go waits for no other rank: all are notified of `why`.
  void groupAborted(const std::string& why);

  // Until release(), as if one group more were open: for ranks that are in none yet, and where the
  // default process group, which outlives all others, is another backend's.
  void hold() { groupOpened(); }
  void release(std::chrono::milliseconds limit) { groupClosed(limit); }

  // Notifies all ranks that this one has failed, and closes at once.
  void fail(const std::string& why);

  bool closed() const;

  // Whether this process was forked from the one that opened the session: it has the memory, but
  // not the threads.
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
