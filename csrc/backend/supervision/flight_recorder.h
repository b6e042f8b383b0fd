// The last operations of this process, for those who ask why a job hangs or has failed.
//
// A ring of entries of a fixed number. Every entry has a lock of its own, which only its writers
// and a reader of the whole ring ever take, so that callers and the reactor thread do not wait for
// each other. Every operation pays for its entry, so that is small, and mostly plain memory: what
// an operation with one tensor touches of it fits in four cache lines.

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

// A process group as its operations know it.
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
  const std::vector<uint64_t> ranks;  // of its members in torch.distributed

  // Each call's place among those of this group, from 1. Collectives have the same on all members.
  uint64_t nextCollective() { return ++collectives_; }
  uint64_t nextMessage() { return ++messages_; }
  uint64_t collectives() const { return collectives_; }
  // The last call of its kind, which had this number, was not started after all.
  void giveBack(bool message, uint64_t number) {
    (message ? messages_ : collectives_).compare_exchange_strong(number, number - 1);
  }
  // A message's place among those in one direction between this rank and `peer` with one tag, from
  // 1; 0 for new tags when there have been kMostFlows of them: then they are not counted any more.
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
  // `type` must stay valid for ever.
  void add(const char* type, const int64_t* sizes, size_t dimensions);

  // The sizes of each tensor.
  std::vector<std::vector<int64_t>> sizes() const;
  std::vector<const char*> types() const;

 private:
  static constexpr size_t kFewDimensions = 4;

  // The first tensor, mostly the only one.
  const char* first_type_ = nullptr;
  std::array<int64_t, kFewDimensions> first_sizes_{};
  uint32_t first_dimensions_ = 0;
  uint32_t count_ = 0;
  // The others, or all if the first has more dimensions than that, one after the other: the address
  // of the type, the number of dimensions, the sizes.
  std::vector<int64_t> words_;
};

// One call of an operation.
struct RecordedOperation {
  enum class State : uint8_t { kCalled, kCompleted, kFailed };

  uint64_t id = 0;  // in this process, from 0
  std::shared_ptr<RecordedGroup> group;
  const char* name = "";    // as PyTorch's flight recorder calls it; valid for ever
  bool message = false;     // between two members
  uint64_t collective = 0;  // calls of collectives up to this one
  uint64_t number = 0;      // of a message: calls of messages up to this one
  int sender = -1;          // of a message; -1: any
  int receiver = -1;
  int tag = 0;
  uint64_t in_flow = 0;  // of a message: its place as nextInFlow() says
  int root = -1;         // -1: it has none
  uint64_t bytes = 0;    // of its tensors, the larger of inputs and outputs
  int64_t limit_ms = 0;
  int64_t called_ns = 0;  // of the steady clock
  int64_t ended_ns = 0;   // 0: it has not
  State state = State::kCalled;
  bool in_place = false;  // in the ring, `outputs` is not set then: they are the inputs
  RecordedTensors inputs;
  RecordedTensors outputs;
};

class FlightRecorder {
 public:
  // Throws std::invalid_argument if `capacity` is not in 1..kMost.
  explicit FlightRecorder(size_t capacity);

  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  static constexpr size_t kMost = 1 << 20;
  static int64_t now();  // of the steady clock, ns

  // All functions: any thread.

  std::shared_ptr<RecordedGroup> addGroup(std::string name, std::string description,
                                          std::vector<uint64_t> ranks);
  // Those that are open, or have entries in the ring.
  std::vector<std::shared_ptr<RecordedGroup>> groups() const;

  // Records a call: `fill(operation)` sets what is known of it, its id and time are set here.
  template <typename Fill>
  uint64_t record(Fill fill) {
    const uint64_t id = next_.fetch_add(1, std::memory_order_relaxed);
    Entry& entry = entries_[id % entries_.size()];
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

  // Forgets a call that was not started after all.
  void drop(uint64_t id);
  // The operation with this id is over; nothing if it is not in the ring any more.
  void end(uint64_t id, bool failed);
  // The sender of a message, once it is known.
  void setSender(uint64_t id, int sender);

  // Operations called so far.
  uint64_t recorded() const { return next_.load(std::memory_order_relaxed); }
  // What is in the ring, in the order of the calls.
  std::vector<RecordedOperation> operations() const;
  // Those that are not over.
  std::vector<RecordedOperation> unfinished() const;

 private:
  // Held for as long as an entry is written or copied, so it is next to never taken already.
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

  template <typename Wanted>
  std::vector<RecordedOperation> select(Wanted wanted) const;

  std::atomic<uint64_t> next_{0};
  std::vector<Entry> entries_;
  mutable std::mutex groups_mutex_;
  int groups_made_ = 0;
  size_t groups_checked_at_ = 64;  // ended ones are forgotten when there are so many
  std::vector<std::weak_ptr<RecordedGroup>> groups_;
};

}  // namespace topoopt
