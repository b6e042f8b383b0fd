#include "nccl/net.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "common/thread.h"

namespace topoopt::nccl {

namespace {

constexpr uint64_t kMagic = 0x746f706f6f70744eULL;
constexpr uint64_t kFingerprint = 0x6e63636c;
constexpr uint32_t kControlChannel = 0;
constexpr int kChannelBits = 20;  // connections per rank; see kMostRanks
constexpr std::chrono::seconds kLeaveLimit{30};

thread_local std::string last_error;

std::string textOf(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  }
}

uint64_t jobOf(const Wiring& wiring) {
  return std::stoull(wiring.request_token.substr(0, 16), nullptr, 16);
}

void note(NetRequest& request, Comm& comm, const std::exception_ptr& error) {
  if (error) {
    comm.fail(textOf(error));
    request.bad = true;
  }
  --request.left;
}

FlowId flowOf(const Comm& comm, int tag) {
  return {comm.peer, comm.channel, kFirstMessageStream + static_cast<uint32_t>(tag)};
}

}  // namespace

// ---- one end of a connection -------------------------------------------------------------------

NetRequest* Comm::take(int count) {
  for (NetRequest& request : requests_) {
    if (request.used) continue;
    request.comm = shared_from_this();
    request.used = true;
    request.count = count;
    request.left = count;
    request.bad = false;
    return &request;
  }
  return nullptr;
}

bool Comm::idle() const {
  return std::all_of(requests_.begin(), requests_.end(),
                     [](const NetRequest& request) { return !request.used || request.left == 0; });
}

void Comm::forgetRequests() {
  for (NetRequest& request : requests_) request.comm = nullptr;
}

void Comm::fail(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (failed) return;
  why_ = why;
  failed = true;
}

std::string Comm::why() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

// ---- beginning and end -------------------------------------------------------------------------

Net::Net(Wiring wiring, int rank, const NetLimits& limits)
    : rank_(rank),
      server_(wiring.serverOf(rank)),
      ranks_(wiring.ranks()),
      job_(jobOf(wiring)),
      cables_(wiring, rank) {
  for (const Cable& cable : wiring.cables) {
    const plan::LinkPorts& link = cable.link;
    const bool sends = link.source == server_ || (cable.duplex && link.target == server_);
    if (sends) rate_gbps_ += cable.gbps;
  }
  beginning_ = quietThread([this, limits] { begin(limits); });
}

Net::~Net() {
  cables_.stop();
  beginning_.join();
  if (!endpoint_) return;
  bool in_order = !broken_;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [channel, comm] : comms_) in_order = in_order && comm->failed;
  }
  if (in_order) {
    endpoint_->leave(kLeaveLimit);
  } else if (!broken_) {
    endpoint_->fail("rank " + std::to_string(rank_) + " has ended with open connections of NCCL");
  }
  endpoint_->stop();
}

void Net::begin(const NetLimits& limits) {
  try {
    EndpointConfig config = cables_.connect(limits.connect);
    config.silence_limit = limits.silence;
    endpoint_ = std::make_shared<Endpoint>(std::move(config));
    ChannelEvents events;
    events.failed = [this](std::exception_ptr error) { failAll(textOf(error)); };
    events.control = [this](const FrameHeader& header, const std::string& payload) {
      Control control{};
      if (payload.size() != sizeof control) return;
      std::memcpy(&control, payload.data(), sizeof control);
      onControl(header.source, control);
    };
    endpoint_->reactor().run(
        [this, &events] { endpoint_->openChannel(kControlChannel, std::move(events)); });
    cables_.keep(endpoint_);
    {
      const std::lock_guard lock(mutex_);
      ready_ = true;
    }
    begun_.notify_all();
  } catch (const std::exception& error) {
    failAll(error.what());
  }
}

void Net::failAll(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (broken_) return;
  why_ = why;
  broken_ = true;
  begun_.notify_all();
  for (const auto& [channel, comm] : comms_) comm->fail(why);
}

