// A thread that moves the bytes of a socket in one direction, a batch at a time, for a link whose
// state lives on the reactor thread.
//
// The reactor hands over memory, and uses it again only when the batch is over: all of it has
// moved, or the connection has ended, or nothing more came for a while, or settle() wanted the
// memory back. The thread never waits for anything but the socket, and only in a way that settle()
// can end.

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
    size_t wanted = 0;         // it is over when so many bytes have moved, perhaps a few more
    size_t most_per_call = 0;  // to the system
  };
  // What became of one: as Link::readBytes and writeBytes say it, with the system's error.
  struct Moved {
    size_t bytes = 0;
    Io io = Io::kMore;
    int error = 0;
  };

  // `processors`: where the thread stays, if it is known. Throws std::system_error.
  ByteThread(Way way, const std::optional<cpu_set_t>& processors);
  ~ByteThread() override;  // none is under way

  // The rest is for the reactor thread. From start() to stop(), which settles, `over` is called
  // when a batch is over by itself.
  void start(Reactor& reactor, std::function<void()> over);
  void stop(Reactor& reactor);

  void begin(const Batch& batch);  // none is under way
  bool running() const { return running_.load(std::memory_order_acquire); }
  // Of the batch that is over; once.
  std::optional<Moved> take();
  // No batch uses its memory any more on return; one that did is over, with what it has moved.
  void settle();

  // Of the batch, while it is under way or not yet taken: all its bytes, and those that have moved,
  // at least.
  size_t bytes() const { return taken_ ? 0 : bytes_; }
  size_t moved() const { return taken_ ? 0 : moved_.load(std::memory_order_acquire); }
  // Where it began.
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

  // The reactor's alone.
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

  // The thread's while a batch is under way, the reactor's else.
  Batch batch_;
  int first_ = 0;  // of the parts, with bytes left
  WakeBytes wake_bytes_;
  Moved result_;

  std::thread thread_;
};

}  // namespace topoopt
