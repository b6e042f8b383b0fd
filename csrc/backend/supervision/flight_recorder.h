// The last operations of this process, for diagnosing a hang or a failure.
//
// A ring with a fixed number of entries. Every entry has its own lock, used only by its writers and
// a reader of the whole ring, so callers and the reactor thread do not contend. Entries are small,
// because every operation pays for one: with one tensor it uses four cache lines.

#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace topoopt {

// A process group in the recorder.
class RecordedGroup {
 public:
  RecordedGroup(int number, std::string name, std::string description, std::vector<uint64_t> ranks)
      : number(number),
        name(std::move(name)),
        description(std::move(description)),
        ranks(std::move(ranks)) {}

  const int number;  // in this process
  const std::string name;
  const std::string description;
  const std::vector<uint64_t> ranks;  // members in torch.distributed

  // Number of each call in this group, from 1. Those of collectives are the same on all members.
  uint64_t nextCollective() { return ++collectives_; }
  uint64_t nextMessage() { return ++messages_; }
  uint64_t collectives() const { return collectives_; }
  // The last call of its kind, with this number, was not started.
  void giveBack(bool message, uint64_t number) {
    (message ? messages_ : collectives_).compare_exchange_strong(number, number - 1);
  }
  // Number of a message in its flow (direction, `peer`, tag), from 1; 0 for new flows beyond
  // kMostFlows.
  uint64_t nextInFlow(bool sends, int peer, int tag);
  static constexpr size_t kMostFlows = 4096;

 private:
  std::atomic<uint64_t> collectives_{0};
  std::atomic<uint64_t> messages_{0};
  std::mutex mutex_;
  std::map<std::tuple<bool, int, int>, uint64_t> by_flow_;  // guarded by mutex_
};

// Shapes and types of tensors.
class RecordedTensors {
 public:
  void clear();
  // `type` must have static storage.
  void add(const char* type, const int64_t* sizes, size_t dimensions);

  // The sizes of each tensor.
  std::vector<std::vector<int64_t>> sizes() const;
  std::vector<const char*> types() const;

 private:
  static constexpr size_t kFewDimensions = 4;

  // The first tensor, usually the only one.
  const char* first_type_ = nullptr;
  std::array<int64_t, kFewDimensions> first_sizes_{};
  uint32_t first_dimensions_ = 0;
  uint32_t count_ = 0;
  // The other tensors (all if the first has too many dimensions): address of the type, number of
  // dimensions, sizes.
  std::vector<int64_t> words_;
};

// One call of an operation.
struct RecordedOperation {
  enum class State : uint8_t { kCalled, kCompleted, kFailed };

  uint64_t id = 0;  // in this process, from 0
  std::shared_ptr<RecordedGroup> group;
  const char* name = "";    // in PyTorch's flight recorder; static storage
  bool message = false;     // between two members
  uint64_t collective = 0;  // number of collectives called, with this one
  uint64_t number = 0;      // message: number of messages called, with this one
  int sender = -1;          // message; -1: any
  int receiver = -1;
  int tag = 0;
  uint64_t in_flow = 0;  // message: see nextInFlow()
  int root = -1;         // -1: none
  uint64_t bytes = 0;    // maximum of inputs and outputs
  int64_t limit_ms = 0;
  int64_t called_ns = 0;  // steady clock
  int64_t ended_ns = 0;   // 0: running
  State state = State::kCalled;
  bool in_place = false;  // in the ring, `outputs` is then unset and equals the inputs
  RecordedTensors inputs;
  RecordedTensors outputs;
};

class FlightRecorder {
 public:
  // Throws std::invalid_argument unless 1 <= `capacity` <= kMost.
  explicit FlightRecorder(size_t capacity);
  ~FlightRecorder();

  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  static constexpr size_t kMost = 1 << 20;
  static int64_t now();  // steady clock, ns

  // All functions may be called from any thread.

  std::shared_ptr<RecordedGroup> addGroup(std::string name, std::string description,
                                          std::vector<uint64_t> ranks);
  // Groups that are open or have entries in the ring.
  std::vector<std::shared_ptr<RecordedGroup>> groups() const;

  // Records a call: `fill(operation)` sets all fields except id and time.
  template <typename Fill>
  uint64_t record(Fill fill) {
    const uint64_t id = next_.fetch_add(1, std::memory_order_relaxed);
    Entry& entry = entryOf(id);
    const int64_t called_ns = now();
    std::lock_guard lock(entry.lock);
    entry.operation.id = id;
    entry.operation.state = RecordedOperation::State::kCalled;
    entry.operation.called_ns = called_ns;
    entry.operation.ended_ns = 0;
    entry.used = true;
    fill(entry.operation);
    return id;
  }

  // Removes a call that was not started.
  void drop(uint64_t id);
  // Ends the operation; no effect if it has left the ring.
  void end(uint64_t id, bool failed);
  // Sets the sender of a message once it is known.
  void setSender(uint64_t id, int sender);

  // Number of recorded operations.
  uint64_t recorded() const { return next_.load(std::memory_order_relaxed); }
  // The operations in the ring, in call order.
  std::vector<RecordedOperation> operations() const;
  // The unfinished ones.
  std::vector<RecordedOperation> unfinished() const;

 private:
  // Spin lock of an entry, almost never contended.
  class EntryLock {
   public:
    void lock() {
      while (taken_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
    }
    void unlock() { taken_.store(false, std::memory_order_release); }

   private:
    std::atomic<bool> taken_{false};
  };
  struct Entry {
    mutable EntryLock lock;
    bool used = false;
    RecordedOperation operation;
  };

  static constexpr size_t kBlock = 32;

  // Makes the entry's block if necessary.
  Entry& entryOf(uint64_t id);
  template <typename Wanted>
  std::vector<RecordedOperation> select(Wanted wanted) const;

  std::atomic<uint64_t> next_{0};
  const size_t capacity_;
  // Of kBlock entries; null until its first use, because touching all entries delays a start.
  std::vector<std::atomic<Entry*>> blocks_;
  mutable std::mutex groups_mutex_;
  int groups_made_ = 0;
  size_t groups_checked_at_ = 64;  // ended groups are removed at this number
  std::vector<std::weak_ptr<RecordedGroup>> groups_;
};

}  // namespace topoopt
