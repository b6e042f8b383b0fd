#include "transport/libfabric/link.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "common/log.h"

namespace topoopt {
namespace {

constexpr size_t kSlotBytes = 8 << 10;
// `shm` copies messages of up to a page into the other end's memory. It reads longer ones from this
// process, which must then not end first.
constexpr size_t kShmSlotBytes = 4 << 10;
// Limit of the wait for the end of one side.
constexpr std::chrono::milliseconds kSettleTime{1000};
// Default limits of the wait for requested memory, which blocks the reactor; then the link is lost.
constexpr std::chrono::milliseconds kShortestWait{50};
constexpr std::chrono::milliseconds kLongestWait{500};
constexpr int kPayloadTimes = 4;
constexpr std::chrono::milliseconds kCloseTime{200};

constexpr char kAsleep = 'z';
constexpr char kWake = 'w';
constexpr char kPing = 'p';
constexpr char kGoodbye = 'g';  // followed by a number

struct Hello {
  char magic[8];
  char provider[16];
  uint32_t slot_bytes;
  uint32_t name_bytes;
};
constexpr char kMagic[8] = {'t', 'o', 'p', 'o', 'f', 'a', 'b', '2'};
constexpr size_t kMostNameBytes = 1024;

// Address of the socket's interface; empty if it has none.
std::vector<std::byte> sourceOf(int fd, const std::string& provider) {
  if (provider == "shm") return {};
  sockaddr_storage near{};
  socklen_t size = sizeof near;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&near), &size) != 0 ||
      (near.ss_family != AF_INET && near.ss_family != AF_INET6)) {
    auto& loopback = reinterpret_cast<sockaddr_in&>(near);
    loopback = {};
    loopback.sin_family = AF_INET;
    loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    size = sizeof loopback;
  } else if (near.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(near).sin_port = 0;
  } else {
    reinterpret_cast<sockaddr_in6&>(near).sin6_port = 0;
  }
  const auto* const bytes = reinterpret_cast<const std::byte*>(&near);
  return {bytes, bytes + size};
}

// Ports of closed links whose other ends may still use their shared memory: within one process,
// `shm` maps it once for both. They close when the other end has closed its socket.
struct Lingering {
  std::mutex mutex;
  std::vector<std::pair<std::unique_ptr<FabricPort>, Descriptor>> ports;
};

void linger(std::unique_ptr<FabricPort> port, Descriptor socket) {
  static auto& lingering = *new Lingering;  // libfabric may end before static objects
  const std::lock_guard lock(lingering.mutex);
  lingering.ports.emplace_back(std::move(port), std::move(socket));
  std::erase_if(lingering.ports, [](const auto& entry) {
    char bytes[64];
    ssize_t got = 1;
    while (got > 0) got = recv(entry.second.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    return got == 0 || (errno != EAGAIN && errno != EINTR);
  });
}

size_t slotBytesOf(const std::string& provider) {
  return provider == "shm" ? kShmSlotBytes : kSlotBytes;
}

}  // namespace

FabricLink::FabricLink(const LinkSpec& spec, const Context& context)
    : Link(spec, context, {.acknowledgements = this, .lent_memory = this, .replaceable = this}),
      provider_(spec.provider),
      slot_bytes_(slotBytesOf(spec.provider)),
      memory_wait_(spec.memory_wait) {
  take(spec);
}

