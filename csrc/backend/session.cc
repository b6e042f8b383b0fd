#include "backend/session.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

namespace topoopt {
namespace {

// Number of forks since the process that loaded the library.
std::atomic<unsigned> forks{0};

unsigned countForks() {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  return forks;
}

}  // namespace

Session::Session(EndpointConfig config, std::function<void(const std::string&)> closed,
                 std::shared_ptr<FlightRecorder> recorder,
                 std::optional<SupervisorConfig> supervision)
    : registers_memory_(
          std::any_of(config.links.begin(), config.links.end(),
                      [](const LinkSpec& link) { return link.kind == LinkKind::kFabric; })),
      endpoint_(std::make_shared<Endpoint>(std::move(config))),
      pool_(std::make_shared<CompletionPool>()),
      supervisor_(supervision ? std::make_shared<Supervisor>(std::move(*supervision),
                                                             std::move(recorder), endpoint_)
                              : nullptr),
      on_closed_(std::move(closed)),
      forks_when_opened_(countForks()) {}

Session::~Session() {
  if (inherited()) {
    // A forked process has no threads to stop; leak the copied state.
    new std::shared_ptr<Endpoint>(endpoint_);
    new std::shared_ptr<CompletionPool>(pool_);
    new std::shared_ptr<Supervisor>(supervisor_);
    return;
  }
  endpoint_->stop();
  if (supervisor_) supervisor_->stop();
}

bool Session::inherited() const { return forks != forks_when_opened_; }

void Session::groupOpened() {
  std::lock_guard lock(mutex_);
  ++open_groups_;
}

bool Session::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

bool Session::beginClosing() {
  std::lock_guard lock(mutex_);
  return !std::exchange(closed_, true);
}

// Returns whether it was the last one; the caller then closes the session.
bool Session::lastGroupGone() {
  {
    std::lock_guard lock(mutex_);
    if (--open_groups_ > 0) return false;
  }
  return beginClosing();
}

void Session::close(const std::string& why) {
  if (supervisor_) supervisor_->stop();
  std::exception_ptr failed;
  try {
    on_closed_(why);
  } catch (...) {  // an unwritten report must not keep links and threads alive
    failed = std::current_exception();
  }
  endpoint_->stop();
  pool_->stop();
  if (failed) std::rethrow_exception(failed);
}

void Session::groupClosed(std::chrono::milliseconds limit) {
  if (lastGroupGone()) close(endpoint_->leave(limit));
}

void Session::groupAborted(const std::string& why) {
  if (!lastGroupGone()) return;
  endpoint_->fail(why);
  close("");  // requested by this rank
}

void Session::fail(const std::string& why) {
  if (!beginClosing()) return;
  endpoint_->fail(why);
  close(why);
}

}  // namespace topoopt
