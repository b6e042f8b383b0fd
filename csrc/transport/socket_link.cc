#include "transport/socket_link.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace topoopt {
namespace {

constexpr size_t kReadAhead = 64 << 10;
// Rounds per wake-up, so that one busy link cannot keep the others waiting.
constexpr int kReadRounds = 16;
constexpr int kWriteRounds = 32;

std::string errnoText(int error) { return std::generic_category().message(error); }

}  // namespace

std::string LinkName::text() const {
  return "server " + std::to_string(source) + " port " + std::to_string(source_port) +
         " -> server " + std::to_string(target) + " port " + std::to_string(target_port);
}

SocketLink::SocketLink(Reactor& reactor, int fd, LinkName name, bool sends, Observer* observer)
    : reactor_(reactor),
      fd_(fd),
      name_(name),
      sends_(sends),
      observer_(observer),
      buffer_(kReadAhead) {
  fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
}

SocketLink::~SocketLink() { close(); }

void SocketLink::start() { reactor_.watch(fd_, EPOLLIN, this); }

void SocketLink::close() {
  if (fd_ < 0) return;
  reactor_.forget(fd_);
  ::close(std::exchange(fd_, -1));
}

void SocketLink::finish() {
  if (!sends_) return;  // the sending end decides
  finishing_ = true;
  if (!dead() && idle()) shutdown(fd_, SHUT_WR);
}

void SocketLink::lose(const std::string& why) {
  if (dead()) return;
  close();
  observer_->onLost(*this, why);
}

LinkCounters SocketLink::counters() const {
  LinkCounters counters = counters_;
  if (!idle()) {
    counters.busy_s += std::chrono::duration<double>(Reactor::Clock::now() - busy_since_).count();
  }
  return counters;
}

void SocketLink::onReady(uint32_t events) {
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) readReady();
  if (!dead() && (events & EPOLLOUT)) writeReady();
}

// Reads into `into`, first from what was read ahead. False when the socket has no more for now.
bool SocketLink::readSome(std::byte* into, size_t wanted, size_t& got) {
  const size_t ahead = std::min(wanted, buffer_end_ - buffer_begin_);
  if (ahead > 0) {
    std::memcpy(into, buffer_.data() + buffer_begin_, ahead);
    buffer_begin_ += ahead;
    got = ahead;
    return true;
  }
  const ssize_t count = recv(fd_, into, wanted, 0);
  got = count > 0 ? static_cast<size_t>(count) : 0;
  if (count > 0) return true;
  if (count == 0) {
    lose("closed by the other end");
  } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
    lose(errnoText(errno));
  }
  return false;
}

// Makes a whole header available at buffer_begin_. False when there is none yet.
bool SocketLink::takeHeader() {
  while (buffer_end_ - buffer_begin_ < sizeof(FrameHeader)) {
    if (buffer_begin_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + buffer_begin_, buffer_end_ - buffer_begin_);
      buffer_end_ -= std::exchange(buffer_begin_, 0);
    }
    const ssize_t count = recv(fd_, buffer_.data() + buffer_end_, buffer_.size() - buffer_end_, 0);
    if (count > 0) {
      buffer_end_ += static_cast<size_t>(count);
      continue;
    }
    if (count == 0) {
      lose("closed by the other end");
    } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      lose(errnoText(errno));
    }
    return false;
  }
  std::memcpy(&incoming_, buffer_.data() + buffer_begin_, sizeof incoming_);
  buffer_begin_ += sizeof incoming_;
  if (incoming_.magic != kFrameMagic || incoming_.payload_bytes > kMaxPayloadBytes) {
    lose("received something that is not a frame");
    return false;
  }
  return true;
}

void SocketLink::readReady() {
  for (int round = 0; round < kReadRounds && !dead();) {
    if (!in_payload_) {
      if (!takeHeader()) return;
      in_payload_ = true;
      payload_left_ = incoming_.payload_bytes;
      payload_at_ = observer_->onHeader(*this, incoming_);
    }
    if (payload_left_ > 0) {
      size_t got;
      if (!readSome(payload_at_, payload_left_, got)) return;
      payload_at_ += got;
      payload_left_ -= got;
      ++round;
    }
    if (payload_left_ > 0) continue;
    in_payload_ = false;
    if (incoming_.type == FrameType::kData) counters_.received_bytes += incoming_.payload_bytes;
    observer_->onFrame(*this, incoming_);
  }
  // What was read ahead does not make the socket ready again.
  if (!dead() && buffer_end_ > buffer_begin_) {
    reactor_.post([this] {
      if (!dead()) readReady();
    });
  }
}

void SocketLink::redirect(const std::byte* begin, const std::byte* end) {
  if (!in_payload_ || payload_left_ == 0 || payload_at_ < begin || payload_at_ >= end) return;
  sink_.resize(payload_left_);
  payload_at_ = sink_.data();
}

