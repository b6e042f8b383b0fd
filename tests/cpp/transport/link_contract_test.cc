// The contract of every kind of link: frames and flows, and how links end. The memory of
// payloads has link_memory_test.cc.

#include <algorithm>
#include <deque>
#include <future>
#include <map>
#include <utility>

#include "support/link_ends.h"
#include "support/test_limits.h"

namespace topoopt {
namespace {

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
  std::promise<void> ended;
  std::function<void()> again = [&] {
    if (++sent > 20 * kFrames) return ended.set_value();
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
  EXPECT_EQ(ended.get_future().wait_for(kWaitLimit), std::future_status::ready);
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
                    Carrier{LinkKind::kFabric, false, "tcp"},
                    Carrier{LinkKind::kFabric, false, "shm"}),
    [](const auto& carrier) { return nameOf(carrier.param); });

}  // namespace
}  // namespace topoopt