void FabricLink::take(const LinkSpec& spec) {
  socket_.reset(spec.fd);
  fcntl(socket_.get(), F_SETFL, fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
  port_ = std::make_unique<FabricPort>(FabricPort::PortSetup{.provider = provider_,
                                                             .source = sourceOf(spec.fd, provider_),
                                                             .slots = kSlots,
                                                             .slot_bytes = slot_bytes_,
                                                             .payloads = kPayloads});
  free_slots_.clear();
  for (size_t i = 0; i < kSlots; ++i) free_slots_.push_back(i);
}

void FabricLink::reopenBytes(const LinkSpec& spec) {
  control_.clear();
  unposted_.clear();
  arrived_.clear();
  unreceived_.clear();
  writing_.clear();
  awaited_.clear();
  last_words_.reset();
  attached_ = broken_ = reading_ended_ = end_wanted_ = end_seen_ = socket_ended_ = false;
  noted_ = peer_asleep_ = active_ = refused_ = room_wanted_ = false;
  sent_messages_ = taken_messages_ = in_flight_ = written_ = begun_ = acknowledged_ = looked_ = 0;
  received_messages_ = posted_again_ = said_posted_ = consumed_ = said_consumed_ = 0;
  looked_ahead_ = pause_at_ = 0;
  into_ = nullptr;
  filled_ = 0;
  payload_time_ = {};
  batch_bytes_ = kBatchBytes;
  guarded([&] { take(spec); });
}

void FabricLink::start() {
  reactor().watch(socket_.get(), EPOLLIN | EPOLLRDHUP | EPOLLET, this);
  if (!port_) return;  // then a reopened link is broken
  waits_on_ = port_->descriptor();
  if (waits_on_ >= 0) reactor().watch(waits_on_, EPOLLIN, this);
  reactor().addPoller(this);
  sendHello();
}

// The socket is new, so it has room.
void FabricLink::sendHello() {
  const std::vector<std::byte>& name = port_->name();
  Hello hello{};
  std::memcpy(hello.magic, kMagic, sizeof kMagic);
  std::strncpy(hello.provider, provider_.c_str(), sizeof hello.provider - 1);
  hello.slot_bytes = static_cast<uint32_t>(slot_bytes_);
  hello.name_bytes = static_cast<uint32_t>(name.size());
  std::vector<std::byte> bytes(sizeof hello + name.size());
  std::memcpy(bytes.data(), &hello, sizeof hello);
  std::memcpy(bytes.data() + sizeof hello, name.data(), name.size());
  const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent >= 0 && static_cast<size_t>(sent) < bytes.size()) {
    broken("its socket has no room for a name");
  }
}

// ---- the socket --------------------------------------------------------------------------------

void FabricLink::onReady(uint32_t) {
  readSocket();  // poll() follows
}