std::shared_ptr<Endpoint> Net::awaitEndpoint() {
  std::unique_lock lock(mutex_);
  begun_.wait(lock, [this] { return ready_ || broken_; });
  if (!broken_) return endpoint_;
  last_error = why_;
  return nullptr;
}

const std::string& Net::lastError() { return last_error; }

Result Net::failed(Result result, const std::string& why) {
  last_error = why;
  return result;
}

// ---- messages between ranks --------------------------------------------------------------------

void Net::say(int peer, const Control& control) {
  FrameHeader header;
  header.type = FrameType::kRings;  // kept for ranks whose channel is not open yet
  header.channel = kControlChannel;
  endpoint_->sendControl(peer, header,
                         std::string(reinterpret_cast<const char*>(&control), sizeof control));
}

void Net::onControl(int peer, const Control& control) {
  if (control.kind == Kind::kConnect) return onConnect(peer, control);
  const std::shared_ptr<Comm> comm = commOf(peer, control.channel);
  if (!comm) {
    const bool own = control.channel >> kChannelBits == static_cast<uint32_t>(rank_);
    if (own && control.kind == Kind::kReceiverClosed) drop(control.channel);
    return;
  }
  const std::string who = "rank " + std::to_string(peer);
  switch (control.kind) {
    case Kind::kAccepted:
      comm->accepted = true;
      break;
    case Kind::kRefused:
      comm->fail(who + " does not listen there any more");
      break;
    case Kind::kSenderClosed:
      comm->most = control.number;
      checkEnd(*comm);
      break;
    default:
      comm->fail(who + " has closed the connection");
  }
}

void Net::onConnect(int peer, const Control& control) {
  const auto comm = std::make_shared<Comm>(peer, control.channel, false);
  {
    const std::lock_guard lock(mutex_);
    const auto listener = listeners_.find(static_cast<uint32_t>(control.number));
    if (listener != listeners_.end()) {
      listener->second->waiting.push_back(comm);
      comms_[control.channel] = comm;
    }
  }
  if (!commOf(peer, control.channel)) return say(peer, {Kind::kRefused, control.channel, 0});
  open(comm);
}

// Not inside a callback of the channel.
void Net::drop(uint32_t channel) {
  endpoint_->reactor().post(
      [this, channel] { endpoint_->closeChannel(channel, "NCCL has closed the connection"); });
}

// Fails receives that the other end will never send.
void Net::checkEnd(Comm& comm) {
  if (comm.most <= comm.messages && comm.posted > comm.messages) {
    comm.fail("rank " + std::to_string(comm.peer) + " has closed the connection");
  }
}

std::shared_ptr<Comm> Net::commOf(int peer, uint32_t channel) {
  const std::lock_guard lock(mutex_);
  const auto found = comms_.find(channel);
  return found == comms_.end() || found->second->peer != peer ? nullptr : found->second;
}

// Reactor thread.
void Net::open(const std::shared_ptr<Comm>& comm) {
  comm->opened = true;
  endpoint_->openChannel(comm->channel,
                         {[comm](std::exception_ptr error) { comm->fail(textOf(error)); }});
}

// ---- connections -------------------------------------------------------------------------------

Listener* Net::listen(Handle& handle) {
  const std::lock_guard lock(mutex_);
  const uint32_t number = next_listener_++;
  handle = {kMagic, job_, rank_, number, nullptr};
  auto& listener = listeners_[number] = std::make_unique<Listener>();
  listener->number = number;
  return listener.get();
}

