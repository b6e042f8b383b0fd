// What tests of links share: both ends of one, and the fixture of the contract of every kind.

#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <tuple>
#include <utility>

#include "support/network.h"
#include "support/traffic.h"
#include "transport/endpoint/open_link.h"
#include "transport/libfabric/port.h"
#include "transport/links/link.h"
#include "transport/tls/session.h"

namespace topoopt {

struct Frame {
  FrameHeader header;
  std::vector<std::byte> payload;  // empty if it was placed
  bool placed;
};

// One end of a link, with what has arrived there.
class End final : public Link::Observer {
 public:
  End(int rank, const LinkSpec& spec) : link_(openLink(spec, {rank, reactor_, buffers_, *this})) {
    on([](Link& link) { link.start(); });
  }
  ~End() override {
    on([](Link& link) { link.close(); });
    reactor_.stop();
  }

  void on(const std::function<void(Link&)>& function) {
    reactor_.run([&] { function(*link_); });
  }
  Reactor& reactor() { return reactor_; }
  // Once all is written: the other end may have it before this end knows.
  LinkCounters counters() {
    LinkCounters counters;
    eventually("all is written", [&] {
      bool idle = false;
      on([&](Link& link) {
        idle = link.idle() || link.dead();
        counters = link.counters();
      });
      return idle;
    });
    return counters;
  }

  // A data frame of this end, or relayed for `source`; `data` stays valid until it is sent.
  static OutFrame frame(int source, uint64_t stream, uint64_t message,
                        const std::vector<std::byte>& data,
                        std::shared_ptr<SendProgress> progress = nullptr) {
    OutFrame frame;
    frame.header.source = static_cast<uint16_t>(source);
    frame.header.channel = 1;
    frame.header.stream = stream;
    frame.header.message = message;
    frame.header.message_bytes = data.size();
    frame.header.payload_bytes = static_cast<uint32_t>(data.size());
    frame.payload = data.data();
    frame.message = std::move(progress);
    return frame;
  }

  // Waits for `count` frames and takes all that came.
  std::vector<Frame> waitForFrames(size_t count) {
    std::unique_lock lock(mutex_);
    // No frame follows a loss.
    changed_.wait_for(lock, kWaitLimit, [&] { return frames_.size() >= count || !lost_.empty(); });
    EXPECT_GE(frames_.size(), count)
        << "only " << frames_.size() << " frames of " << count << " arrived"
        << (lost_.empty() ? "" : ", then the link was lost: " + lost_);
    return std::exchange(frames_, {});
  }
  std::string waitForLoss() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kWaitLimit, [&] { return !lost_.empty(); }));
    return lost_;
  }

  // Where payloads go, if they shall go anywhere; on the reactor thread.
  std::byte* place = nullptr;
  std::function<std::byte*(const FrameHeader&)> place_of{};  // for each its own

 private:
  std::byte* onHeader(Link&, const FrameHeader& header) override {
    return place_of ? place_of(header) : place;
  }
  void onFrame(Link&, const FrameHeader& header, PayloadBuffer payload, bool placed) override {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(lost_, "") << "a frame after the link was lost";
    frames_.push_back({header, {payload.data(), payload.data() + payload.size()}, placed});
    changed_.notify_all();
  }
  void onLost(Link&, Loss, const std::string& why) override {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(lost_, "") << "lost twice";
    lost_ = why;
    changed_.notify_all();
  }

  Reactor reactor_;
  BufferPool buffers_;
  std::unique_ptr<Link> link_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Frame> frames_;
  std::string lost_;
};

// While it lives, the end's reactor does nothing.
class Blocked {
 public:
  explicit Blocked(End& end) {
    std::promise<void> started;
    end.reactor().post([&started, released = released_.get_future().share()] {
      started.set_value();
      released.wait_for(kWaitLimit);
    });
    started.get_future().wait();
  }
  ~Blocked() { released_.set_value(); }

 private:
  std::promise<void> released_;
};

struct Carrier {
  LinkKind kind;
  bool encrypted = false;
  std::string provider{};  // of libfabric
  bool fast = false;       // a TCP connection that may hold as much as that of a fast link
  bool threads = false;    // of its own
  bool zero_copy = false;  // although the kernel copies on loopback
};

inline std::string nameOf(const Carrier& carrier) {
  std::string name = carrier.encrypted ? "tls" : kindName(carrier.kind);
  if (!carrier.provider.empty()) name += "_" + carrier.provider;
  if (carrier.threads) name += "_threads";
  if (carrier.zero_copy) name += "_zero_copy";
  return carrier.fast ? "fast_" + name : name;
}

class LinkContract : public testing::TestWithParam<Carrier> {
 protected:
  void SetUp() override {
    if (GetParam().encrypted && tlsLibrary().empty()) GTEST_SKIP() << "a build without TLS";
    if (GetParam().zero_copy && !kernelSendsWithoutCopy()) {
      GTEST_SKIP() << "no sends without copy (SO_ZEROCOPY)";
    }
#ifdef __SANITIZE_THREAD__
    // It sees what libfabric copies and not the atomic operations that order it.
    if (GetParam().kind == LinkKind::kFabric) GTEST_SKIP() << "libfabric is not built for this";
#endif
    if (GetParam().kind == LinkKind::kFabric && !fabricMissing().empty()) {
      GTEST_SKIP() << fabricMissing();
    }
    open();
  }

  // Joins two new ends. A busy machine may suspend an end for longer than a link waits for its
  // memory by default, see LinkSpec::memory_wait.
  void open(std::optional<std::chrono::milliseconds> memory_wait = std::nullopt) {
    LinkSpec near{.link = {0, -1, 1, -1}, .kind = GetParam().kind, .provider = GetParam().provider};
    LinkSpec far{.link = {1, -1, 0, -1}, .kind = GetParam().kind, .provider = GetParam().provider};
    if (GetParam().encrypted) near.tls_key = far.tls_key = std::string(TlsSession::kKeyBytes, 'k');
    if (GetParam().fast) {
      std::tie(near.fd, far.fd) = fastPair();
      near.threads = far.threads = GetParam().threads;
      if (GetParam().zero_copy) near.zero_copy = far.zero_copy = ZeroCopy::kAlways;
    } else {
      int fds[2];
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
      near.fd = fds[0];
      far.fd = fds[1];
    }
    near.memory_wait = far.memory_wait = memory_wait;
    a_ = std::make_unique<End>(0, near);
    b_ = std::make_unique<End>(1, far);
  }

  // What a link gathers at a time for its flows to take turns in.
  size_t batchBytes() const {
    if (GetParam().kind == LinkKind::kFabric) return 1 << 20;
    return GetParam().fast ? 512 << 10 : 64 << 10;
  }

  static constexpr size_t kLongBytes = 128 << 10;  // a hundred of them no link takes at once
  TestRandom random_{401};
  std::deque<std::vector<std::byte>> data_;  // what is sent; goes after the ends
  std::unique_ptr<End> a_;
  std::unique_ptr<End> b_;
};

}  // namespace topoopt
