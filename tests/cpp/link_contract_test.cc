// The contract of every kind of link.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "network.h"
#include "traffic.h"
#include "transport/descriptor.h"
#include "transport/fabric_port.h"
#include "transport/link.h"
#include "transport/memory_link.h"
#include "transport/tls_session.h"

namespace topoopt {
namespace {

struct Frame {
  FrameHeader header;
  std::vector<std::byte> payload;  // empty if it was placed
  bool placed;
};

// One end of a link, with what has arrived there.
class End final : public Link::Observer {
 public:
  End(int rank, const LinkSpec& spec) : link_(Link::open(spec, {rank, reactor_, buffers_, *this})) {
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
    EXPECT_TRUE(changed_.wait_for(lock, kWaitLimit, [&] { return frames_.size() >= count; }))
        << "only " << frames_.size() << " frames of " << count << " arrived";
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

std::string nameOf(const Carrier& carrier) {
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
#ifdef __SANITIZE_THREAD__
    // It sees what libfabric copies and not the atomic operations that order it.
    if (GetParam().kind == LinkKind::kFabric) GTEST_SKIP() << "libfabric is not built for this";
#endif
    if (GetParam().kind == LinkKind::kFabric && !fabricMissing().empty()) {
      GTEST_SKIP() << fabricMissing();
    }
    LinkSpec near{.link = {0, -1, 1, -1}, .kind = GetParam().kind, .provider = GetParam().provider};
    LinkSpec far{.link = {1, -1, 0, -1}, .kind = GetParam().kind, .provider = GetParam().provider};
    if (GetParam().encrypted) near.tls_key = far.tls_key = std::string(TlsSession::kKeyBytes, 'k');
    if (GetParam().kind == LinkKind::kMemory) {
      const auto wire = std::make_shared<MemoryWire>(16 << 10);
      near.memory = std::make_shared<MemoryEnd>(MemoryEnd{wire, 0});
      far.memory = std::make_shared<MemoryEnd>(MemoryEnd{wire, 1});
    } else if (GetParam().fast) {
      std::tie(near.fd, far.fd) = fastPair();
      near.threads = far.threads = GetParam().threads;
      if (GetParam().zero_copy) near.zero_copy = far.zero_copy = ZeroCopy::kAlways;
    } else {
      int fds[2];
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
      near.fd = fds[0];
      far.fd = fds[1];
    }
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

TEST_P(LinkContract, FramesArriveWholeAndInTheOrderOfTheirFlow) {
  constexpr int kFrames = 300;
  struct Sent {
    const std::vector<std::byte>* data;
    uint64_t message;
  };
  std::map<std::pair<int, uint64_t>, std::deque<Sent>> sent;
  uint64_t bytes[2] = {};
  for (int i = 0; i < 2 * kFrames; ++i) {
    const int side = i % 2;
    const uint64_t stream = random_.between(0, 3);
    const size_t most = random_.chance(0.2) ? kNeighbourPayloadBytes : 5000;
    data_.push_back(randomBytes(random_.between(0, most), random_));
    auto& flow = sent[{side, stream}];
    flow.push_back({&data_.back(), static_cast<uint64_t>(i)});
    bytes[side] += data_.back().size();
    (side == 0 ? a_ : b_)->on([&](Link& link) {
      link.send(End::frame(side, stream, flow.back().message, data_.back()));
    });
  }
  for (const int side : {0, 1}) {
    End& from = side == 0 ? *a_ : *b_;
    End& to = side == 0 ? *b_ : *a_;
    const auto frames = to.waitForFrames(kFrames);
    ASSERT_EQ(frames.size(), static_cast<size_t>(kFrames));
    for (const Frame& frame : frames) {
      auto& flow = sent[{side, frame.header.stream}];
      ASSERT_FALSE(flow.empty());
      EXPECT_EQ(frame.header.message, flow.front().message);
      EXPECT_TRUE(sameBytes(frame.payload, *flow.front().data));
      flow.pop_front();
    }
    EXPECT_EQ(to.counters().received_bytes, bytes[side]);
    EXPECT_EQ(from.counters().sent_bytes, bytes[side]);
    EXPECT_EQ(from.counters().relayed_bytes, 0u);
    EXPECT_EQ(from.counters().overhead_bytes, kFrames * sizeof(FrameHeader));
  }
}

// Each frame finds the other end asleep, or about to fall asleep.
TEST_P(LinkContract, AFrameWakesTheOtherEnd) {
  data_.push_back(randomBytes(8, random_));
  for (uint64_t i = 0; i < 1000; ++i) {
    for (End* end : {a_.get(), b_.get()}) {
      end->on([&](Link& link) { link.send(End::frame(end == a_.get() ? 0 : 1, 0, i, data_[0])); });
    }
    ASSERT_EQ(b_->waitForFrames(1).size(), 1u);
    ASSERT_EQ(a_->waitForFrames(1).size(), 1u);
  }
}

TEST_P(LinkContract, PayloadGoesWhereTheObserverSays) {
  data_.push_back(randomBytes(200000, random_));
  std::vector<std::byte> place(200000);
  b_->on([&](Link&) { b_->place = place.data(); });
  a_->on([&](Link& link) { link.send(End::frame(0, 0, 0, data_[0])); });
  const auto frames = b_->waitForFrames(1);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_TRUE(frames[0].placed);
  EXPECT_TRUE(sameBytes(place, data_[0]));
}

TEST_P(LinkContract, ControlFramesOvertakeDataThatWaits) {
  constexpr size_t kFrames = 100;
  data_.push_back(randomBytes(kLongBytes, random_));
  {
    const Blocked blocked(*b_);
    a_->on([&](Link& link) {
      for (uint64_t i = 0; i < kFrames; ++i) link.send(End::frame(0, 0, i, data_[0]));
    });
    a_->on([&](Link& link) {
      OutFrame control;
      control.header.type = FrameType::kAck;
      link.sendControl(std::move(control));
    });
  }
  const auto frames = b_->waitForFrames(kFrames + 1);
  ASSERT_EQ(frames.size(), kFrames + 1);
  EXPECT_NE(frames.back().header.type, FrameType::kAck);
}

// A flow of long frames and one of short ones, both with more to send than the link takes at once.
TEST_P(LinkContract, FlowsShareTheLinkByBytesNotByFrames) {
  constexpr size_t kShortBytes = 16 << 10;
  constexpr size_t kLong = 64;
  constexpr size_t kShort = 256;
  data_.push_back(randomBytes(kLongBytes, random_));
  data_.push_back(randomBytes(kShortBytes, random_));
  {
    const Blocked blocked(*b_);
    a_->on([&](Link& link) {
      for (uint64_t i = 0; i < kLong; ++i) link.send(End::frame(0, 7, i, data_[0]));
      for (uint64_t i = 0; i < kShort; ++i) link.send(End::frame(0, 8, i, data_[1]));
    });
  }
  const auto frames = b_->waitForFrames(kLong + kShort);
  ASSERT_EQ(frames.size(), kLong + kShort);
  size_t long_bytes = 0;
  size_t short_bytes = 0;
  for (const Frame& frame : frames) {
    (frame.header.stream == 7 ? long_bytes : short_bytes) += frame.payload.size();
    // One turn of difference, and a frame that does not fit into it.
    if (short_bytes < kShort * kShortBytes) {
      EXPECT_LE(long_bytes, short_bytes + 3 * std::max(kLongBytes, batchBytes()));
    }
  }
}

// A barrier that comes while gradients wait does not wait for its turn behind them.
TEST_P(LinkContract, AFlowThatWasIdleBeginsBeforeTheOthers) {
  constexpr size_t kFrames = 300;
  constexpr size_t kFrameBytes = 32 << 10;
  size_t taken = 0;
  data_.push_back(randomBytes(kFrameBytes, random_));
  data_.push_back(randomBytes(8, random_));
  {
    const Blocked blocked(*b_);
    a_->on([&](Link& link) {
      for (uint64_t i = 0; i < kFrames; ++i) {
        for (uint64_t stream : {1, 2, 3}) link.send(End::frame(0, stream, i, data_[0]));
      }
    });
    a_->on([&](Link& link) {  // which has written what fits by now
      taken = link.counters().sent_bytes / kFrameBytes;
      link.send(End::frame(0, 9, 0, data_[1]));
    });
  }
  const auto frames = b_->waitForFrames(3 * kFrames + 1);
  ASSERT_EQ(frames.size(), 3 * kFrames + 1);
  const auto urgent = std::find_if(frames.begin(), frames.end(),
                                   [](const Frame& frame) { return frame.header.stream == 9; });
  ASSERT_NE(urgent, frames.end());
  // Before it are only the frames that were written, and a batch that was gathered.
  EXPECT_LE(static_cast<size_t>(urgent - frames.begin()), taken + batchBytes() / kFrameBytes + 1);
}

// But one that sends a frame each time that it has run out of them does not starve the others.
TEST_P(LinkContract, AFlowThatRunsOutAgainAndAgainTakesTurns) {
  constexpr uint64_t kFrames = 40;
  data_.push_back(randomBytes(kLongBytes, random_));
  data_.push_back(randomBytes(32 << 10, random_));
  uint64_t sent = 0;
  Link* near = nullptr;
  std::function<void()> again = [&] {
    if (++sent > 20 * kFrames) return;
    auto progress = std::make_shared<SendProgress>(
        SendProgress{data_[1].size(), [&](std::exception_ptr) { again(); }});
    near->send(End::frame(0, 9, sent, data_[1], progress));
  };
  a_->on([&](Link& link) {
    near = &link;
    for (uint64_t i = 0; i < kFrames; ++i) link.send(End::frame(0, 1, i, data_[0]));
    again();
  });
  const auto frames = b_->waitForFrames(kFrames + 20 * kFrames);
  a_->on([](Link&) {});  // the last call of `again` has returned
  const auto last = std::find_if(frames.rbegin(), frames.rend(),
                                 [](const Frame& frame) { return frame.header.stream == 1; });
  // In turns of equal bytes, the last long frame comes before half of the short ones have.
  EXPECT_LT(frames.rend() - last, static_cast<ptrdiff_t>(kFrames + 12 * kFrames));
}

TEST_P(LinkContract, DroppedFramesDoNotArriveAndTheirMemoryIsFree) {
  constexpr size_t kFrames = 100;
  auto data = std::make_unique<std::vector<std::byte>>(randomBytes(kLongBytes, random_));
  const std::vector<std::byte> copy = *data;
  data_.push_back(randomBytes(1000, random_));
  size_t dropped = 0;
  bool sent = false;
  auto progress = std::make_shared<SendProgress>(
      SendProgress{kFrames * kLongBytes, [&](std::exception_ptr) { sent = true; }});
  {
    const Blocked blocked(*b_);
    a_->on([&](Link& link) {
      for (uint64_t i = 0; i < kFrames; ++i) link.send(End::frame(0, 0, i, *data, progress));
    });
    a_->on([&](Link& link) {                     // which has written what fits by now
      link.send(End::frame(5, 0, 0, data_[0]));  // relayed for another rank
      link.dropOwn(1, [&](const FrameHeader&) { ++dropped; });
      data.reset();
    });
  }
  EXPECT_GT(dropped, 0u);
  if (GetParam().zero_copy) {
    // The kernel reads what it has been given from that memory, and the other end takes nothing.
    EXPECT_EQ(a_->waitForLoss(), "the neighbour did not take a payload that was given up");
    b_->waitForLoss();
    for (const Frame& frame : b_->waitForFrames(0)) EXPECT_TRUE(sameBytes(frame.payload, copy));
    return;
  }
  const auto frames = b_->waitForFrames(kFrames - dropped + 1);
  ASSERT_EQ(frames.size(), kFrames - dropped + 1);
  for (const Frame& frame : frames) {
    EXPECT_TRUE(sameBytes(frame.payload, frame.header.source == 5 ? data_[0] : copy));
  }
  EXPECT_EQ(frames.back().header.source, 5);
  a_->counters();  // and a_ is idle
  EXPECT_FALSE(sent);
}

TEST_P(LinkContract, ARedirectedPayloadLeavesItsMemoryAlone) {
  constexpr size_t kFrames = 40;
  data_.push_back(randomBytes(kLongBytes, random_));
  auto place = std::make_unique<std::vector<std::byte>>(kLongBytes);
  b_->on([&](Link&) { b_->place = place->data(); });
  a_->on([&](Link& link) {
    for (uint64_t i = 0; i < kFrames; ++i) link.send(End::frame(0, 0, i, data_[0]));
  });
  b_->on([&](Link& link) {  // at whatever point it has reached
    link.redirect(place->data(), place->data() + place->size());
    b_->place = nullptr;
    place.reset();
  });
  // The other end may have read them all by then; this one it reads without a place.
  a_->on([&](Link& link) { link.send(End::frame(0, 0, kFrames, data_[0])); });
  const auto frames = b_->waitForFrames(kFrames + 1);
  ASSERT_EQ(frames.size(), kFrames + 1);
  EXPECT_TRUE(sameBytes(frames.back().payload, data_[0]));
}

// A link may have several payloads under way at a time, of frames that come in their order.
TEST_P(LinkContract, EveryPayloadHasItsOwnPlaceBetweenFramesOfAllKinds) {
  constexpr size_t kFrames = 200;
  std::vector<std::vector<std::byte>> places(kFrames);
  for (size_t i = 0; i < kFrames; ++i) {
    const size_t most = random_.chance(0.5) ? kNeighbourPayloadBytes : 40000;
    data_.push_back(randomBytes(random_.between(0, most), random_));
    places[i].resize(data_.back().size());
  }
  const auto placeless = [](uint64_t message) { return message % 7 == 3; };
  b_->on([&](Link&) {
    b_->place_of = [&](const FrameHeader& header) -> std::byte* {
      if (header.type != FrameType::kData || placeless(header.message)) return nullptr;
      return places[header.message].data();
    };
  });
  for (size_t from = 0; from < kFrames; from += kFrames / 4) {
    a_->on([&](Link& link) {
      for (size_t i = from; i < from + kFrames / 4; ++i) {
        link.send(End::frame(0, 0, i, data_[i]));
        OutFrame control;  // what comes after it may depend on it, or not
        control.header.type = i % 3 == 0 ? FrameType::kForget : FrameType::kAck;
        if (i % 5 == 0) link.sendControl(std::move(control));
      }
    });
  }
  size_t next = 0;
  while (next < kFrames) {
    const auto frames = b_->waitForFrames(1);
    ASSERT_FALSE(frames.empty());
    for (const Frame& frame : frames) {
      if (frame.header.type != FrameType::kData) continue;
      ASSERT_EQ(frame.header.message, next);
      EXPECT_EQ(frame.placed, !placeless(next) && !data_[next].empty());
      EXPECT_TRUE(sameBytes(frame.placed ? places[next] : frame.payload, data_[next]));
      ++next;
    }
  }
}

// What is under way when a channel is closed at one end, and then at the other: its memory is free
// at once, and what comes later is whole.
TEST_P(LinkContract, MemoryIsGivenUpWhilePayloadsAreUnderWay) {
  constexpr size_t kFrames = 40;
  constexpr size_t kBytes = 200000;
  using Place = std::vector<std::byte>;
  data_.push_back(randomBytes(kBytes, random_));
  const std::vector<std::byte>& last = data_.front();
  for (uint64_t round = 0; round < 8; ++round) {
    auto sent = std::make_unique<std::vector<Place>>(kFrames);
    for (Place& data : *sent) data = Place(kBytes, static_cast<std::byte>(round + 1));
    auto places = std::make_unique<std::vector<Place>>(kFrames, Place(kBytes));
    b_->on([&](Link&) {
      b_->place_of = [&](const FrameHeader& header) -> std::byte* {
        return places && header.message < kFrames ? (*places)[header.message].data() : nullptr;
      };
    });
    a_->on([&](Link& link) {
      for (uint64_t i = 0; i < kFrames; ++i) link.send(End::frame(0, round, i, (*sent)[i]));
    });
    b_->waitForFrames(round % 4);  // at whatever point they are
    const auto give_up_sending = [&] {
      a_->on([&](Link& link) {
        link.dropOwn(1, [](const FrameHeader&) {});
        sent.reset();
      });
    };
    if (round % 2 == 0) give_up_sending();
    b_->on([&](Link& link) {
      for (Place& place : *places) link.redirect(place.data(), place.data() + place.size());
      places.reset();
    });
    if (round % 2 == 1) give_up_sending();
    a_->on([&](Link& link) { link.send(End::frame(0, 100, kFrames + round, last)); });
    for (bool whole = false; !whole;) {
      const auto frames = b_->waitForFrames(1);
      ASSERT_FALSE(frames.empty());
      if (frames.back().header.message != kFrames + round) continue;
      whole = true;
      EXPECT_TRUE(sameBytes(frames.back().payload, last));
    }
  }
}

// Where the other end writes into that memory by itself and has stopped, the link is lost for it.
TEST_P(LinkContract, MemoryIsGivenUpThoughTheOtherEndHasStopped) {
  constexpr size_t kFrames = 4;
  data_.push_back(randomBytes(kNeighbourPayloadBytes, random_));
  auto places = std::make_unique<std::vector<std::vector<std::byte>>>(
      kFrames, std::vector<std::byte>(kNeighbourPayloadBytes));
  std::atomic<size_t> asked = 0;
  b_->on([&](Link&) {
    b_->place_of = [&](const FrameHeader& header) -> std::byte* {
      if (!places || header.message == kFrames) return nullptr;
      ++asked;
      return (*places)[header.message].data();
    };
  });
  a_->on([&](Link& link) { link.send(End::frame(0, 0, kFrames, data_[0])); });
  ASSERT_EQ(b_->waitForFrames(1).size(), 1u);  // they are connected
  bool lost = false;
  {
    a_->on([&](Link& link) {
      for (uint64_t i = 0; i < kFrames; ++i) link.send(End::frame(0, 0, i, data_[0]));
    });
    const Blocked blocked(*a_);
    eventually("a place is asked for", [&] { return asked > 0; });
    b_->on([&](Link& link) {
      for (auto& place : *places) link.redirect(place.data(), place.data() + place.size());
      places.reset();
    });
    b_->on([&](Link& link) { lost = link.dead(); });
  }
  if (GetParam().kind == LinkKind::kFabric && lost) {
    EXPECT_EQ(b_->waitForLoss(), "a payload whose receive was given up did not come");
    EXPECT_NE(a_->waitForLoss(), "");
  } else {
    EXPECT_FALSE(lost);
    EXPECT_EQ(b_->waitForFrames(kFrames).size(), kFrames);
  }
}

TEST_P(LinkContract, SaysWhenTheMemoryOfASendIsFree) {
  data_.push_back(randomBytes(kLongBytes, random_));
  Outcome sent;
  a_->on([&](Link& link) {
    const auto progress =
        std::make_shared<SendProgress>(SendProgress{3 * data_[0].size(), sent.done()});
    for (uint64_t i = 0; i < 3; ++i) link.send(End::frame(0, 0, i, data_[0], progress));
  });
  EXPECT_EQ(sent.wait("three frames of a message"), "");
  EXPECT_EQ(b_->waitForFrames(3).size(), 3u);
}

// Which it is although the other end takes nothing for a while, and much is under way.
TEST_P(LinkContract, WhatIsSentMayBeChangedAsSoonAsTheLinkSaysSo) {
  constexpr size_t kFrames = 60;
  std::deque<std::vector<std::byte>> copies;
  std::deque<Outcome> sent(kFrames);
  for (size_t i = 0; i < kFrames; ++i) {
    data_.push_back(randomBytes(kNeighbourPayloadBytes, random_));
    copies.push_back(data_.back());
  }
  {
    const Blocked blocked(*b_);
    a_->on([&](Link& link) {
      for (size_t i = 0; i < kFrames; ++i) {
        const Done done = [&, i, done = sent[i].done()](std::exception_ptr error) {
          std::ranges::fill(data_[i], std::byte{0xdd});
          done(error);
        };
        link.send(End::frame(0, 0, i, data_[i],
                             std::make_shared<SendProgress>(SendProgress{data_[i].size(), done})));
      }
    });
    a_->on([](Link&) {});  // it has written what fits by now
  }
  for (Outcome& outcome : sent) EXPECT_EQ(outcome.wait("a frame of many"), "");
  size_t next = 0;
  for (const Frame& frame : b_->waitForFrames(kFrames)) {
    EXPECT_TRUE(sameBytes(frame.payload, copies[next++]));
  }
  const LinkCounters counters = a_->counters();
  EXPECT_EQ(counters.zero_copy_bytes + counters.copied_bytes > 0, GetParam().zero_copy);
}

TEST_P(LinkContract, CountsWhatItRelaysAndTheMostThatWaited) {
  data_.push_back(randomBytes(kRelayedPayloadBytes, random_));
  {
    const Blocked blocked(*b_);
    a_->on([&](Link& link) {
      for (uint64_t i = 0; i < 100; ++i) link.send(End::frame(9, 0, i, data_[0]));
      link.send(End::frame(0, 0, 0, data_[0]));
    });
  }
  EXPECT_EQ(b_->waitForFrames(101).size(), 101u);
  const LinkCounters counters = a_->counters();
  EXPECT_EQ(counters.relayed_bytes, 100 * data_[0].size());
  EXPECT_EQ(counters.sent_bytes, 101 * data_[0].size());
  EXPECT_EQ(counters.relay_peak_bytes, 100 * data_[0].size());
}

TEST_P(LinkContract, AFinishedEndDeliversAllBeforeItEnds) {
  data_.push_back(randomBytes(kLongBytes, random_));
  a_->on([&](Link& link) {
    for (uint64_t i = 0; i < 20; ++i) link.send(End::frame(0, 0, i, data_[0]));
    link.finish();
    link.send(End::frame(0, 0, 20, data_[0]));  // too late: dropped
  });
  EXPECT_EQ(b_->waitForFrames(20).size(), 20u);
  EXPECT_EQ(b_->waitForLoss(), "closed by the other end");
  EXPECT_EQ(a_->waitForLoss(), "closed by the other end");
  EXPECT_EQ(b_->waitForFrames(0).size(), 0u);
}

TEST_P(LinkContract, BothEndsMayFinishAtOnce) {
  data_.push_back(randomBytes(kLongBytes, random_));
  for (End* end : {a_.get(), b_.get()}) {
    end->on([&](Link& link) {
      for (uint64_t i = 0; i < 20; ++i) {
        link.send(End::frame(end == a_.get() ? 0 : 1, 0, i, data_[0]));
      }
    });
  }
  EXPECT_EQ(a_->waitForFrames(20).size(), 20u);
  EXPECT_EQ(b_->waitForFrames(20).size(), 20u);
  a_->on([](Link& link) { link.finish(); });
  b_->on([](Link& link) { link.finish(); });
  EXPECT_EQ(b_->waitForLoss(), "closed by the other end");
  EXPECT_EQ(a_->waitForLoss(), "closed by the other end");
}

TEST_P(LinkContract, WhatANeighbourWroteBeforeItVanishedIsStillRead) {
  data_.push_back(randomBytes(1000, random_));
  a_->on([&](Link& link) { link.send(End::frame(0, 0, 0, data_[0])); });
  ASSERT_EQ(b_->waitForFrames(1).size(), 1u);  // a handshake, where there is one, is over
  {
    const Blocked blocked(*b_);
    a_->on([&](Link& link) {
      for (uint64_t i = 0; i < 5; ++i) link.send(End::frame(0, 0, i, data_[0]));
    });
    a_->on([](Link& link) {
      EXPECT_TRUE(link.idle());
      link.close();
    });
  }
  EXPECT_EQ(b_->waitForFrames(5).size(), 5u);
  EXPECT_EQ(b_->waitForLoss(), "closed by the other end");
  b_->on([&](Link& link) {
    EXPECT_TRUE(link.dead());
    link.send(End::frame(1, 0, 0, data_[0]));
    link.sendControl(End::frame(1, 0, 0, data_[0]));
    link.finish();
    EXPECT_TRUE(link.idle());
  });
}

TEST_P(LinkContract, OnlyControlFramesRemainWhenDataIsDropped) {
  data_.push_back(randomBytes(kLongBytes, random_));
  {
    const Blocked blocked(*b_);
    a_->on([&](Link& link) {
      for (uint64_t i = 0; i < 100; ++i) link.send(End::frame(i % 2 ? 0 : 9, 0, i, data_[0]));
    });
    a_->on([&](Link& link) {
      OutFrame control;
      control.header.type = FrameType::kFailure;
      link.sendControl(std::move(control));
      link.dropData();
    });
  }
  std::vector<Frame> frames;
  while (frames.empty() || frames.back().header.type != FrameType::kFailure) {
    auto more = b_->waitForFrames(1);
    ASSERT_FALSE(more.empty());
    frames.insert(frames.end(), more.begin(), more.end());
  }
  EXPECT_LT(frames.size(), 100u);
  for (const Frame& frame : frames) {
    if (frame.header.type == FrameType::kData) {
      EXPECT_TRUE(sameBytes(frame.payload, data_[0]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    AllKinds, LinkContract,
    testing::Values(Carrier{LinkKind::kSocket}, Carrier{LinkKind::kSocket, true},
                    Carrier{.kind = LinkKind::kSocket, .fast = true},
                    Carrier{.kind = LinkKind::kSocket, .fast = true, .threads = true},
                    Carrier{.kind = LinkKind::kSocket, .fast = true, .zero_copy = true},
                    Carrier{LinkKind::kSocket, true, {}, true}, Carrier{LinkKind::kSharedMemory},
                    Carrier{LinkKind::kMemory}, Carrier{LinkKind::kFabric, false, "tcp"},
                    Carrier{LinkKind::kFabric, false, "shm"}),
    [](const auto& carrier) { return nameOf(carrier.param); });

// Frames to a neighbour are as long as suits the rate of the link.
TEST(SocketLinks, OnlyFastOnesTakeTheLongestFrames) {
  for (const bool fast : {false, true}) {
    const auto [near_fd, far_fd] = fast ? fastPair() : connectedPair();
    End near(0, {.link = {0, 0, 1, 0}, .fd = near_fd});
    End far(1, {.link = {1, 0, 0, 0}, .fd = far_fd});
    near.on([&](Link& link) {
      EXPECT_EQ(link.mostPayload(), fast ? kMaxPayloadBytes : kNeighbourPayloadBytes);
    });
  }
}

// Those over loopback are copied all the same.
TEST(SocketLinks, SendsWithoutCopyEndWhereTheKernelCopies) {
  const auto [near_fd, far_fd] = fastPair();
  End near(0, {.link = {0, 0, 1, 0}, .fd = near_fd, .zero_copy = ZeroCopy::kOn});
  End far(1, {.link = {1, 0, 0, 0}, .fd = far_fd, .zero_copy = ZeroCopy::kOn});
  const std::vector<std::byte> data(kMaxPayloadBytes, std::byte{7});
  uint64_t copied = 0;
  for (uint64_t round = 0; round < 6; ++round) {
    Outcome sent;
    near.on([&](Link& link) {
      const auto progress =
          std::make_shared<SendProgress>(SendProgress{4 * data.size(), sent.done()});
      for (uint64_t i = 0; i < 4; ++i) link.send(End::frame(0, 0, 4 * round + i, data, progress));
    });
    ASSERT_EQ(sent.wait("four frames of a message"), "");
    const LinkCounters counters = near.counters();
    EXPECT_EQ(counters.zero_copy_bytes, 0u);
    if (round == 2) copied = counters.copied_bytes;  // all that there was to find out is known
  }
  EXPECT_GT(copied, 0u);
  EXPECT_EQ(near.counters().copied_bytes, copied);
  for (const Frame& frame : far.waitForFrames(24)) EXPECT_TRUE(sameBytes(frame.payload, data));
}

// ---- links of cables ---------------------------------------------------------------------------

// What a slow cable is known by (rate_watch.h).
TEST(CableLinks, TheSystemCountsWhatIsAcknowledged) {
  for (const std::string& key : {std::string(), std::string(TlsSession::kKeyBytes, 'k')}) {
    if (!key.empty() && tlsLibrary().empty()) GTEST_SKIP() << "a build without TLS";
    const auto [near_fd, far_fd] = connectedPair();
    End near(0, {.link = {0, 0, 1, 0}, .fd = near_fd, .cable = 0, .tls_key = key});
    End far(1, {.link = {1, 0, 0, 0}, .fd = far_fd, .cable = 0, .tls_key = key});
    const std::vector<std::byte> data(kMaxPayloadBytes);
    uint64_t sent = 0;
    std::optional<SendProgressCounters> counted;
    // The system's clock of this ticks every few milliseconds: what is sent between two ticks takes
    // no time.
    eventually("the connection was busy, and all is acknowledged", [&] {
      near.on([&](Link& link) {
        counted = link.sendProgress();
        if (!counted || counted->busy.count() == 0) {
          link.send(End::frame(0, 1, sent++, data));
        }
      });
      return counted && counted->busy.count() > 0 &&
             counted->acknowledged_bytes >= sent * data.size();
    });
    EXPECT_EQ(far.waitForFrames(sent).size(), sent);
  }
}

TEST(CableLinks, OneThatIsLostKeepsWhatIsSent) {
  const std::string text(sizeof(FrameHeader), 'x');  // neither a frame nor TLS
  for (const std::string& key : {std::string(), std::string(TlsSession::kKeyBytes, 'k')}) {
    if (!key.empty() && tlsLibrary().empty()) GTEST_SKIP() << "a build without TLS";
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    const Descriptor far(fds[1]);
    End near(0, {.link = {0, 0, 1, 0}, .fd = fds[0], .cable = 0, .tls_key = key});
    ASSERT_EQ(send(far.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    EXPECT_NE(near.waitForLoss().find(key.empty() ? "not a frame" : "TLS: "), std::string::npos);
    const std::vector<std::byte> data(100);
    near.on([&](Link& link) { link.send(End::frame(0, 1, 0, data)); });
    near.on([](Link& link) {  // after the turn that the frame has asked for
      link.takeKept();
      EXPECT_EQ(link.takeUnwritten().size(), 1u);
    });
  }
}

// ---- shared memory alone -----------------------------------------------------------------------

TEST(ShmLinks, AnEndThatPassesNoMemoryIsRefused) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  End end(1, {.link = {1, -1, 0, -1}, .fd = fds[0], .kind = LinkKind::kSharedMemory});
  ASSERT_EQ(::send(fds[1], "hello", 5, MSG_NOSIGNAL), 5);
  EXPECT_EQ(end.waitForLoss(), "received something that is not the memory to share");
  ::close(fds[1]);
}

TEST(ShmLinks, ASimplexLinkIsRefused) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  EndpointConfig config;
  config.size = 2;
  config.links = {
      {.link = {1, -1, 0, -1}, .fd = fds[0], .sends = false, .kind = LinkKind::kSharedMemory}};
  EXPECT_THROW(Endpoint{config}, std::invalid_argument);
  ::close(fds[1]);
}

}  // namespace
}  // namespace topoopt
