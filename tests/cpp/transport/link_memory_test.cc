// The contract of every kind of link: what becomes of the memory of payloads.

#include <algorithm>
#include <atomic>
#include <deque>

#include "support/link_ends.h"

namespace topoopt {
namespace {

TEST_P(LinkContract, ARedirectedPayloadLeavesItsMemoryAlone) {
  constexpr size_t kFrames = 40;
  open(kWaitLimit);
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
  open(kWaitLimit);
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
    eventually("a place is asked for", [&] {
      b_->on([](Link&) {});  // it may sleep, and the end that has stopped cannot wake it
      return asked > 0;
    });
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

}  // namespace
}  // namespace topoopt