void FabricLink::readSocket() {
  if (socket_ended_) return;
  std::byte bytes[512];
  for (;;) {
    const ssize_t got = recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (got > 0) {
      control_.insert(control_.end(), bytes, bytes + got);
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    takeControl();
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    return socketEnded();
  }
}

void FabricLink::takeControl() {
  if (broken_ || (!attached_ && !takeHello())) return;
  size_t taken = 0;
  for (; taken < control_.size(); ++taken) {
    const char what = static_cast<char>(control_[taken]);
    if (what == kGoodbye) {
      uint64_t messages = 0;
      if (control_.size() - taken <= sizeof messages) break;
      std::memcpy(&messages, control_.data() + taken + 1, sizeof messages);
      last_words_ = messages;
      taken += sizeof messages;
    } else if (what == kWake) {
      noted_ = false;
    } else if (what == kAsleep) {
      peer_asleep_ = true;
      if (std::exchange(active_, false)) active();
    } else if (what != kPing) {
      return broken("received something that libfabric's links do not say");
    }
  }
  control_.erase(control_.begin(), control_.begin() + static_cast<ptrdiff_t>(taken));
}

// Returns false if it is incomplete or invalid.
bool FabricLink::takeHello() {
  Hello hello{};
  if (control_.size() < sizeof hello) return false;
  std::memcpy(&hello, control_.data(), sizeof hello);
  if (std::memcmp(hello.magic, kMagic, sizeof kMagic) != 0 || hello.name_bytes > kMostNameBytes) {
    broken("the other end is no link over libfabric");
    return false;
  }
  hello.provider[sizeof hello.provider - 1] = '\0';
  if (hello.provider != provider_ || hello.slot_bytes != slot_bytes_) {
    broken("the other end uses libfabric's provider " + std::string(hello.provider) +
           ", this one " + provider_ + ": choose one transport for all ranks");
    return false;
  }
  if (control_.size() < sizeof hello + hello.name_bytes) return false;
  guarded([&] { port_->connect({control_.data() + sizeof hello, hello.name_bytes}); });
  control_.erase(control_.begin(),
                 control_.begin() + static_cast<ptrdiff_t>(sizeof hello + hello.name_bytes));
  if (broken_) return false;
  attached_ = true;
  logLine(LogLevel::kInfo,
          "link " + textOf(name()) + ": libfabric " + fabricVersion() + ", " + port_->provider());
  becameReadable();
  becameWritable();
  if (std::exchange(end_wanted_, false)) endWriting();
  return true;
}

// If the socket is full, the other end has enough to read.
void FabricLink::say(char what) {
  [[maybe_unused]] const ssize_t sent =
      ::send(socket_.get(), &what, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void FabricLink::socketEnded() {
  if (std::exchange(socket_ended_, true)) return;
  ended_at_ = Reactor::Clock::now();
  becameReadable();
  becameWritable();
}

// Returns whether all data from the departed end has arrived: up to its announced count, or,
// without one, the data that is there.
bool FabricLink::drained() {
  if (!attached_ || !port_ || broken_) return true;
  if (last_words_ && received_messages_ < *last_words_) {
    return Reactor::Clock::now() - ended_at_ > kSettleTime;
  }
  return !progress();
}

// ---- the provider ------------------------------------------------------------------------------

void FabricLink::broken(const std::string& why) {
  if (std::exchange(broken_, true)) return;
  error_ = why;
  loss_ = Loss::kBroken;
  becameReadable();
  becameWritable();
}

void FabricLink::failed(const FabricPort::Completion& failure) {
  if (!failure.gone) return broken(failure.why);
  socketEnded();
}

// Notifies an end that sleeps without a descriptor.
void FabricLink::active() {
  if (waits_on_ >= 0) return;
  if (std::exchange(peer_asleep_, false)) {
    say(kWake);
  } else {
    active_ = true;
  }
}

// Returns whether anything has happened.
bool FabricLink::progress() {
  if (!port_) return false;
  done_.clear();
  port_->progress(done_);
  for (const FabricPort::Completion& done : done_) handle(done);
  const bool some = !done_.empty();
  if (attached_ && !broken_) {
    post();
    if (refused_) becameWritable();
  }
  return some;
}

void FabricLink::handle(const FabricPort::Completion& done) {
  switch (done.done) {
    case FabricPort::Done::kSent:
      --in_flight_;
      free_slots_.push_back(done.index);
      if (wantsToWrite()) becameWritable();
      if (room_wanted_) becameReadable();
      break;
    case FabricPort::Done::kReceived:
      active();
      received(done.index, done.bytes);
      break;
    case FabricPort::Done::kWritten:
      payloadWritten(done.index);
      break;
    case FabricPort::Done::kPlaced:
      active();
      placed(static_cast<uint32_t>(done.data));
      break;
    case FabricPort::Done::kFailed:
      failed(done);
      break;
  }
}

void FabricLink::received(size_t slot, size_t bytes) {
  MessageHeader header{};
  if (bytes < sizeof header) return broken("received something that is no message");
  const std::byte* const message = port_->receiveSlot(slot);
  std::memcpy(&header, message, sizeof header);
  // A running write may be consumed before its completion arrives here.
  const bool right = header.bytes == bytes - sizeof header && header.consumed <= begun_ &&
                     header.posted <= sent_messages_;
  if (!right) return broken("received something that is no message");
  ++received_messages_;
  acknowledged_ = std::max(acknowledged_, header.consumed);
  taken_messages_ = std::max(taken_messages_, header.posted);
  if (wantsToWrite()) becameWritable();
  if (room_wanted_) becameReadable();
  switch (header.kind) {
    case Kind::kBytes:
      arrived_.push_back({slot, sizeof header, bytes, header.position});
      return becameReadable();
    case Kind::kAdvert: {
      FabricPort::Advert advert;
      if (header.bytes != sizeof advert) return broken("received something that is no message");
      std::memcpy(&advert, message + sizeof header, sizeof advert);
      takeAdvert(header.position, advert);
      break;
    }
    case Kind::kEnd:
      end_seen_ = true;
      becameReadable();
      break;
    case Kind::kCounts:
      break;
    default:
      return broken("received something that is no message");
  }
  postReceive(slot);
  sendCounts(false);
}

void FabricLink::postReceive(size_t slot) {
  ++posted_again_;
  unreceived_.push_back(slot);
  guarded([&] {
    while (!unreceived_.empty() && port_->receive(unreceived_.front())) unreceived_.pop_front();
  });
}

// ---- ends --------------------------------------------------------------------------------------

// The other system acknowledges on the socket, even for a stopped process.
Acknowledged FabricLink::acknowledged() {
  const bool advances = std::exchange(looked_, acknowledged_) != acknowledged_;
  if (dead() || advances || acknowledged_ >= written_) return Acknowledged::kAdvances;
  tcp_info info{};
  socklen_t size = sizeof info;
  const bool known =
      getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_unacked > 0;
  say(kPing);
  return known && info.tcpi_retransmits > 0 ? Acknowledged::kNothing : Acknowledged::kAdvances;
}

template <typename Condition>
bool FabricLink::waitUntil(Condition met) {
  const std::chrono::duration<double> wait =
      memory_wait_.value_or(std::clamp<std::chrono::duration<double>>(kPayloadTimes * payload_time_,
                                                                      kShortestWait, kLongestWait));
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(wait);
  while (!met() && !broken_ && port_ && Clock::now() < until) {
    if (!progress()) std::this_thread::yield();  // the other end may need the core
  }
  return met();
}

// Waits for the memory of incoming payloads.
void FabricLink::settleReading(const std::byte* begin, const std::byte* end) {
  const bool settled = waitUntil([&] {
    return std::none_of(awaited_.begin(), awaited_.end(), [&](const Awaited& awaited) {
      return !awaited.placed && awaited.place >= begin && awaited.place < end;
    });
  });
  if (settled) return;
  broken("a payload whose receive was given up did not come");
  closePort();
}

// Waits for the memory of outgoing payloads.
void FabricLink::settleWriting() {
  const bool settled = waitUntil([&] {
    return std::none_of(writing_.begin(), writing_.end(), [](const Writing& writing) {
      return writing.state == Writing::State::kInFlight;
    });
  });
  if (settled) return;
  broken("a payload that was given up could not be written");
  closePort();
}

// Stops all reads and writes of this memory. `shm` moves data only while it is called; its memory
// stays until the other end has closed, see linger().
void FabricLink::closePort() {
  if (!port_) return;
  if (waits_on_ >= 0) {
    reactor().unwatch(std::exchange(waits_on_, -1));
    port_.reset();
  } else {
    for (const Awaited& awaited : awaited_) port_->withdraw(awaited.index);
    given_up_ = std::move(port_);
  }
}

void FabricLink::closeBytes() {
  reactor().removePoller(this);
  if (port_ && attached_ && !broken_ && !socket_ended_ && !leaves_nothing_) {
    const auto until = Reactor::Clock::now() + kCloseTime;
    while (in_flight_ > 0 && !broken_ && !socket_ended_ && Reactor::Clock::now() < until) {
      progress();
    }
    char words[1 + sizeof sent_messages_] = {kGoodbye};
    std::memcpy(words + 1, &sent_messages_, sizeof sent_messages_);
    [[maybe_unused]] const ssize_t sent =
        ::send(socket_.get(), words, sizeof words, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  reactor().unwatch(socket_.get());
  closePort();
  if (given_up_) {
    shutdown(socket_.get(), SHUT_WR);
    linger(std::move(given_up_), std::move(socket_));
  }
  shutdown(socket_.get(), SHUT_RDWR);
  socket_.reset();
}

void FabricLink::poll() {
  progress();
  if (socket_ended_) {
    becameReadable();
    becameWritable();
  }
}

bool FabricLink::prepareToSleep() {
  if (dead() || !port_) return true;
  sendCounts(true);
  if (!attached_) return true;  // the name arrives over the socket
  if (!unposted_.empty() || refused_ || socket_ended_) return false;
  if (waits_on_ >= 0) return port_->mayWait();
  // Such a provider may move a payload in pieces and report only the last.
  if (!awaited_.empty() || !writing_.empty() || in_flight_ > 0) return false;
  if (!std::exchange(noted_, true)) say(kAsleep);
  return !progress();
}

}  // namespace topoopt
