// What others can see of a job while it runs, and after it has failed: a thread that writes two
// small files of this rank. The status, once a second; the dump of the flight recorder, when an
// operation or a group fails, at SIGUSR1, and when the file of requests changes.
//
// Both (supervision_documents.h) are replaced as a whole, and have mode 0600.
//
// SIGUSR1 is only taken where nobody else has: its disposition is the default one when the first
// supervisor of a process starts, and a handler that the script installs later replaces ours.

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
  std::string dump_path;        // "": none is written
  bool dumps_failures = true;   // and not only when it is asked for
  std::string status_path;      // "": none is written
  bool warns_of_status = true;  // where it cannot be written
  // A dump is written when this file appears or changes; its text says what for.
  std::string request_path;
  // Eventfds: the first is raised before every dump, for the thread that writes Python's stacks; it
  // raises the second when they are written.
  int stacks_fd = -1;
  int stacks_done_fd = -1;
  std::chrono::milliseconds interval{1000};     // between two states
  std::chrono::milliseconds dump_limit{15000};  // how long an error waits for its dump
};

class Supervisor {
 public:
  // `recorder` may be nullptr: then there are no dumps. Throws std::system_error.
  Supervisor(SupervisorConfig config, std::shared_ptr<FlightRecorder> recorder,
             std::shared_ptr<Endpoint> endpoint);
  ~Supervisor();  // stops

  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  const std::shared_ptr<FlightRecorder>& recorder() const { return recorder_; }

  // Any thread: something has failed. The first time, a dump is written.
  void failed(const std::string& why);

  // Not on the reactor thread: waits, but not for ever, until the dump that failed() has asked for
  // is written.
  void awaitDump();

  // Where the dumps of a failure are, for its message; "" if there are none.
  std::string whereDumpsAre() const;

  // Any thread: what a dump would be now, without the links; "" if nothing is recorded.
  std::string recorded() const;

  // Writes what was asked for, removes the status and ends the thread. Not on that thread, and
  // neither on the reactor's.
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
  std::string failure_;        // why; guarded by mutex_
  bool failure_seen_ = false;  // guarded by mutex_
  bool failure_dumped_ = false;
  bool stopping_ = false;

  // The thread's own.
  int64_t request_changed_ns_ = 0;
  std::shared_ptr<Reading> reading_;  // that was asked for
  LinkReadings links_;
  Clock::time_point links_at_{};
  bool status_failed_ = false;

  std::mutex stop_mutex_;
  std::thread thread_;
};

}  // namespace topoopt
