// The streams and events of the test device "lag": a stream is a thread that does what it is given
// in that order, each after a delay that the tests choose.

#pragma once

#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace lag {

constexpr int kDevices = 2;
constexpr int kStreams = 9;  // per device; stream 0 is the default one

// What the host had to wait for, and what it had not.
struct Counters {
  std::atomic<int> device_synchronizations{0};
  std::atomic<int> stream_synchronizations{0};
  std::atomic<int> event_synchronizations{0};
  std::atomic<int> blocking_copies{0};
  std::atomic<int> copies{0};
};
inline Counters counters;
inline std::atomic<int> default_delay_us{0};
inline std::atomic<int> pool_delay_us{0};
inline std::atomic<bool> recording{false};    // as of streams that record a graph
inline std::atomic<bool> events_fail{false};  // as those of a device that has failed

// While it is shut, the streams other than the default ones begin nothing.
class Gate {
 public:
  void set(bool open) {
    std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
};
inline Gate pool_gate;

class Queue {
 public:
  explicit Queue(bool is_default) : is_default_(is_default) {
    std::thread([this] { loop(); }).detach();
  }

  // `kernel`: takes its time.
  void push(std::function<void()> task, bool kernel) {
    std::lock_guard lock(mutex_);
    tasks_.push_back({std::move(task), kernel});
    changed_.notify_all();
  }

  bool idle() {
    std::lock_guard lock(mutex_);
    return tasks_.empty();
  }

  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return tasks_.empty(); });
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      const auto task = tasks_.front();
      lock.unlock();
      if (task.second) {
        const int delay_us = is_default_ ? default_delay_us : pool_delay_us;
        if (!is_default_) pool_gate.pass();
        if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
      }
      task.first();
      lock.lock();
      tasks_.pop_front();
      changed_.notify_all();
    }
  }

  const bool is_default_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::function<void()>, bool>> tasks_;
};

inline Queue& queue(const c10::Stream& stream) {
  static std::mutex mutex;
  static std::array<std::array<Queue*, kStreams>, kDevices> queues{};
  std::lock_guard lock(mutex);
  Queue*& entry = queues.at(stream.device_index()).at(stream.id());
  if (entry == nullptr) entry = new Queue(stream.id() == 0);  // its thread never ends
  return *entry;
}

struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0;
  uint64_t passed = 0;

  void wait(uint64_t version) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return passed >= version; });
  }
};

inline thread_local c10::DeviceIndex current_device = 0;
inline thread_local std::array<c10::StreamId, kDevices> current_streams{};

inline c10::Stream currentStream(c10::Device device) {
  const c10::DeviceIndex index = device.has_index() ? device.index() : current_device;
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kPrivateUse1, index),
                     current_streams.at(index));
}

template <typename Interface>
constexpr bool kKnowsGraphs =
    requires(Interface& guard, c10::Stream stream) { guard.isStreamCapturing(stream); };

struct Guard final : c10::impl::DeviceGuardImplInterface {
  using EventPtr = std::shared_ptr<lag::Event>;

  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {type(), std::exchange(current_device, device.index())};
  }
  c10::Device getDevice() const override { return {type(), current_device}; }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override { return currentStream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    static std::atomic<int> next{0};
    const c10::DeviceIndex index = device.has_index() ? device.index() : current_device;
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(type(), index),
                       1 + next++ % (kStreams - 1));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = currentStream(stream.device());
    current_streams.at(stream.device_index()) = stream.id();
    return before;
  }
  // Overrides, unless torch does not know graphs.
  bool isStreamCapturing(const c10::Stream&) const { return recording; }
  bool queryStream(const c10::Stream& stream) const override { return queue(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    ++counters.stream_synchronizations;
    queue(stream).synchronize();
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    ++counters.device_synchronizations;
    for (int id = 0; id < kStreams; ++id) {
      queue(c10::Stream(c10::Stream::UNSAFE, c10::Device(type(), device), id)).synchronize();
    }
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) *event = new EventPtr(std::make_shared<lag::Event>());
    const EventPtr self = *static_cast<EventPtr*>(*event);
    uint64_t version;
    {
      std::lock_guard lock(self->mutex);
      version = ++self->recorded;
    }
    queue(stream).push(
        [self, version] {
          std::lock_guard lock(self->mutex);
          self->passed = std::max(self->passed, version);
          self->changed.notify_all();
        },
        false);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const EventPtr self = *static_cast<EventPtr*>(event);
    std::unique_lock lock(self->mutex);
    queue(stream).push([self, version = self->recorded] { self->wait(version); }, false);
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    TORCH_CHECK(!events_fail, "lag: the device has failed");
    const EventPtr self = *static_cast<EventPtr*>(event);
    std::lock_guard lock(self->mutex);
    return self->passed >= self->recorded;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    ++counters.event_synchronizations;
    const EventPtr self = *static_cast<EventPtr*>(event);
    self->wait(self->recorded);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<EventPtr*>(event);
  }
};

}  // namespace lag