Result Net::connect(Handle& handle, Comm*& comm) {
  if (handle.magic != kMagic || handle.job != job_) {
    return failed(kInvalidArgument, "the handle is of another job, or of another plugin");
  }
  if (handle.rank < 0 || handle.rank >= ranks_) {
    return failed(kInvalidArgument, "the handle names no rank of the plan");
  }
  if (broken_) return failed(kSystemError, why_);
  if (!ready_) return kSuccess;
  if (handle.rank == rank_) return connectToItself(handle, comm);
  auto* connecting = static_cast<Comm*>(handle.connecting);
  if (!connecting) {
    const std::lock_guard lock(mutex_);
    uint32_t channel = 0;
    if (const Result result = nextChannels(1, channel); result != kSuccess) return result;
    const auto made = std::make_shared<Comm>(handle.rank, channel, true);
    comms_[channel] = made;
    handle.connecting = made.get();
    const Control control{Kind::kConnect, channel, handle.listener};
    endpoint_->reactor().post([this, made, control] {
      open(made);
      say(made->peer, control);
    });
    return kSuccess;
  }
  if (connecting->failed) {
    last_error = connecting->why();
    handle.connecting = nullptr;
    close(*connecting);
    return kRemoteError;
  }
  if (connecting->accepted) {
    handle.connecting = nullptr;
    comm = connecting;
  }
  return kSuccess;
}

Result Net::makeChannels(uint32_t count, uint32_t& first) {
  const std::lock_guard lock(mutex_);
  return nextChannels(count, first);
}

// Requires mutex_.
Result Net::nextChannels(uint32_t count, uint32_t& first) {
  if ((next_channel_ + count) >> kChannelBits) {
    return failed(kSystemError, "a rank can make " + std::to_string(1 << kChannelBits) +
                                    " connections in its life");
  }
  first = static_cast<uint32_t>(rank_) << kChannelBits | next_channel_;
  next_channel_ += count;
  return kSuccess;
}

// For several NCCL ranks in one process.
Result Net::connectToItself(Handle& handle, Comm*& comm) {
  const std::lock_guard lock(mutex_);
  const auto listener = listeners_.find(handle.listener);
  if (listener == listeners_.end()) {
    return failed(kRemoteError, "this rank does not listen there any more");
  }
  uint32_t channel = 0;
  if (const Result result = nextChannels(2, channel); result != kSuccess) return result;
  const auto sender = std::make_shared<Comm>(rank_, channel, true);
  const auto receiver = std::make_shared<Comm>(rank_, channel + 1, false);
  comms_[sender->channel] = sender;
  comms_[receiver->channel] = receiver;
  listener->second->waiting.push_back(receiver);
  comm = sender.get();
  return kSuccess;
}

Result Net::accept(Listener& listener, Comm*& comm) {
  if (broken_) return failed(kSystemError, why_);
  if (!ready_) return kSuccess;
  std::shared_ptr<Comm> next;
  {
    const std::lock_guard lock(mutex_);
    if (listener.waiting.empty()) return kSuccess;
    next = listener.waiting.front();
    listener.waiting.pop_front();
  }
  if (next->peer != rank_) {
    endpoint_->reactor().post(
        [this, next] { say(next->peer, {Kind::kAccepted, next->channel, 0}); });
  }
  comm = next.get();
  return kSuccess;
}

void Net::close(Comm& closed) {
  if (closed.peer == rank_) return closeOwn(closed);
  std::shared_ptr<Comm> comm = closed.shared_from_this();
  // Frees the memory of all requests.
  endpoint_->reactor().run([this, comm] {
    const Kind kind = comm->sends ? Kind::kSenderClosed : Kind::kReceiverClosed;
    say(comm->peer, {kind, comm->channel, comm->messages});
    comm->most = comm->messages;
    const std::lock_guard lock(mutex_);
    comms_.erase(comm->channel);
  });
  // Sent messages continue, and the receiver closes the channel.
  if (!comm->sends || comm->failed || !comm->idle()) {
    endpoint_->reactor().run(
        [this, comm] { endpoint_->closeChannel(comm->channel, "NCCL has closed the connection"); });
  }
  comm->forgetRequests();
}

