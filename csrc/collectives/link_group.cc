#include "collectives/link_group.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <utility>

#include "common/errors.h"
#include "common/log.h"

namespace topoopt {
namespace {

// In which a member that has asked the others what they are in fails the group with the answers.
constexpr std::chrono::seconds kSurveyLimit{1};
constexpr size_t kMostNamed = 8;  // ranks in the text of a timeout

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
  // Members that take different algorithms could not work together either.
  request.called = hashed(request.called,
                          mixBits(request.called.hash, static_cast<uint64_t>(prepared->algorithm)));
  remember(number, request);
  const uint64_t fingerprint = laneFingerprint(number, request.called.hash);
  const bool first = submitted_.empty();
  submitted_.push_back(
      {request.called,
       number,
       terms.limit,
       {std::move(prepared), request.buffers, nullptr, request.type, request.op, fingerprint},
       std::move(done),
       std::move(request.shape.received)});
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
    if (!progress_timer_) watchProgress();
    operation_.start(std::move(next.setup));
  }
  starting_ = false;
}

void LinkGroup::onOperationDone(std::exception_ptr error) {
  // Not at once: this may be deep inside the endpoint.
  if (error) {
    return endpoint_->reactor().post([self = shared_from_this(), this, error] {
      try {
        std::rethrow_exception(error);
      } catch (const MessageMismatch& mismatch) {
        onMismatch(mismatch);
      } catch (const std::exception&) {
        fail(error, Notify::kAllRanks);
      }
    });
  }
  endpoint_->finishCall(config_.channel, queue_.front().number);
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

// All members are asked what they are in. Another member whose time is over, too, leaves that to
// the one that has asked first.
void LinkGroup::onTimeout() {
  const auto now = Reactor::Clock::now();
  if (asked_ && now - *asked_ < kSurveyLimit) {
    deadline_ = *asked_ + kSurveyLimit;
    asked_.reset();
    return watchDeadline();
  }
  deadline_.reset();
  std::vector<int> others = config_.ranks;
  std::erase(others, config_.ranks[config_.rank]);
  const uint64_t number = queue_.front().number;
  surveys_.ask(others, [this, number](const StateSurveys::Answers& answers) {
    if (!running_ || queue_.front().number != number) return;  // it was over in the meantime
    const std::string why = timeoutText(queue_.front(), answers);
    fail(std::make_exception_ptr(TimeoutError(why)), Notify::kAllRanks);
  });
}

// Who has not called it is missing; if all have, those that this member waits for are.
std::string LinkGroup::timeoutText(const Pending& late,
                                   const StateSurveys::Answers& answers) const {
  std::vector<std::string> missing;
  for (const auto& [rank, answer] : answers) {
    if (answer && answer->called > late.number) continue;
    missing.push_back("rank " + std::to_string(rank) + " " +
                      (answer ? "has not called it: it " + answer->state : "does not answer"));
  }
  if (missing.empty()) {
    return timedOutText(late.called.name, late.number, config_.name, late.limit,
                        operation_.waitingFor());
  }
  std::string why = timedOutText(late.called.name, late.number, config_.name, late.limit, {});
  for (size_t i = 0; i < std::min(missing.size(), kMostNamed); ++i) {
    why += (i == 0 ? ": " : "; ") + missing[i];
  }
  if (missing.size() > kMostNamed) {
    why += "; and " + std::to_string(missing.size() - kMostNamed) + " more ranks";
  }
  return why;
}

// The channel is closed first: from then on nothing touches the memory of pending operations.
void LinkGroup::endCollectives(std::exception_ptr error, Notify notify) {
  for (auto* timer : {&timer_, &progress_timer_, &dispute_timer_}) {
    if (*timer) endpoint_->reactor().cancel(*std::exchange(*timer, std::nullopt));
  }
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
  const bool first = config_.rank == 0 &&
                     logged_.insert({call.called.name, prepared.algorithm, size_class}).second;
  if (!first && !logs(LogLevel::kDebug)) return;
  std::string text = "group " + config_.name + ": " + nameOf(call.called.name) + " of " +
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
