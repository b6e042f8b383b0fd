#include "collectives/link_group.h"

#include <bit>
#include <cstdio>
#include <utility>

#include "common/errors.h"
#include "common/log.h"

namespace topoopt {
namespace {

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g ms", seconds * 1e3);
  return text;
}

}  // namespace

LinkGroup::LinkGroup(std::shared_ptr<Endpoint> endpoint, GroupConfig config)
    : Group(std::move(endpoint), std::move(config)),
      schedules_(GroupLayout(size(), config_.rings, config_.servers, config_.hops), config_.rank,
                 config_.cost, algorithmNamed(config_.algorithm)),
      operation_(*endpoint_, config_.channel, config_.ranks,
                 [this](std::exception_ptr error) { onOperationDone(error); }),
      scratch_(endpoint_->reactor(), config_.scratch_idle) {}

uint64_t LinkGroup::sequenceNumber() const {
  std::lock_guard lock(mutex_);
  return called_;
}

void LinkGroup::submit(CollectiveRequest request, const CallTerms& terms, Done done) {
  // No member has the maximum of all bytes before every member has sent one.
  if (request.shape.collective == Collective::kBarrier) request.buffers.input = &barrier_byte_;
  std::unique_lock lock(mutex_);
  const uint64_t number = called_++;
  if (error_) {
    // The reactor may have stopped, and then runs at once what is posted: not under the lock.
    const std::exception_ptr error = error_;
    lock.unlock();
    return endpoint_->reactor().post([done = std::move(done), error] { done(error); });
  }
  auto prepared = schedules_.get(request.shape);
  if (logs(LogLevel::kInfo)) logChoice(request, *prepared);
  const uint32_t fingerprint = fingerprintOf(request.name, number, request.arguments);
  const bool first = submitted_.empty();
  submitted_.push_back(
      {std::move(request.name),
       number,
       terms.limit,
       {std::move(prepared), request.buffers, nullptr, request.type, request.op, fingerprint},
       std::move(done)});
  lock.unlock();
  // The caller that finds the list empty wakes the reactor, for all that come before it looks. It
  // has run what was posted before the group can go (shutdown).
  if (first) endpoint_->reactor().post([this] { takeSubmitted(); });
}

void LinkGroup::takeSubmitted() {
  std::deque<Pending> submitted;
  {
    std::lock_guard lock(mutex_);
    submitted.swap(submitted_);
  }
  if (const auto error = this->error()) {
    for (Pending& pending : submitted) pending.done(error);
    return;
  }
  for (Pending& pending : submitted) queue_.push_back(std::move(pending));
  startNext();
}

// An operation may be over when start() returns; one loop serves them all, however many wait.
void LinkGroup::startNext() {
  if (std::exchange(starting_, true)) return;
  while (!running_ && !queue_.empty()) {
    running_ = true;
    Pending& next = queue_.front();
    next.setup.scratch = scratch_.reserve(next.setup.prepared->schedule.scratch_bytes);
    if (next.limit.count() > 0) deadline_ = Reactor::Clock::now() + next.limit;
    watchDeadline();
    operation_.start(std::move(next.setup));
  }
  starting_ = false;
}

void LinkGroup::onOperationDone(std::exception_ptr error) {
  if (error) return failSoon(error);  // not at once: this may be deep inside the endpoint
  deadline_.reset();
  scratch_.finished();
  over_.push_back(std::move(queue_.front().done));
  queue_.pop_front();
  running_ = false;
  startNext();  // first, so that the network does not wait for the callback
  callDone();
}

// In the order of the operations, also if one is over while the callback of another runs.
void LinkGroup::callDone() {
  if (std::exchange(calling_done_, true)) return;
  while (!over_.empty()) {
    const Done done = std::move(over_.front());
    over_.pop_front();
    done(nullptr);
  }
  calling_done_ = false;
}

// One timer serves many operations: it looks whether the one that runs when it fires is late.
void LinkGroup::watchDeadline() {
  if (!deadline_ || (timer_ && timer_->first <= *deadline_)) return;
  if (timer_) endpoint_->reactor().cancel(*timer_);
  timer_ = endpoint_->reactor().at(*deadline_, [this] {
    timer_.reset();
    if (deadline_ && Reactor::Clock::now() >= *deadline_) return onTimeout();
    watchDeadline();
  });
}

void LinkGroup::onTimeout() {
  const Pending& late = queue_.front();
  const std::string why =
      timedOutText(late.name, late.number, config_.name, late.limit, operation_.waitingFor());
  fail(std::make_exception_ptr(TimeoutError(why)), Notify::kAllRanks);
}

// The channel is closed first: from then on nothing touches the memory of pending operations.
void LinkGroup::endCollectives(std::exception_ptr error, Notify notify) {
  if (timer_) endpoint_->reactor().cancel(*std::exchange(timer_, std::nullopt));
  closeChannel(whatFailed(error), notify);
  operation_.cancel();
  running_ = false;
  deadline_.reset();
  scratch_.release();
  callDone();
  for (Pending& pending : std::exchange(queue_, {})) pending.done(error);
}

// ---- what is logged and counted ----------------------------------------------------------------

// At level info, the first of each size class on the group's first member; at debug, every call.
void LinkGroup::logChoice(const CollectiveRequest& call, const PreparedSchedule& prepared) {
  const Request request = ScheduleCache::requestOf(call.shape);
  const int size_class = static_cast<int>(std::bit_width(request.bytes));
  const bool first =
      config_.rank == 0 && logged_.insert({call.name, prepared.algorithm, size_class}).second;
  if (!first && !logs(LogLevel::kDebug)) return;
  std::string text = "group " + config_.name + ": " + call.name + " of " +
                     std::to_string(request.bytes) + " bytes: " + nameOf(prepared.algorithm);
  const CostEstimate& estimate = schedules_.estimate();
  std::string others;
  for (const Algorithm algorithm : estimate.candidates(request)) {
    if (algorithm == Algorithm::kDirect) continue;
    others += (others.empty() ? " (estimates: " : ", ") + std::string(nameOf(algorithm)) + " " +
              milliseconds(estimate.seconds(request, algorithm));
  }
  logLine(first ? LogLevel::kInfo : LogLevel::kDebug, text + others + (others.empty() ? "" : ")"));
}

std::vector<PartCounters> LinkGroup::partCounters() {
  std::vector<PartCounters> parts;
  endpoint_->reactor().run([&] { parts = operation_.counters(); });
  return parts;
}

size_t LinkGroup::scratchBytes() {
  size_t bytes = 0;
  endpoint_->reactor().run([&] { bytes = scratch_.bytes(); });
  return bytes;
}

}  // namespace topoopt
