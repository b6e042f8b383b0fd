#include "collectives/links/link_group.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <utility>

#include "common/errors.h"
#include "common/log.h"

namespace topoopt {
namespace {

// How long a member waits for the others' state before it fails the group.
constexpr std::chrono::seconds kSurveyLimit{1};
constexpr size_t kMostNamed = 8;  // ranks in a timeout message
// For collectives whose data lands while they run.
constexpr size_t kLeastLandingBytes = 16 << 20;
constexpr size_t kMostLandingBytes = 256 << 20;

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g ms", seconds * 1e3);
  return text;
}

}  // namespace

LinkGroup::LinkGroup(std::shared_ptr<Endpoint> endpoint, GroupConfig config)
    : Group(std::move(endpoint), std::move(config)),
      agreement_(
          *endpoint_, config_.channel, config_.ranks, config_.rank,
          {.next = [this] { return next_; },
           .decided = [this](uint64_t version, uint64_t first,
                             CollectivePaths paths) { usePaths(version, first, std::move(paths)); },
           .released = [this] { startNext(); }}),
      operation_(*endpoint_, config_.channel, config_.ranks,
                 [this](std::exception_ptr error) { onOperationDone(error); }),
      sizes_(*endpoint_, config_.channel, config_.ranks, config_.rank, config_.cost),
      scratch_(endpoint_->reactor(), config_.scratch_idle) {
  GroupLayout layout(size(), config_.rings, config_.servers, config_.hops, config_.grid);
  layout.setLinkSets(linkSets(layout.leaders(), true));
  layout.setRouteLoads(routeLoads(layout.leaders()));
  proposed_ = {config_.rings, layout.linkSets()};
  versions_[0].schedules = std::make_shared<ScheduleCache>(
      std::move(layout), config_.rank, config_.cost, algorithmNamed(config_.algorithm));
  warnOfAlgorithm();
}

uint64_t LinkGroup::sequenceNumber() const {
  std::lock_guard lock(mutex_);
  return called_;
}

size_t LinkGroup::landingBytes() {
  // While circuits move, a collective is several operations, and its data lands before the first.
  if (size() == 1 || config_.circuits) return 0;
  std::lock_guard lock(mutex_);
  if (!landing_bytes_) {
    landing_bytes_ = versions_.at(0).schedules->busyBytes(kLeastLandingBytes, kMostLandingBytes);
  }
  return *landing_bytes_;
}

void LinkGroup::submit(CollectiveRequest request, const CallTerms& terms, Done done) {
  // Until every member has sent a one, the maximum of all bytes is 0.
  if (request.shape.collective == Collective::kBarrier) request.buffers.input = &barrier_byte_;
  std::unique_lock lock(mutex_);
  const uint64_t number = called_++;
  if (error_) {
    // A stopped reactor runs posted functions at once, so do not post under the lock.
    const std::exception_ptr error = error_;
    lock.unlock();
    return endpoint_->reactor().post([done = std::move(done), error] { done(error); });
  }
  remember(number, request);
  Pending pending{.called = request.called,
                  .number = number,
                  .limit = terms.limit,
                  .setup = {nullptr, request.buffers, nullptr, request.type, request.op},
                  .done = std::move(done),
                  .shape = std::move(request.shape)};
  pending.setup.landing = terms.landing;
  prepare(pending);
  const bool first = submitted_.empty();
  submitted_.push_back(std::move(pending));
  lock.unlock();
  // The caller that finds the list empty wakes the reactor for all later ones. The posted function
  // runs before the group can be destroyed (shutdown).
  if (first) endpoint_->reactor().post([this] { takeSubmitted(); });
}