void SocketLink::send(OutFrame frame) {
  if (dead() || finishing_ || write_failed_) return;
  if (idle()) busy_since_ = Reactor::Clock::now();
  const FlowKey key = FlowKey::of(frame.header);
  if (frame.header.source != name_.source) {
    relay_bytes_ += frame.header.payload_bytes;
    counters_.relay_peak_bytes = std::max(counters_.relay_peak_bytes, relay_bytes_);
  }
  auto& queue = queues_[key];
  if (queue.empty()) turn_.push_back(key);
  queue.push_back(std::move(frame));
  if (!want_write_ && !writing_) writeReady();
}

void SocketLink::sendControl(OutFrame frame) {
  if (dead() || finishing_ || write_failed_) return;
  if (idle()) busy_since_ = Reactor::Clock::now();
  control_.push_back(std::move(frame));
  if (!want_write_ && !writing_) writeReady();
}

bool SocketLink::nextFrame() {
  if (!control_.empty()) {
    current_ = std::make_unique<OutFrame>(std::move(control_.front()));
    control_.pop_front();
  } else if (!turn_.empty()) {
    const FlowKey key = turn_.front();
    turn_.pop_front();
    auto& queue = queues_[key];
    current_ = std::make_unique<OutFrame>(std::move(queue.front()));
    queue.pop_front();
    if (queue.empty()) {
      queues_.erase(key);
    } else {
      turn_.push_back(key);
    }
  } else {
    return false;
  }
  if (!current_->owned.empty()) current_->payload = current_->owned.data();
  written_ = 0;
  return true;
}

void SocketLink::frameWritten() {
  const FrameHeader& header = current_->header;
  if (header.type == FrameType::kData) {
    counters_.sent_bytes += header.payload_bytes;
    if (header.source != name_.source) {
      counters_.relayed_bytes += header.payload_bytes;
      relay_bytes_ -= header.payload_bytes;
    }
    counters_.overhead_bytes += sizeof(FrameHeader);
  } else {
    counters_.overhead_bytes += sizeof(FrameHeader) + header.payload_bytes;
  }
  const std::function<void()> sent = std::move(current_->sent);
  current_.reset();
  if (idle()) {
    counters_.busy_s += std::chrono::duration<double>(Reactor::Clock::now() - busy_since_).count();
  }
  if (sent) sent();
}

void SocketLink::writeReady() {
  writing_ = true;  // `sent` callbacks may queue more frames
  bool blocked = false;
  for (int round = 0; round < kWriteRounds && !dead() && !blocked; ++round) {
    if (!current_ && !nextFrame()) break;
    const size_t header_left = written_ < sizeof(FrameHeader) ? sizeof(FrameHeader) - written_ : 0;
    const size_t payload_done = written_ - (sizeof(FrameHeader) - header_left);
    iovec parts[2] = {
        {reinterpret_cast<std::byte*>(&current_->header) + (sizeof(FrameHeader) - header_left),
         header_left},
        {const_cast<std::byte*>(current_->payload) + payload_done,
         current_->header.payload_bytes - payload_done}};
    msghdr message{};
    message.msg_iov = header_left > 0 ? parts : parts + 1;
    message.msg_iovlen = header_left > 0 ? 2 : 1;
    const ssize_t count = sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (count < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        blocked = true;
      } else if (errno != EINTR) {
        writing_ = false;
        const bool gone = errno == EPIPE || errno == ECONNRESET;
        return gone ? stopWriting() : lose(errnoText(errno));
      }
      continue;
    }
    written_ += static_cast<size_t>(count);
    if (written_ == sizeof(FrameHeader) + current_->header.payload_bytes) frameWritten();
  }
  writing_ = false;
  if (dead()) return;
  updateInterest();
  if (finishing_ && idle()) shutdown(fd_, SHUT_WR);
}

// The other end is gone, but what it sent before, such as the reason, can still be read; the link
// is lost when that ends.
void SocketLink::stopWriting() {
  write_failed_ = true;
  control_.clear();
  queues_.clear();
  turn_.clear();
  current_.reset();
  updateInterest();
}

void SocketLink::updateInterest() {
  const bool want = !idle();
  if (want == want_write_) return;
  want_write_ = want;
  reactor_.change(fd_, want ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void SocketLink::dropOwn(uint32_t channel, const std::function<void(const FrameHeader&)>& dropped) {
  for (auto entry = queues_.begin(); entry != queues_.end();) {
    const FlowKey& key = entry->first;
    if (key.channel == channel && key.source == name_.source) {
      for (const OutFrame& frame : entry->second) dropped(frame.header);
      std::erase(turn_, key);
      entry = queues_.erase(entry);
    } else {
      ++entry;
    }
  }
  if (!current_ || current_->header.channel != channel ||
      current_->header.type != FrameType::kData || current_->header.source != name_.source) {
    return;
  }
  current_->sent = nullptr;
  if (current_->owned.empty() && current_->header.payload_bytes > 0) {
    current_->owned.assign(current_->payload, current_->payload + current_->header.payload_bytes);
    current_->payload = current_->owned.data();
  }
}

}  // namespace topoopt
