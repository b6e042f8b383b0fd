#include "sim/core/dependents.h"

#include <algorithm>
#include <bit>

namespace topoopt {

namespace {

constexpr size_t kFewestSlots = 64;
constexpr int kHashed = 16;  // hashed entries of a list; the rest is compared

}  // namespace

void Dependents::prepare(const TaskGraph& graph, bool repeated) {
  const auto& pairs = graph.dependencies();
  tasks_ = graph.size();
  waiting_.assign(tasks_, 0);
  lists_.clear();
  of_list_.clear();
  single_.clear();
  table_.assign(kFewestSlots, -1);
  const Pair* const end = pairs.data() + pairs.size();
  for (const Pair* first = pairs.data(); first != end;) {
    const Pair* last = first + 1;
    while (last != end && last->second == first->second) ++last;
    const int task = first->second;
    ++waiting_[task];
    if (last - first == 1) {
      single_.push_back(*first);
    } else {
      of_list_.emplace_back(listOf(first, static_cast<int>(last - first)), task);
    }
    first = last;
  }
  addEdges();
  first_waiting_.clear();
  if (repeated) first_waiting_ = waiting_;
}

// Returns the id of the list of predecessors in these pairs, in this order.
int Dependents::listOf(const Pair* first, int size) {
  uint64_t hash = static_cast<uint64_t>(size);
  const int stride = (size + kHashed - 1) / kHashed;
  for (int i = 0; i < size; i += stride) {
    hash = (hash ^ static_cast<uint32_t>(first[i].first)) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  }
  const auto isSame = [&](const List& list) {
    return list.hash == hash && list.size == size &&
           std::equal(first, first + size, list.first,
                      [](const Pair& a, const Pair& b) { return a.first == b.first; });
  };
  size_t mask = table_.size() - 1;
  size_t at = hash & mask;
  while (table_[at] >= 0 && !isSame(lists_[table_[at]])) at = (at + 1) & mask;
  if (table_[at] >= 0) return table_[at];
  table_[at] = static_cast<int>(lists_.size());
  lists_.push_back({first, size, hash});
  if (2 * lists_.size() > table_.size()) {
    table_.assign(2 * table_.size(), -1);
    mask = table_.size() - 1;
    for (size_t list = 0; list < lists_.size(); ++list) {
      at = lists_[list].hash & mask;
      while (table_[at] >= 0) at = (at + 1) & mask;
      table_[at] = static_cast<int>(list);
    }
  }
  return static_cast<int>(lists_.size()) - 1;
}

void Dependents::addEdges() {
  const size_t lists = lists_.size();
  begin_.assign(tasks_ + 1, 0);
  for (const auto& [before, after] : single_) ++begin_[before + 1];
  for (const List& list : lists_) {
    waiting_.push_back(list.size);
    for (int i = 0; i < list.size; ++i) ++begin_[list.first[i].first + 1];
  }
  for (int i = 0; i < tasks_; ++i) begin_[i + 1] += begin_[i];
  nodes_.resize(begin_[tasks_]);
  next_.assign(begin_.begin(), begin_.end());
  for (const auto& [before, after] : single_) nodes_[next_[before]++] = after;
  for (size_t list = 0; list < lists; ++list) {
    for (int i = 0; i < lists_[list].size; ++i) {
      nodes_[next_[lists_[list].first[i].first]++] = tasks_ + static_cast<int>(list);
    }
  }
  member_begin_.assign(lists + 1, 0);
  for (const auto& [list, task] : of_list_) ++member_begin_[list + 1];
  for (size_t list = 0; list < lists; ++list) member_begin_[list + 1] += member_begin_[list];
  members_.resize(of_list_.size());
  next_.assign(member_begin_.begin(), member_begin_.end());
  for (const auto& [list, task] : of_list_) members_[next_[list]++] = task;
}

}  // namespace topoopt
