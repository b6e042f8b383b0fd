// Makes a running or failed job observable: a thread writes two small files of this rank. It writes
// the status once a second. It writes the flight recorder's dump when an operation or a group
// fails, at SIGUSR1, and when the request file changes.
//
// Both files (supervision_documents.h) are replaced atomically, with mode 0600.
//
// SIGUSR1 is handled only if its disposition was the default when the process's first supervisor
// started. A handler that the script installs later replaces this one.

#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backend/supervision/flight_recorder.h"
#include "backend/supervision/supervision_documents.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {

struct SupervisorConfig {
  SupervisedRank of;
  std::string dump_path;        // "": none
  bool dumps_failures = true;   // false: only on request
  std::string status_path;      // "": none
  bool warns_of_status = true;  // if it cannot be written
  // A dump is written when this file appears or changes; its text is the reason.
  std::string request_path;
  // Eventfds: the first one requests Python's stacks before every dump; the second one reports that
  // they are written.
  int stacks_fd = -1;
  int stacks_done_fd = -1;
  std::chrono::milliseconds interval{1000};     // between two status reports
  std::chrono::milliseconds dump_limit{15000};  // how long an error waits for its dump
};

class Supervisor {
 public:
  // Without `recorder` (nullptr) there are no dumps. Throws std::system_error.
  Supervisor(SupervisorConfig config, std::shared_ptr<FlightRecorder> recorder,
             std::shared_ptr<Endpoint> endpoint);
  ~Supervisor();

  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  const std::shared_ptr<FlightRecorder>& recorder() const { return recorder_; }

  // Any thread: reports a failure. The first one triggers a dump.
  void failed(const std::string& why);

  // Not on the reactor thread: waits, with a limit, for the dump requested by failed().
  void awaitDump();

  // Path of a failure's dumps, for error messages; "" if there are none.
  std::string whereDumpsAre() const;

  // Any thread: returns the content of a dump, without links; "" without a recorder.
  std::string recorded() const;

  // Writes requested dumps, removes the status and ends the thread. Not on that thread or the
  // reactor's.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;

  // The reactor thread's answer.
  struct Reading {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    Clock::time_point at;
    std::vector<LinkTraffic> links;
  };

  void loop();
  bool waitUntil(Clock::time_point when);
  void checkRequest();
  void writeDump(const std::string& why);
  void awaitStacks();
  void writeStatus();
  void readLinks();

  const SupervisorConfig config_;
  const std::shared_ptr<FlightRecorder> recorder_;
  const std::shared_ptr<Endpoint> endpoint_;
  const int wake_fd_;
  const bool takes_signal_;

  std::mutex mutex_;
  std::condition_variable dumped_;
  std::string failure_;        // reason; guarded by mutex_
  bool failure_seen_ = false;  // guarded by mutex_
  bool failure_dumped_ = false;
  bool stopping_ = false;

  // Used only by the thread.
  int64_t request_changed_ns_ = 0;
  std::shared_ptr<Reading> reading_;  // the requested one
  LinkReadings links_;
  Clock::time_point links_at_{};
  bool status_failed_ = false;

  std::mutex stop_mutex_;
  std::thread thread_;
};

}  // namespace topoopt
