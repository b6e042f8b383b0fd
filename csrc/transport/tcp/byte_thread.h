// A thread that moves a socket's bytes in one direction, a batch at a time. The link's state stays
// on the reactor thread.
//
// The reactor lends the memory until the batch ends: it has moved, the connection has ended, the
// socket was idle for a while, or settle() requested the memory. The thread waits only for the
// socket, and settle() can end that wait.

#pragma once

#include <sched.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "transport/descriptor.h"
#include "transport/frames/frame_queue.h"
#include "transport/io.h"
#include "transport/reactor.h"
#include "transport/tcp/wake_bytes.h"

namespace topoopt {

class ByteThread final : private Reactor::Handler {
 public:
  enum class Way { kRead, kWrite };
  struct Batch {
    int fd = -1;
    std::array<iovec, FrameQueue::kMaxParts> parts{};
    int part_count = 0;
    size_t wanted = 0;         // the batch ends after this many bytes or a few more
    size_t most_per_call = 0;  // limit per system call
  };
  // The result of a batch, as of Link::readBytes and writeBytes, with errno.
  struct Moved {
    size_t bytes = 0;
    Io io = Io::kMore;
    int error = 0;
  };

  // `processors`: the thread's affinity, if known. Throws std::system_error.
  ByteThread(Way way, const std::optional<cpu_set_t>& processors);
  ~ByteThread() override;  // requires that no batch is running

  // Reactor thread only from here on. Between start() and stop(), which settles, `over` is called
  // when a batch ends by itself.
  void start(Reactor& reactor, std::function<void()> over);
  void stop(Reactor& reactor);

  void begin(const Batch& batch);  // requires that no batch is running
  bool running() const { return running_.load(std::memory_order_acquire); }
  // Returns the result of the ended batch, once.
  std::optional<Moved> take();
  // Ends a running batch with the bytes moved so far; its memory is free on return.
  void settle();

  // A running or untaken batch: all bytes, and a lower bound of the moved ones.
  size_t bytes() const { return taken_ ? 0 : bytes_; }
  size_t moved() const { return taken_ ? 0 : moved_.load(std::memory_order_acquire); }
  const std::byte* place() const { return place_; }

 private:
  void onReady(uint32_t events) override;
  void loop(const std::optional<cpu_set_t>& processors);
  Moved move();
  ssize_t call();
  void advance(size_t bytes);
  bool wait(Reactor::Clock::time_point until);
  void expect(size_t bytes);

  const Way way_;
  Descriptor over_event_;
  Descriptor interrupt_event_;

  // Reactor thread only.
  std::function<void()> over_;
  bool taken_ = true;
  size_t bytes_ = 0;
  const std::byte* place_ = nullptr;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;               // guarded by mutex_
  std::atomic<bool> running_{false};  // set under mutex_
  std::atomic<bool> interrupted_{false};
  std::atomic<size_t> moved_{0};

  // Owned by the thread while a batch is running, else by the reactor thread.
  Batch batch_;
  int first_ = 0;  // first part with bytes left
  WakeBytes wake_bytes_;
  Moved result_;

  std::thread thread_;
};

}  // namespace topoopt
