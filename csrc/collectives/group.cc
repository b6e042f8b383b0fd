#include "collectives/group.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "common/errors.h"
#include "common/log.h"

namespace topoopt {
namespace {

// Whether two values give the same bits in either order: zeros with a sign and what is not a number
// make floating-point minima and maxima depend on it.
bool commutes(DataType type, ReduceOp op) {
  if (op == ReduceOp::kSum || op == ReduceOp::kProduct) return true;
  return type != DataType::kFloat16 && type != DataType::kBfloat16 && type != DataType::kFloat32 &&
         type != DataType::kFloat64;
}

std::string whatFailed(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  }
}

// What the rest relies on; rings, servers and hops are checked by the layout.
GroupConfig checked(GroupConfig config, const Endpoint& endpoint) {
  const auto fail = [](const std::string& what) { throw std::invalid_argument(what); };
  const int size = static_cast<int>(config.ranks.size());
  if (config.rank < 0 || config.rank >= size) {
    fail("rank: " + std::to_string(config.rank) + " is not in 0.." + std::to_string(size - 1));
  }
  for (int rank : config.ranks) {
    if (rank < 0 || rank >= endpoint.size()) {
      fail("ranks: " + std::to_string(rank) + " is not in 0.." +
           std::to_string(endpoint.size() - 1));
    }
  }
  if (config.ranks[config.rank] != endpoint.rank()) {
    fail("ranks: member " + std::to_string(config.rank) + " is rank " +
         std::to_string(config.ranks[config.rank]) + ", and not this one, " +
         std::to_string(endpoint.rank()));
  }
  std::vector<int> members = config.ranks;
  std::sort(members.begin(), members.end());
  if (std::adjacent_find(members.begin(), members.end()) != members.end()) {
    fail("ranks: one is there twice");
  }
  for (double cost : {config.cost.message_s, config.cost.hop_s, config.cost.seconds_per_byte,
                      config.cost.reduce_s_per_byte}) {
    if (!std::isfinite(cost) || cost < 0) {
      fail("cost: " + std::to_string(cost) + " is not at least 0 and finite");
    }
  }
  return config;
}

}  // namespace

std::shared_ptr<Group> Group::open(std::shared_ptr<Endpoint> endpoint, GroupConfig config) {
  std::shared_ptr<Group> group(new Group(std::move(endpoint), std::move(config)));
  group->endpoint_->reactor().run([&] {
    group->endpoint_->openChannel(group->config_.channel,
                                  [weak = group->weak_from_this()](std::exception_ptr error) {
                                    if (const auto self = weak.lock())
                                      self->fail(error, Spread::kHere);
                                  });
  });
  return group;
}

Group::Group(std::shared_ptr<Endpoint> endpoint, GroupConfig config)
    : endpoint_(std::move(endpoint)),
      config_(checked(std::move(config), *endpoint_)),
      schedules_(GroupLayout(size(), config_.rings, config_.servers, config_.hops), config_.rank,
                 config_.cost, algorithmNamed(config_.algorithm)),
      operation_(*endpoint_, config_.channel, config_.ranks,
                 [this](std::exception_ptr error) { onOperationDone(error); }),
      scratch_(endpoint_->reactor(), config_.scratch_idle) {
  if (config_.segment_fd < 0) return;
  team_ = std::make_unique<LocalTeam>(std::make_shared<TeamSegment>(config_.segment_fd, size()),
                                      config_.rank, config_.ranks, config_.name);
  turns_ = std::make_unique<TurnQueue>();
}

uint64_t Group::sequenceNumber() const {
  if (turns_) return turns_->count();
  std::lock_guard lock(mutex_);
  return called_;
}

std::exception_ptr Group::error() const {
  std::lock_guard lock(mutex_);
  return error_ ? error_ : aborted_;
}

// ---- collectives -------------------------------------------------------------------------------

void Group::enqueue(std::string name, uint64_t arguments, const ScheduleKey& key, Buffers buffers,
                    DataType type, ReduceOp op, Milliseconds limit, Done done) {
  Call call{std::move(name), 0, limit, {nullptr, buffers, nullptr, type, op, 0}, std::move(done)};
  std::unique_lock lock(mutex_);
  call.number = called_++;
  if (error_) {
    // The reactor may have stopped, and then runs at once what is posted: not under the lock.
    const std::exception_ptr error = error_;
    lock.unlock();
    return endpoint_->reactor().post([done = std::move(call.done), error] { done(error); });
  }
  call.setup.prepared = schedules_.get(key);
  call.setup.fingerprint = fingerprintOf(call.name, call.number, arguments);
  if (logs(LogLevel::kInfo)) logChoice(call.name, key, *call.setup.prepared);
  const bool first = calls_.empty();
  calls_.push_back(std::move(call));
  lock.unlock();
  // Whoever finds the list empty wakes the reactor, for all that come before it looks. It has run
  // what was posted before the group can go (shutdown).
  if (first) endpoint_->reactor().post([this] { takeCalls(); });
}

