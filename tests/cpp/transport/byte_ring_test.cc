// A byte ring moves every byte once and in order, whatever its size and whoever sleeps.

#include "transport/shm/byte_ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "support/seed.h"
#include "support/test_limits.h"

namespace topoopt {
namespace {

struct Shared {
  explicit Shared(size_t bytes) : data(bytes) {}
  ByteRing end() { return {&state, data.data(), data.size()}; }

  RingState state{};
  std::vector<std::byte> data;
};

// One end's bell: a wait without it must not miss what the other end did before.
class Bell {
 public:
  void ring() {
    rung_.store(true);
    rung_.notify_one();
  }
  void await() {
    rung_.wait(false);
    rung_.store(false);
  }

 private:
  std::atomic<bool> rung_{false};
};

std::byte valueAt(size_t position) { return static_cast<std::byte>(position * 7 + position / 251); }

// Parts of random lengths over the next `bytes` of `memory`.
std::vector<iovec> partsOf(std::byte* memory, size_t bytes, TestRandom& random) {
  std::vector<iovec> parts;
  while (bytes > 0 && parts.size() < 4) {
    const size_t size = std::min<size_t>(bytes, random.between(1, 300));
    parts.push_back({memory, size});
    memory += size;
    bytes -= size;
  }
  return parts;
}

TEST(ByteRings, AllBytesPassInOrderThroughRingsOfAnySize) {
  for (const size_t capacity : {4u, 256u, 64u << 10}) {
    SCOPED_TRACE(capacity);
    const size_t total = partOf(capacity < 256 ? 20'000 : 1'000'000);
    Shared shared(capacity);
    Bell reader_bell;
    Bell writer_bell;
    std::vector<std::byte> sent(total);
    for (size_t i = 0; i < total; ++i) sent[i] = valueAt(i);
    std::thread writer([&] {
      TestRandom random(901);
      ByteRing out = shared.end();
      for (size_t done = 0; done < total;) {
        const auto parts = partsOf(sent.data() + done, total - done, random);
        bool wake = false;
        done += out.write(parts.data(), static_cast<int>(parts.size()), 500, wake);
        if (wake) reader_bell.ring();
        if (!out.full() || done == total) continue;
        if (out.writerSleeps()) writer_bell.await();
        out.writerAwake();
      }
      out.end();
      reader_bell.ring();
    });
    TestRandom random(902);
    ByteRing in = shared.end();
    std::vector<std::byte> received(total);
    for (size_t done = 0; !in.ended();) {
      auto parts = partsOf(received.data() + done, total - done, random);
      bool wake = false;
      done += in.read(parts.data(), static_cast<int>(parts.size()), 400, wake);
      if (wake) writer_bell.ring();
      ASSERT_FALSE(in.damaged());
      if (in.readable() || in.ended()) continue;
      if (in.readerSleeps()) reader_bell.await();
      in.readerAwake();
    }
    writer.join();
    EXPECT_EQ(received, sent);
  }
}

TEST(ByteRings, AStateThatCannotBeTrueIsNoticed) {
  Shared shared(256);
  ByteRing ring = shared.end();
  shared.state.head = 300;
  EXPECT_TRUE(ring.damaged());
  std::byte byte{};
  const iovec part{&byte, 1};
  bool wake = false;
  EXPECT_EQ(ring.read(&part, 1, 1, wake), 0u);
  EXPECT_EQ(ring.write(&part, 1, 1, wake), 0u);
}

}  // namespace
}  // namespace topoopt