// Under the lock. The hash in frames also covers algorithm and rings; members compare calls without
// those.
void LinkGroup::prepare(Pending& pending) {
  pending.version = versionOf(pending.number);
  ScheduleCache& schedules = *versions_.at(pending.version).schedules;
  pending.setup.prepared = schedules.get(pending.shape);
  const Algorithm chosen = pending.setup.prepared->algorithm;
  if (config_.circuits && pending.shape.collective != Collective::kExchange) {
    pending.planned_s = schedules.estimate().seconds(requestOf(pending.shape), chosen);
  }
  if (logs(LogLevel::kInfo)) logChoice(pending, schedules);
  const auto algorithm = static_cast<uint64_t>(chosen);
  const Called with_choice =
      hashed(pending.called, mixBits(mixBits(pending.called.hash, pending.version), algorithm));
  pending.setup.fingerprint = laneFingerprint(pending.number, with_choice.hash);
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

// An operation may end inside start(), so a loop starts the next one rather than recursion.
void LinkGroup::startNext() {
  if (std::exchange(starting_, true)) return;
  while (!running_ && !queue_.empty() && !agreement_.holds()) {
    running_ = true;
    Pending& next = queue_.front();
    next_ = next.number + 1;
    beginOver(next);
    if (next.limit.count() > 0) deadline_ = Reactor::Clock::now() + next.limit;
    watchDeadline();
    if (!progress_timer_) watchProgress();
    if (asksForCircuits(next)) {
      askForCircuits();
    } else {
      startUnrequested();
    }
  }
  starting_ = false;
}

// When circuits lead to all members.
void LinkGroup::startUnrequested() {
  const CallName name = queue_.front().called.name;
  const bool exchanges = name == CallName::kAllToAll || name == CallName::kAllToAllSingle;
  const bool sizes = exchanges && !config_.planned_routes_only;
  if (!config_.circuits) return sizes ? exchangeSizes() : startOperation();
  unrequested_ = config_.circuits->begin({config_.servers.begin(), config_.servers.end()});
  // A failed group ends it, and gets no more callbacks.
  config_.circuits->start(*unrequested_,
                          [this, sizes] { sizes ? exchangeSizes() : startOperation(); });
}

void LinkGroup::endUnrequested() {
  if (unrequested_) config_.circuits->end(*std::exchange(unrequested_, {}));
}

void LinkGroup::startOperation() {
  Pending& pending = queue_.front();
  pending.setup.scratch = scratch_.reserve(pending.setup.prepared->schedule.scratch_bytes);
  const bool lands = pending.setup.landing != nullptr;
  operation_.start(std::move(pending.setup),
                   lands ? landingWake(pending.number) : std::function<void()>());
}

void LinkGroup::exchangeSizes() {
  const Pending& pending = queue_.front();
  // A failed group cancels the exchange.
  sizes_.begin(pending.number, pending.shape.counts, pending.shape.received,
               [this](SizeExchange::Ways ways) {
                 if (!ways.empty()) logRoutes();
                 queue_.front().setup.ways = std::move(ways);
                 startOperation();
               });
}

// Called on the copying thread, which may outlive the operation and the group.
std::function<void()> LinkGroup::landingWake(uint64_t number) {
  return [weak = weak_from_this(), number] {
    const auto group = std::static_pointer_cast<LinkGroup>(weak.lock());
    if (!group) return;
    group->endpoint_->reactor().post([group, number] {
      if (group->running_ && group->queue_.front().number == number) group->operation_.onLanded();
    });
  };
}

void LinkGroup::onOperationDone(std::exception_ptr error) {
  // Deferred, because the endpoint may be on the call stack.
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
  if (moving_) return endTopology();
  endFirst(nullptr);
}

// Removes the first operation of the queue; the group continues even after its failure.
void LinkGroup::endFirst(std::exception_ptr error) {
  const uint64_t number = queue_.front().number;
  endpoint_->finishCall(config_.channel, number);
  if (std::exchange(stayed_, false)) config_.circuits->done(config_.channel, number);
  endUnrequested();
  deadline_.reset();
  scratch_.finished();
  over_.emplace_back(std::move(queue_.front().done), error);
  queue_.pop_front();
  running_ = false;
  startNext();  // before the callbacks, so that the network does not wait for them
  callDone();
}

// Callbacks run in the order of the operations, even if an operation ends inside a callback.
void LinkGroup::callDone() {
  if (std::exchange(calling_done_, true)) return;
  while (!over_.empty()) {
    const auto [done, error] = std::move(over_.front());
    over_.pop_front();
    done(error);
  }
  calling_done_ = false;
}

// One timer serves many operations: when it fires, it checks whether the running one is late.
void LinkGroup::watchDeadline() {
  if (!deadline_ || (timer_ && timer_->first <= *deadline_)) return;
  if (timer_) endpoint_->reactor().cancel(*timer_);
  timer_ = endpoint_->reactor().at(*deadline_, [this] {
    timer_.reset();
    if (deadline_ && Reactor::Clock::now() >= *deadline_) return onTimeout();
    watchDeadline();
  });
}

// Requests the state of all members. Other members that time out leave that to the first one.
void LinkGroup::onTimeout() {
  const auto now = Reactor::Clock::now();
  if (last_state_request_ && now - *last_state_request_ < kSurveyLimit) {
    deadline_ = *last_state_request_ + kSurveyLimit;
    last_state_request_.reset();
    return watchDeadline();
  }
  deadline_.reset();
  std::vector<int> others = config_.ranks;
  std::erase(others, config_.ranks[config_.rank]);
  const uint64_t number = queue_.front().number;
  surveys_.request(others, [this, number](const StateSurveys::Answers& answers) {
    if (!running_ || queue_.front().number != number) return;  // it has ended in the meantime
    const std::string why = timeoutText(queue_.front(), answers);
    fail(std::make_exception_ptr(TimeoutError(why)), Notify::kAllRanks);
  });
}

// Names the members without the call; if all have called, those that this member waits for.
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

// Closes the channel first: afterwards the endpoint does not use the memory of operations.
void LinkGroup::endCollectives(std::exception_ptr error, Notify notify) {
  for (auto* timer : {&timer_, &progress_timer_, &dispute_timer_}) {
    if (*timer) endpoint_->reactor().cancel(*std::exchange(*timer, std::nullopt));
  }
  agreement_.cancel(notify == Notify::kShutdown);
  sizes_.cancel();
  leaveCircuits(whatFailed(error));
  endUnrequested();
  closeChannel(whatFailed(error), notify);
  operation_.cancel();
  running_ = false;
  deadline_.reset();
  scratch_.release();
  callDone();
  for (Pending& pending : std::exchange(queue_, {})) pending.done(error);
}

// ---- logging and counters ----------------------------------------------------------------------

// Warns when the requested algorithm is replaced by another.
void LinkGroup::warnOfAlgorithm() const {
  const auto forced = algorithmNamed(config_.algorithm);
  if (!forced || config_.rank != 0 || size() == 1) return;
  const std::string why{versions_.at(0).schedules->estimate().whyNever(*forced)};
  if (why.empty()) return;
  logLine(LogLevel::kWarning, "TOPOOPT_ALGORITHM=" + config_.algorithm + ": group " + config_.name +
                                  " takes what costs least, for " + why);
}

// Level info: once per size class, on the group's first member. Level debug: every call.
void LinkGroup::logChoice(const Pending& pending, const ScheduleCache& schedules) {
  const Request request = requestOf(pending.shape);
  const Algorithm algorithm = pending.setup.prepared->algorithm;
  const int size_class = static_cast<int>(std::bit_width(request.bytes));
  const bool first =
      config_.rank == 0 && logged_.insert({pending.called.name, algorithm, size_class}).second;
  if (!first && !logs(LogLevel::kDebug)) return;
  std::string text = "group " + config_.name + ": " + nameOf(pending.called.name) + " of " +
                     std::to_string(request.bytes) + " bytes: " + nameOf(algorithm);
  const CostEstimate& estimate = schedules.estimate();
  std::string others;
  for (const Algorithm other : estimate.candidates(request)) {
    if (other == Algorithm::kDirect) continue;
    others += (others.empty() ? " (estimates: " : ", ") + std::string(nameOf(other)) + " " +
              milliseconds(estimate.seconds(request, other));
  }
  logLine(first ? LogLevel::kInfo : LogLevel::kDebug, text + others + (others.empty() ? "" : ")"));
}

// Once per tenth of the gain.
void LinkGroup::logRoutes() {
  const double gain = std::round(10 * sizes_.gain()) / 10;
  if (config_.rank != 0 || !logs(LogLevel::kInfo) || !logged_gains_.insert(gain).second) return;
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", gain);
  logLine(LogLevel::kInfo, "group " + config_.name +
                               ": routes for the sizes of an all_to_all: the busiest link has " +
                               text + " times fewer bytes than over the plan's routes");
}

size_t LinkGroup::scratchBytes() {
  size_t bytes = 0;
  endpoint_->reactor().run([&] { bytes = scratch_.bytes(); });
  return bytes;
}

}  // namespace topoopt
