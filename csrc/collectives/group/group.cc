#include "collectives/group/group.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "common/errors.h"

namespace topoopt {
namespace {

// Returns whether the operands may be swapped bit for bit. Signed zeros and NaN make floating-point
// minima and maxima depend on their order.
bool commutes(DataType type, ReduceOp op) {
  if (op == ReduceOp::kSum || op == ReduceOp::kProduct) return true;
  return type != DataType::kFloat16 && type != DataType::kBfloat16 && type != DataType::kFloat32 &&
         type != DataType::kFloat64;
}

size_t sumOf(const std::vector<size_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), size_t{0});
}

Called calledAs(CallName name, size_t bytes, const CallTerms& terms, int root = -1) {
  return {
      .bytes = bytes, .root = root, .name = name, .type = terms.type.value_or(DataType::kUint8)};
}

Called calledAs(CallName name, size_t bytes, const CallTerms& terms, DataType type, ReduceOp op) {
  return {.bytes = bytes,
          .name = name,
          .type = terms.type.value_or(type),
          .op = terms.op == CalledOp::kNone ? calledOp(op) : terms.op};
}

// Checks what no other class checks; the layout checks rings, servers and hops.
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
  for (double cost : {config.cost.alpha_s, config.cost.per_hop_latency_s,
                      config.cost.beta_s_per_byte, config.cost.gamma_s_per_byte}) {
    if (!std::isfinite(cost) || cost < 0) {
      fail("cost: " + std::to_string(cost) + " is not at least 0 and finite");
    }
  }
  for (const plan::AllReduceTime& time : config.cost.all_reduce) {
    algorithmNamed(time.algorithm);
    if (!std::isfinite(time.seconds) || time.seconds <= 0 || time.bytes == 0) {
      fail("cost.all_reduce: " + std::to_string(time.bytes) + " bytes in " +
           std::to_string(time.seconds) + " s are not a time above 0");
    }
  }
  if (config.circuits && config.servers.empty()) fail("servers: circuits move between them");
  algorithmNamed(config.algorithm);  // throws for an unknown name, even if the engine ignores it
  return config;
}

}  // namespace

Group::Group(std::shared_ptr<Endpoint> endpoint, GroupConfig config)
    : endpoint_(std::move(endpoint)),
      config_(checked(std::move(config), *endpoint_)),
      surveys_(*endpoint_, config_.channel),
      messages_(endpoint_->reactor()) {}

ChannelEvents Group::channelEvents() {
  const auto weak = weak_from_this();
  return {.failed =
              [weak](std::exception_ptr error) {
                if (const auto self = weak.lock()) self->fail(error, Notify::kNoRank);
              },
          .control =
              [weak](const FrameHeader& header, const std::string& payload) {
                if (const auto self = weak.lock()) self->onControl(header, payload);
              },
          .unmatched =
              [weak](int peer, uint32_t number) {
                if (const auto self = weak.lock()) self->onUnmatched(peer, number);
              },
          .links_changed =
              [weak] {
                if (const auto self = weak.lock()) self->onLinksChanged();
              },
          .left =
              [weak](int rank) {
                if (const auto self = weak.lock()) self->onLeft(rank);
              }};
}

int Group::memberOf(int rank) const {
  const auto found = std::find(config_.ranks.begin(), config_.ranks.end(), rank);
  return found == config_.ranks.end() ? -1 : static_cast<int>(found - config_.ranks.begin());
}

// ---- messages between members -----------------------------------------------------------------

void Group::onControl(const FrameHeader& header, const std::string& payload) {
  if (header.type == FrameType::kState) {
    return surveys_.onAnswer(header.source, {header.message, payload});
  }
  if (header.type != FrameType::kStateRequest) return;
  FrameHeader answer;
  answer.type = FrameType::kState;
  answer.channel = config_.channel;
  answer.message = sequenceNumber();
  endpoint_->sendControl(header.source, answer, stateText());
}

std::string Group::stateText() {
  constexpr size_t kMostStates = 4;
  std::vector<std::string> states;
  if (const auto running = current()) {
    states.push_back(textOf(running->first, config_.ranks) + " (operation " +
                     std::to_string(running->second) + ")");
  }
  for (std::string& text : messageTexts(kMostStates - states.size())) {
    states.push_back(std::move(text));
  }
  if (states.empty()) return "is in no operation of this group";
  std::string text = "is in ";
  for (const std::string& state : states) text += (&state == &states[0] ? "" : " and ") + state;
  return text;
}

// ---- failures ----------------------------------------------------------------------------------

std::exception_ptr Group::error() const {
  std::lock_guard lock(mutex_);
  return error_ ? error_ : aborted_;
}

void Group::failSoon(std::exception_ptr error, Notify notify) {
  endpoint_->reactor().post(
      [self = shared_from_this(), error, notify] { self->fail(error, notify); });
}

void Group::fail(std::exception_ptr error, Notify notify) {
  {
    std::lock_guard lock(mutex_);
    if (error_) return;
    error_ = error;
  }
  if (config_.failed && notify != Notify::kShutdown) config_.failed(whatFailed(error));
  const auto self = shared_from_this();
  surveys_.cancel();
  endCollectives(error, notify);
  while (!sending_.empty()) endSend(*sending_.begin());
  messages_.failAll(error);
}