// The other end fails its pending requests.
void Net::closeOwn(Comm& closed) {
  const std::shared_ptr<Comm> comm = closed.shared_from_this();
  endpoint_->reactor().run([this, comm] {
    own_.forget(comm->ownChannel(), comm->sends);
    const auto other = commOf(rank_, comm->sends ? comm->channel + 1 : comm->channel - 1);
    if (other && comm->sends) {
      other->most = other->messages;
      checkEnd(*other);
    } else if (other) {
      other->fail("this rank has closed the connection");
    }
    const std::lock_guard lock(mutex_);
    comms_.erase(comm->channel);
  });
  comm->forgetRequests();
}

void Net::close(Listener& listener) {
  std::deque<std::shared_ptr<Comm>> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting.swap(listener.waiting);
    for (const auto& comm : waiting) comms_.erase(comm->channel);
    listeners_.erase(listener.number);
  }
  for (const auto& comm : waiting) {
    if (comm->peer == rank_) {
      closeOwn(*comm);
      continue;
    }
    endpoint_->reactor().post(
        [this, comm] { say(comm->peer, {Kind::kRefused, comm->channel, 0}); });
    drop(comm->channel);
  }
}

// ---- messages ----------------------------------------------------------------------------------

Result Net::send(Comm& comm, const void* data, size_t bytes, int tag, NetRequest*& request) {
  if (comm.failed) return failed(kRemoteError, comm.why());
  request = comm.take(1);
  if (!request) return kSuccess;  // NCCL retries
  request->bytes[0] = bytes;
  endpoint_->reactor().post([this, request, data, bytes, tag, comm = comm.shared_from_this()] {
    ++comm->messages;
    Done done = [request, comm](std::exception_ptr error) { note(*request, *comm, error); };
    if (comm->peer == rank_) {
      own_.send(comm->ownChannel(), tag, data, bytes, std::move(done));
    } else {
      endpoint_->send(flowOf(*comm, tag), data, bytes, kFingerprint, std::move(done));
    }
  });
  return kSuccess;
}

Result Net::receive(Comm& comm, int count, void** data, const size_t* bytes, const int* tags,
                    NetRequest*& request) {
  if (count < 1 || count > kMostGrouped) {
    return failed(kInvalidArgument, "a receive has 1.." + std::to_string(kMostGrouped) +
                                        " buffers, not " + std::to_string(count));
  }
  if (comm.failed) return failed(kRemoteError, comm.why());
  request = comm.take(count);
  if (!request) return kSuccess;
  struct Buffer {
    void* data;
    size_t bytes;
    int tag;
  };
  std::array<Buffer, kMostGrouped> buffers{};
  for (int i = 0; i < count; ++i) buffers[static_cast<size_t>(i)] = {data[i], bytes[i], tags[i]};
  endpoint_->reactor().post([this, request, count, buffers, comm = comm.shared_from_this()] {
    comm->posted += static_cast<uint64_t>(count);
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      const Buffer& buffer = buffers[i];
      Done done = [this, request, comm](std::exception_ptr error) {
        ++comm->messages;
        note(*request, *comm, error);
        checkEnd(*comm);
      };
      if (comm->peer == rank_) {
        own_.receive(comm->ownChannel(), buffer.tag, buffer.data, buffer.bytes, &request->bytes[i],
                     std::move(done));
      } else {
        endpoint_->receiveUpTo(flowOf(*comm, buffer.tag), buffer.data, buffer.bytes, kFingerprint,
                               &request->bytes[i], std::move(done));
      }
    }
    checkEnd(*comm);
  });
  return kSuccess;
}

Result Net::test(NetRequest& request, bool& done, int* bytes) {
  done = request.left == 0;
  const std::shared_ptr<Comm> comm = request.comm;
  if (comm->failed && (!done || request.bad)) return failed(kRemoteError, comm->why());
  if (!done) return kSuccess;
  for (size_t i = 0; bytes && i < static_cast<size_t>(request.count); ++i) {
    bytes[i] = static_cast<int>(request.bytes[i]);
  }
  request.used = false;
  request.comm = nullptr;
  return kSuccess;
}

}  // namespace topoopt::nccl
