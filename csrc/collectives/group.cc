#include "collectives/group.h"

#include <algorithm>
#include <utility>

#include "common/errors.h"

namespace topoopt {
namespace {

// Streams below this are the lanes of collectives, from here on the tags of point-to-point
// messages.
constexpr uint64_t kFirstTagStream = uint64_t{1} << 32;
// Below this, one ring has less to do than all together: fewer messages for the same few bytes.
constexpr size_t kOneRingBytes = 16 << 10;

uint64_t tagStream(int tag) { return kFirstTagStream + static_cast<uint32_t>(tag); }

// The same on every machine, so no std::hash of strings.
uint32_t fingerprintOf(const std::string& name, uint64_t number, uint64_t arguments) {
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  hash = mixHash(mixHash(hash, number), arguments);
  return static_cast<uint32_t>(hash ^ (hash >> 32));
}

uint64_t hashSizes(const std::vector<size_t>& sizes) {
  size_t hash = sizes.size();
  for (size_t size : sizes) hash = mixHash(hash, size);
  return hash;
}

uint64_t hashReduction(size_t count, DataType type, ReduceOp op) {
  return mixHash(mixHash(count, static_cast<uint64_t>(type)), static_cast<uint64_t>(op));
}

std::string whatFailed(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  }
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
    : endpoint_(std::move(endpoint)), config_(std::move(config)) {}

uint64_t Group::sequenceNumber() const {
  std::lock_guard lock(mutex_);
  return called_;
}

std::exception_ptr Group::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

// ---- collectives -------------------------------------------------------------------------------

void Group::enqueue(const std::string& name, uint64_t arguments, Schedule schedule, Buffers buffers,
                    DataType type, ReduceOp op, Milliseconds limit, Done done) {
  Collective collective{name, 0, limit, {}, std::move(done)};
  collective.setup.channel = config_.channel;
  collective.setup.ranks = config_.ranks;
  collective.setup.schedule = std::move(schedule);
  collective.setup.buffers = buffers;
  collective.setup.type = type;
  collective.setup.op = op;
  std::unique_lock lock(mutex_);
  collective.number = called_++;
  collective.setup.fingerprint = fingerprintOf(name, collective.number, arguments);
  if (error_) {
    // The reactor may have stopped, and then runs at once what is posted: not under the lock.
    const std::exception_ptr error = error_;
    lock.unlock();
    return endpoint_->reactor().post([done = std::move(collective.done), error] { done(error); });
  }
  // Under the lock, so that two threads that call at once queue in the order of their numbers.
  endpoint_->reactor().post([self = shared_from_this(), shared = std::make_shared<Collective>(
                                                            std::move(collective))]() mutable {
    if (const auto error = self->error()) return shared->done(error);
    self->queue_.push_back(std::move(*shared));
    if (self->queue_.size() == 1) self->startNext();
  });
}

void Group::startNext() {
  if (queue_.empty()) return;
  Collective& collective = queue_.front();
  running_ = std::make_shared<Operation>(
      *endpoint_, std::move(collective.setup),
      [self = shared_from_this()](std::exception_ptr error) {
        // Not at once: this may be deep inside the endpoint, or in start() below.
        self->endpoint_->reactor().post([self, error] { self->onOperationDone(error); });
      });
  if (collective.limit.count() > 0) {
    timer_ = endpoint_->reactor().after(collective.limit, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->onTimeout();
    });
  }
  running_->start();
}

void Group::onOperationDone(std::exception_ptr error) {
  if (!running_) return;  // the group failed meanwhile
  if (error) return fail(error, Spread::kEverywhere);
  if (timer_) endpoint_->reactor().cancel(*std::exchange(timer_, std::nullopt));
  running_.reset();
  const Done done = std::move(queue_.front().done);
  queue_.pop_front();
  startNext();  // first, so that the network does not wait for the callback
  done(nullptr);
}

void Group::onTimeout() {
  timer_.reset();
  if (!running_) return;
  const Collective& collective = queue_.front();
  std::string why = collective.name + " (operation " + std::to_string(collective.number) +
                    " of group " + config_.name + "): Timed out after " +
                    std::to_string(collective.limit.count()) + " ms";
  const std::set<int> waiting = running_->waitingFor();
  if (!waiting.empty()) {
    why += " waiting for data from rank";
    for (int rank : waiting) why += (rank == *waiting.begin() ? " " : ", ") + std::to_string(rank);
  }
  fail(std::make_exception_ptr(TimeoutError(why)), Spread::kEverywhere);
}

void Group::failSoon(std::exception_ptr error) {
  endpoint_->reactor().post(
      [self = shared_from_this(), error] { self->fail(error, Spread::kEverywhere); });
}

// The channel is closed first: from then on nothing touches the memory of pending operations.
void Group::fail(std::exception_ptr error, Spread spread) {
  {
    std::lock_guard lock(mutex_);
    if (error_) return;
    error_ = error;
  }
  const auto self = shared_from_this();
  if (timer_) endpoint_->reactor().cancel(*std::exchange(timer_, std::nullopt));
  if (spread == Spread::kGoodbye) {
    endpoint_->closeChannel(config_.channel, whatFailed(error));
  } else {
    endpoint_->failChannel(config_.channel, whatFailed(error), spread == Spread::kEverywhere);
  }
  running_.reset();
  for (Collective& collective : std::exchange(queue_, {})) collective.done(error);
  for (PointToPoint& message : std::exchange(point_to_point_, {})) {
    if (message.timer) endpoint_->reactor().cancel(*message.timer);
    message.done(error);
  }
}

void Group::abort(const std::string& why) {
  endpoint_->reactor().post([self = shared_from_this(), why] {
    self->fail(std::make_exception_ptr(AbortedError(why)), Spread::kEverywhere);
  });
}

void Group::shutdown() {
  endpoint_->reactor().run([this] {
    fail(std::make_exception_ptr(AbortedError("the process group was shut down")),
         Spread::kGoodbye);
  });
}

void Group::allReduce(void* data, size_t count, DataType type, ReduceOp op, Milliseconds limit,
                      Done done) {
  const size_t element = elementSize(type);
  const bool one_ring = count * element <= kOneRingBytes && config_.rings.size() > 1;
  const std::vector<RingOrder> first{
      {config_.rings.empty() ? std::vector<int>{0} : config_.rings[0].order, 1.0}};
  enqueue("all_reduce", hashReduction(count, type, op),
          allReduceSchedule(one_ring ? first : config_.rings, config_.rank, count, element),
          {data, nullptr}, type, op, limit, std::move(done));
}

void Group::broadcast(void* data, size_t bytes, int root, Milliseconds limit, Done done) {
  enqueue("broadcast", mixHash(bytes, static_cast<uint64_t>(root)),
          broadcastSchedule(config_.rings, config_.rank, root, bytes, 1), {data, nullptr},
          DataType::kUint8, ReduceOp::kSum, limit, std::move(done));
}

void Group::reduce(const void* input, void* output, size_t count, DataType type, ReduceOp op,
                   int root, Milliseconds limit, Done done) {
  enqueue("reduce", mixHash(hashReduction(count, type, op), static_cast<uint64_t>(root)),
          reduceSchedule(config_.rings, config_.rank, root, count, elementSize(type)),
          {const_cast<void*>(input), output}, type, op, limit, std::move(done));
}

void Group::allGather(void* output, std::vector<size_t> bytes, Milliseconds limit, Done done) {
  enqueue("all_gather", hashSizes(bytes), allGatherSchedule(config_.rings, config_.rank, bytes, 1),
          {nullptr, output}, DataType::kUint8, ReduceOp::kSum, limit, std::move(done));
}

void Group::reduceScatter(const void* input, void* output, std::vector<size_t> counts,
                          DataType type, ReduceOp op, Milliseconds limit, Done done) {
  enqueue("reduce_scatter", hashReduction(hashSizes(counts), type, op),
          reduceScatterSchedule(config_.rings, config_.rank, counts, elementSize(type)),
          {const_cast<void*>(input), output}, type, op, limit, std::move(done));
}

void Group::exchange(const std::string& name, const void* input, std::vector<size_t> send_bytes,
                     void* output, std::vector<size_t> receive_bytes, Milliseconds limit,
                     Done done) {
  enqueue(name, 0, exchangeSchedule(config_.rank, send_bytes, receive_bytes),
          {const_cast<void*>(input), output}, DataType::kUint8, ReduceOp::kSum, limit,
          std::move(done));
}

void Group::barrier(Milliseconds limit, Done done) {
  // An all_reduce of one byte: nobody has the result before everybody has contributed.
  auto byte = std::make_shared<uint8_t>(0);
  void* data = byte.get();
  const std::vector<RingOrder> first(
      config_.rings.begin(), config_.rings.begin() + std::min<size_t>(config_.rings.size(), 1));
  enqueue("barrier", 0, allReduceSchedule(first, config_.rank, 1, 1), {data, nullptr},
          DataType::kUint8, ReduceOp::kMax, limit,
          [byte, done = std::move(done)](std::exception_ptr error) { done(error); });
}

// ---- point to point ----------------------------------------------------------------------------

void Group::pointToPoint(std::string what, Milliseconds limit, Done done,
                         std::function<void(Done)> start) {
  endpoint_->reactor().post([self = shared_from_this(), what = std::move(what), limit,
                             done = std::move(done), start = std::move(start)]() mutable {
    if (const auto error = self->error()) return done(error);
    Reactor& reactor = self->endpoint_->reactor();
    const Entry entry = self->point_to_point_.insert(self->point_to_point_.end(),
                                                     {std::move(what), {}, std::move(done)});
    if (limit.count() > 0) {
      entry->timer = reactor.after(limit, [weak = self->weak_from_this(), entry, limit] {
        const auto group = weak.lock();
        if (!group) return;
        entry->timer.reset();
        const std::string why = entry->what + " in group " + group->config_.name +
                                ": Timed out after " + std::to_string(limit.count()) + " ms";
        group->fail(std::make_exception_ptr(TimeoutError(why)), Spread::kEverywhere);
      });
    }
    start([self, entry](std::exception_ptr error) {
      if (error) return self->failSoon(error);
      if (entry->timer) self->endpoint_->reactor().cancel(*entry->timer);
      const Done finished = std::move(entry->done);
      self->point_to_point_.erase(entry);
      finished(nullptr);
    });
  });
}

void Group::send(const void* data, size_t bytes, int target, int tag, Milliseconds limit,
                 Done done) {
  const FlowId flow{config_.ranks[target], config_.channel, tagStream(tag)};
  pointToPoint("send to rank " + std::to_string(target), limit, std::move(done),
               [this, flow, data, bytes](Done finished) {
                 endpoint_->send(flow, data, bytes, 0, std::move(finished));
               });
}

void Group::receive(void* data, size_t bytes, int source, int tag, Milliseconds limit, Done done) {
  const FlowId flow{config_.ranks[source], config_.channel, tagStream(tag)};
  pointToPoint("receive from rank " + std::to_string(source), limit, std::move(done),
               [this, flow, data, bytes](Done finished) {
                 endpoint_->receive(flow, data, bytes, 0, std::move(finished));
               });
}

void Group::receiveAny(void* data, size_t bytes, int tag, Milliseconds limit,
                       std::function<void(int)> from, Done done) {
  std::vector<int> peers = config_.ranks;
  std::erase(peers, config_.ranks[config_.rank]);
  pointToPoint(
      "receive from any rank", limit, std::move(done),
      [this, peers, stream = tagStream(tag), data, bytes, from = std::move(from)](Done finished) {
        endpoint_->receiveAny(
            peers, config_.channel, stream, data, bytes, 0,
            [this, from](int peer) {
              const auto at = std::find(config_.ranks.begin(), config_.ranks.end(), peer);
              from(static_cast<int>(at - config_.ranks.begin()));
            },
            std::move(finished));
      });
}

}  // namespace topoopt