void Group::takeCalls() {
  std::deque<Call> calls;
  {
    std::lock_guard lock(mutex_);
    calls.swap(calls_);
  }
  if (const auto error = this->error()) {
    for (Call& call : calls) call.done(error);
    return;
  }
  for (Call& call : calls) queue_.push_back(std::move(call));
  startNext();
}

// An operation may be over when start() returns; one loop serves them all, however many wait.
void Group::startNext() {
  if (std::exchange(starting_, true)) return;
  while (!running_ && !queue_.empty()) {
    running_ = true;
    Call& call = queue_.front();
    call.setup.scratch = scratch_.reserve(call.setup.prepared->schedule.scratch_bytes);
    if (call.limit.count() > 0) deadline_ = Reactor::Clock::now() + call.limit;
    watchDeadline();
    operation_.start(std::move(call.setup));
  }
  starting_ = false;
}

void Group::onOperationDone(std::exception_ptr error) {
  if (error) return failSoon(error);  // not at once: this may be deep inside the endpoint
  deadline_.reset();
  scratch_.finished();
  over_.push_back(std::move(queue_.front().done));
  queue_.pop_front();
  running_ = false;
  startNext();  // first, so that the network does not wait for the callback
  tellDone();
}

// In the order of the operations, also if one is over while the callback of another runs.
void Group::tellDone() {
  if (std::exchange(telling_, true)) return;
  while (!over_.empty()) {
    const Done done = std::move(over_.front());
    over_.pop_front();
    done(nullptr);
  }
  telling_ = false;
}

// One timer serves many operations: it looks whether the one that runs when it fires is late.
void Group::watchDeadline() {
  if (!deadline_ || (timer_ && timer_->first <= *deadline_)) return;
  if (timer_) endpoint_->reactor().cancel(*timer_);
  timer_ = endpoint_->reactor().at(*deadline_, [this] {
    timer_.reset();
    if (deadline_ && Reactor::Clock::now() >= *deadline_) return onTimeout();
    watchDeadline();
  });
}

void Group::onTimeout() {
  const Call& call = queue_.front();
  const std::string why =
      timedOutText(call.name, call.number, config_.name, call.limit, operation_.waitingFor());
  fail(std::make_exception_ptr(TimeoutError(why)), Spread::kEverywhere);
}

void Group::failSoon(std::exception_ptr error, Spread spread) {
  endpoint_->reactor().post(
      [self = shared_from_this(), error, spread] { self->fail(error, spread); });
}

// The channel is closed first: from then on nothing touches the memory of pending operations. The
// local team's operations complete on their own threads, which are told to stop.
void Group::fail(std::exception_ptr error, Spread spread) {
  {
    std::lock_guard lock(mutex_);
    if (error_) return;
    error_ = error;
  }
  const auto self = shared_from_this();
  if (timer_) endpoint_->reactor().cancel(*std::exchange(timer_, std::nullopt));
  if (team_) endTeam(whatFailed(error), spread);
  if (spread == Spread::kGoodbye) {
    endpoint_->closeChannel(config_.channel, whatFailed(error));
  } else {
    endpoint_->failChannel(config_.channel, whatFailed(error), spread == Spread::kEverywhere);
  }
  operation_.cancel();
  running_ = false;
  deadline_.reset();
  scratch_.release();
  tellDone();
  for (Call& call : std::exchange(queue_, {})) call.done(error);
  for (PointToPoint& message : std::exchange(point_to_point_, {})) {
    if (message.timer) endpoint_->reactor().cancel(*message.timer);
    message.done(error);
  }
}

void Group::abort(const std::string& why) {
  const auto error = std::make_exception_ptr(AbortedError(why));
  {
    // Calls that come after this one must not get ahead of it: not all of them pass the reactor.
    std::lock_guard lock(mutex_);
    if (!aborted_) aborted_ = error;
  }
  endpoint_->reactor().post(
      [self = shared_from_this(), error] { self->fail(error, Spread::kEverywhere); });
}

void Group::shutdown() {
  endpoint_->reactor().run([this] {
    fail(std::make_exception_ptr(AbortedError("the process group was shut down")),
         Spread::kGoodbye);
  });
  if (turns_) turns_->stop();
}

// ---- calls -------------------------------------------------------------------------------------

