// Scratch memory stays while an operation runs, however long, and goes when none has for a while.

#include "collectives/links/scratch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>

#include "support/network.h"
#include "transport/reactor.h"

namespace topoopt {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kIdle{10};

// The bytes that `scratch` holds, `delay` from now.
size_t bytesAfter(Reactor& reactor, const Scratch& scratch, milliseconds delay) {
  std::promise<size_t> bytes;
  auto future = bytes.get_future();
  reactor.post([&] { reactor.after(delay, [&] { bytes.set_value(scratch.bytes()); }); });
  EXPECT_EQ(future.wait_for(kWaitLimit), std::future_status::ready);
  return future.get();
}

TEST(Scratch, AnOperationThatLastsManyIdleLimitsKeepsItsMemory) {
  Reactor reactor;
  Scratch scratch(reactor, kIdle);
  std::byte* memory = nullptr;
  reactor.run([&] { memory = scratch.reserve(4096); });
  EXPECT_EQ(bytesAfter(reactor, scratch, 10 * kIdle), 4096u);
  reactor.run([&] {
    EXPECT_EQ(scratch.reserve(100), memory) << "a second operation has the same memory";
    scratch.finished();
  });
  reactor.run([&] { scratch.release(); });
}

TEST(Scratch, MemoryThatNoOperationUsesIsFreed) {
  Reactor reactor;
  Scratch scratch(reactor, kIdle);
  reactor.run([&] {
    scratch.reserve(4096);
    scratch.finished();
  });
  const auto deadline = std::chrono::steady_clock::now() + kWaitLimit;
  while (bytesAfter(reactor, scratch, kIdle) > 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
  }
  reactor.run([&] { EXPECT_NE(scratch.reserve(8), nullptr); });
  reactor.run([&] { scratch.release(); });
}

}  // namespace
}  // namespace topoopt
