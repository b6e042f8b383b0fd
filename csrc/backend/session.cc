#include "backend/session.h"

#include <utility>

namespace topoopt {

Session::Session(EndpointConfig config, std::function<void(const std::string&)> closed)
    : endpoint_(std::make_shared<Endpoint>(std::move(config))),
      pool_(std::make_shared<CompletionPool>()),
      on_closed_(std::move(closed)) {}

Session::~Session() { endpoint_->stop(); }

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

void Session::groupClosed(std::chrono::milliseconds limit) {
  {
    std::lock_guard lock(mutex_);
    if (--open_groups_ > 0) return;
  }
  if (!beginClosing()) return;
  const std::string why = endpoint_->leave(limit);
  on_closed_(why);
  endpoint_->stop();
  pool_->stop();
}

void Session::fail(const std::string& why) {
  if (!beginClosing()) return;
  endpoint_->fail(why);
  on_closed_(why);
  endpoint_->stop();
  pool_->stop();
}

}  // namespace topoopt