void Group::closeChannel(const std::string& why, Notify notify) {
  if (notify == Notify::kShutdown) return endpoint_->closeChannel(config_.channel, why);
  endpoint_->failChannel(config_.channel, why, notify == Notify::kAllRanks);
}

void Group::abort(const std::string& why) {
  const auto error = std::make_exception_ptr(AbortedError(why));
  {
    // Holds the lock, because later calls that bypass the reactor must not overtake this one.
    std::lock_guard lock(mutex_);
    if (!aborted_) aborted_ = error;
  }
  failSoon(error);
}

void Group::shutdown() {
  endpoint_->reactor().run([this] {
    fail(std::make_exception_ptr(AbortedError("the process group was shut down")),
         Notify::kShutdown);
  });
}

std::string whatFailed(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  }
}

// ---- collectives -------------------------------------------------------------------------------

void Group::allReduce(void* data, size_t count, DataType type, ReduceOp op, const CallTerms& terms,
                      Done done) {
  const size_t bytes = count * elementSize(type);
  submit({.called = hashed(calledAs(CallName::kAllReduce, bytes, terms, type, op), bytes),
          .shape = {.collective = Collective::kAllReduce,
                    .counts = {count},
                    .element_bytes = elementSize(type),
                    .commutative = commutes(type, op)},
          .buffers = {.input = data},
          .type = type,
          .op = op},
         terms, std::move(done));
}

void Group::broadcast(void* data, size_t bytes, int root, const CallTerms& terms, Done done) {
  submit({.called = hashed(calledAs(CallName::kBroadcast, bytes, terms, root), bytes),
          .shape = {.collective = Collective::kBroadcast, .counts = {bytes}, .root = root},
          .buffers = {.input = data}},
         terms, std::move(done));
}

void Group::reduce(const void* input, void* output, size_t count, DataType type, ReduceOp op,
                   int root, const CallTerms& terms, Done done) {
  const size_t bytes = count * elementSize(type);
  Called called = calledAs(CallName::kReduce, bytes, terms, type, op);
  called.root = root;
  submit({.called = hashed(called, bytes),
          .shape = {.collective = Collective::kReduce,
                    .counts = {count},
                    .element_bytes = elementSize(type),
                    .root = root},
          .buffers = {const_cast<void*>(input), output},
          .type = type,
          .op = op},
         terms, std::move(done));
}

void Group::allGather(void* output, std::vector<size_t> bytes, const CallTerms& terms, Done done) {
  const Called called =
      hashed(calledAs(CallName::kAllGather, sumOf(bytes), terms), hashSizes(bytes));
  submit({.called = called,
          .shape = {.collective = Collective::kAllGather, .counts = std::move(bytes)},
          .buffers = {.output = output}},
         terms, std::move(done));
}

void Group::reduceScatter(const void* input, void* output, std::vector<size_t> counts,
                          DataType type, ReduceOp op, const CallTerms& terms, Done done) {
  const size_t bytes = sumOf(counts) * elementSize(type);
  const Called called =
      hashed(calledAs(CallName::kReduceScatter, bytes, terms, type, op), hashSizes(counts));
  submit({.called = called,
          .shape = {.collective = Collective::kReduceScatter,
                    .counts = std::move(counts),
                    .element_bytes = elementSize(type)},
          .buffers = {const_cast<void*>(input), output},
          .type = type,
          .op = op},
         terms, std::move(done));
}

void Group::gather(const void* input, void* output, size_t bytes, int root, const CallTerms& terms,
                   Done done) {
  submit({.called = hashed(calledAs(CallName::kGather, bytes, terms, root), bytes),
          .shape = {.collective = Collective::kGather,
                    .counts = std::vector<size_t>(config_.ranks.size(), bytes),
                    .root = root},
          .buffers = {const_cast<void*>(input), output}},
         terms, std::move(done));
}

void Group::scatter(const void* input, void* output, size_t bytes, int root, const CallTerms& terms,
                    Done done) {
  submit({.called = hashed(calledAs(CallName::kScatter, bytes, terms, root), bytes),
          .shape = {.collective = Collective::kScatter,
                    .counts = std::vector<size_t>(config_.ranks.size(), bytes),
                    .root = root},
          .buffers = {const_cast<void*>(input), output}},
         terms, std::move(done));
}

// The hash cannot cover sizes, because a member knows only its own. Each pair compares them.
void Group::exchange(CallName name, const void* input, std::vector<size_t> send_bytes, void* output,
                     std::vector<size_t> receive_bytes, const CallTerms& terms, Done done) {
  submit({.called = hashed(calledAs(name, sumOf(send_bytes), terms), 0),
          .shape = {.collective = Collective::kExchange,
                    .counts = std::move(send_bytes),
                    .received = std::move(receive_bytes)},
          .buffers = {const_cast<void*>(input), output}},
         terms, std::move(done));
}

void Group::barrier(const CallTerms& terms, Done done) {
  submit({.called = hashed({.name = CallName::kBarrier}, 0),
          .shape = {.collective = Collective::kBarrier},
          .op = ReduceOp::kMax},
         terms, std::move(done));
}

}  // namespace topoopt