void Group::allReduce(void* data, size_t count, DataType type, ReduceOp op, const CallTerms& terms,
                      Done done) {
  const uint64_t arguments = hashReduction(count, type, op);
  if (team_) {
    return runLocally("all_reduce", arguments, terms, std::move(done),
                      [=](LocalTeam& team, const CollectiveCall& call) {
                        team.allReduce(call, data, count, type, op);
                      });
  }
  enqueue("all_reduce", arguments,
          {.collective = Collective::kAllReduce,
           .counts = {count},
           .element_bytes = elementSize(type),
           .commutative = commutes(type, op)},
          {data, nullptr}, type, op, terms.limit, std::move(done));
}

void Group::broadcast(void* data, size_t bytes, int root, const CallTerms& terms, Done done) {
  const uint64_t arguments = mixHash(bytes, static_cast<uint64_t>(root));
  if (team_) {
    return runLocally("broadcast", arguments, terms, std::move(done),
                      [=](LocalTeam& team, const CollectiveCall& call) {
                        team.broadcast(call, data, bytes, root);
                      });
  }
  enqueue("broadcast", arguments,
          {.collective = Collective::kBroadcast, .counts = {bytes}, .root = root}, {data, nullptr},
          DataType::kUint8, ReduceOp::kSum, terms.limit, std::move(done));
}

void Group::reduce(const void* input, void* output, size_t count, DataType type, ReduceOp op,
                   int root, const CallTerms& terms, Done done) {
  const uint64_t arguments = mixHash(hashReduction(count, type, op), static_cast<uint64_t>(root));
  if (team_) {
    return runLocally("reduce", arguments, terms, std::move(done),
                      [=](LocalTeam& team, const CollectiveCall& call) {
                        team.reduce(call, input, output, count, type, op, root);
                      });
  }
  enqueue("reduce", arguments,
          {.collective = Collective::kReduce,
           .counts = {count},
           .element_bytes = elementSize(type),
           .root = root},
          {const_cast<void*>(input), output}, type, op, terms.limit, std::move(done));
}

void Group::allGather(void* output, std::vector<size_t> bytes, const CallTerms& terms, Done done) {
  const uint64_t arguments = hashSizes(bytes);
  if (team_) {
    return runLocally(
        "all_gather", arguments, terms, std::move(done),
        [=](LocalTeam& team, const CollectiveCall& call) { team.allGather(call, output, bytes); });
  }
  enqueue("all_gather", arguments,
          {.collective = Collective::kAllGather, .counts = std::move(bytes)}, {nullptr, output},
          DataType::kUint8, ReduceOp::kSum, terms.limit, std::move(done));
}

void Group::reduceScatter(const void* input, void* output, std::vector<size_t> counts,
                          DataType type, ReduceOp op, const CallTerms& terms, Done done) {
  const uint64_t arguments = hashReduction(hashSizes(counts), type, op);
  if (team_) {
    return runLocally("reduce_scatter", arguments, terms, std::move(done),
                      [=](LocalTeam& team, const CollectiveCall& call) {
                        team.reduceScatter(call, input, output, counts, type, op);
                      });
  }
  enqueue("reduce_scatter", arguments,
          {.collective = Collective::kReduceScatter,
           .counts = std::move(counts),
           .element_bytes = elementSize(type)},
          {const_cast<void*>(input), output}, type, op, terms.limit, std::move(done));
}

void Group::exchange(const std::string& name, const void* input, std::vector<size_t> send_bytes,
                     void* output, std::vector<size_t> receive_bytes, const CallTerms& terms,
                     Done done) {
  if (team_) {
    return runLocally(name, 0, terms, std::move(done),
                      [=](LocalTeam& team, const CollectiveCall& call) {
                        team.exchange(call, input, send_bytes, output, receive_bytes);
                      });
  }
  enqueue(name, 0,
          {.collective = Collective::kExchange,
           .counts = std::move(send_bytes),
           .received = std::move(receive_bytes)},
          {const_cast<void*>(input), output}, DataType::kUint8, ReduceOp::kSum, terms.limit,
          std::move(done));
}

void Group::barrier(const CallTerms& terms, Done done) {
  if (team_) {
    return runLocally("barrier", 0, terms, std::move(done),
                      [=](LocalTeam& team, const CollectiveCall& call) { team.barrier(call); });
  }
  // Nobody has the maximum of all bytes before everybody has sent one.
  auto byte = std::make_shared<uint8_t>(0);
  void* data = byte.get();
  enqueue("barrier", 0, {.collective = Collective::kBarrier}, {data, nullptr}, DataType::kUint8,
          ReduceOp::kMax, terms.limit,
          [byte, done = std::move(done)](std::exception_ptr error) { done(error); });
}

}  // namespace topoopt
