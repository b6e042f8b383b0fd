#include "backend/supervision/flight_recorder.h"

#include <algorithm>
#include <span>
#include <stdexcept>

namespace topoopt {

uint64_t RecordedGroup::nextInFlow(bool sends, int peer, int tag) {
  std::lock_guard lock(mutex_);
  const auto flow = std::tuple(sends, peer, tag);
  if (by_flow_.size() >= kMostFlows && !by_flow_.contains(flow)) return 0;
  return ++by_flow_[flow];
}

void RecordedTensors::clear() {
  count_ = 0;
  words_.clear();
}

void RecordedTensors::add(const char* type, const int64_t* sizes, size_t dimensions) {
  if (count_ == 0 && dimensions <= kFewDimensions) {
    first_type_ = type;
    first_dimensions_ = static_cast<uint32_t>(dimensions);
    std::copy_n(sizes, dimensions, first_sizes_.begin());
  } else {
    if (count_ == 0) first_type_ = nullptr;
    words_.push_back(reinterpret_cast<intptr_t>(type));
    words_.push_back(static_cast<int64_t>(dimensions));
    words_.insert(words_.end(), sizes, sizes + dimensions);
  }
  ++count_;
}

std::vector<std::vector<int64_t>> RecordedTensors::sizes() const {
  std::vector<std::vector<int64_t>> list;
  if (count_ > 0 && first_type_ != nullptr) {
    list.emplace_back(first_sizes_.begin(), first_sizes_.begin() + first_dimensions_);
  }
  for (auto word = words_.begin(); word != words_.end();) {
    const auto first = word + 2;
    const auto last = first + word[1];
    list.emplace_back(first, last);
    word = last;
  }
  return list;
}

std::vector<const char*> RecordedTensors::types() const {
  std::vector<const char*> list;
  if (count_ > 0 && first_type_ != nullptr) list.push_back(first_type_);
  for (auto word = words_.begin(); word != words_.end(); word += 2 + word[1]) {
    list.push_back(reinterpret_cast<const char*>(static_cast<intptr_t>(*word)));
  }
  return list;
}

FlightRecorder::FlightRecorder(size_t capacity)
    : capacity_(capacity >= 1 && capacity <= kMost
                    ? capacity
                    : throw std::invalid_argument("capacity: " + std::to_string(capacity) +
                                                  " is not in 1.." + std::to_string(kMost))),
      blocks_((capacity + kBlock - 1) / kBlock) {}

FlightRecorder::~FlightRecorder() {
  for (const auto& block : blocks_) delete[] block.load();
}

FlightRecorder::Entry& FlightRecorder::entryOf(uint64_t id) {
  const size_t index = id % capacity_;
  std::atomic<Entry*>& block = blocks_[index / kBlock];
  Entry* entries = block.load(std::memory_order_acquire);
  if (entries == nullptr) {
    auto made = std::make_unique<Entry[]>(kBlock);
    if (block.compare_exchange_strong(entries, made.get())) entries = made.release();
  }
  return entries[index % kBlock];
}

int64_t FlightRecorder::now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::shared_ptr<RecordedGroup> FlightRecorder::addGroup(std::string name, std::string description,
                                                        std::vector<uint64_t> ranks) {
  std::lock_guard lock(groups_mutex_);
  if (groups_.size() >= groups_checked_at_) {
    std::erase_if(groups_, [](const auto& group) { return group.expired(); });
    groups_checked_at_ = std::max<size_t>(64, 2 * groups_.size());
  }
  auto group = std::make_shared<RecordedGroup>(groups_made_++, std::move(name),
                                               std::move(description), std::move(ranks));
  groups_.push_back(group);
  return group;
}

std::vector<std::shared_ptr<RecordedGroup>> FlightRecorder::groups() const {
  std::vector<std::shared_ptr<RecordedGroup>> list;
  std::lock_guard lock(groups_mutex_);
  for (const auto& weak : groups_) {
    if (auto group = weak.lock()) list.push_back(std::move(group));
  }
  return list;
}

void FlightRecorder::drop(uint64_t id) {
  Entry& entry = entryOf(id);
  std::lock_guard lock(entry.lock);
  if (entry.operation.id == id) entry.used = false;
}

void FlightRecorder::end(uint64_t id, bool failed) {
  Entry& entry = entryOf(id);
  const int64_t ended_ns = now();
  std::lock_guard lock(entry.lock);
  if (entry.operation.id != id || !entry.used) return;
  entry.operation.ended_ns = ended_ns;
  entry.operation.state =
      failed ? RecordedOperation::State::kFailed : RecordedOperation::State::kCompleted;
}

void FlightRecorder::setSender(uint64_t id, int sender) {
  Entry& entry = entryOf(id);
  std::lock_guard lock(entry.lock);
  if (entry.operation.id == id && entry.used) entry.operation.sender = sender;
}

template <typename Wanted>
std::vector<RecordedOperation> FlightRecorder::select(Wanted wanted) const {
  std::vector<RecordedOperation> list;
  for (const auto& block : blocks_) {
    const Entry* entries = block.load(std::memory_order_acquire);
    for (const Entry& entry : std::span(entries, entries == nullptr ? 0 : kBlock)) {
      std::lock_guard lock(entry.lock);
      if (!entry.used || !wanted(entry.operation)) continue;
      list.push_back(entry.operation);
      if (list.back().in_place) list.back().outputs = list.back().inputs;
    }
  }
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return list;
}

std::vector<RecordedOperation> FlightRecorder::operations() const {
  return select([](const RecordedOperation&) { return true; });
}

std::vector<RecordedOperation> FlightRecorder::unfinished() const {
  return select([](const RecordedOperation& operation) {
    return operation.state == RecordedOperation::State::kCalled;
  });
}

}  // namespace topoopt
