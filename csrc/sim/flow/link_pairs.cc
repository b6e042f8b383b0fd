#include "sim/flow/link_pairs.h"

#include <bit>
#include <utility>

namespace topoopt {

namespace {
constexpr size_t kFewestSlots = 1024;
}  // namespace

void LinkPairs::reset(size_t links) {
  rows_.resize(links);
  columns_.resize(links);
  for (auto& row : rows_) row.clear();
  for (auto& column : columns_) column.clear();
  if (slots_.empty() || used_ > 0) slots_.assign(kFewestSlots, Slot());
  shift_ = 64 - std::countr_zero(slots_.size());
  used_ = 0;
}

void LinkPairs::grow() {
  std::vector<Slot> old(2 * slots_.size());
  old.swap(slots_);
  --shift_;
  for (const Slot& slot : old) {
    if (slot.key != kEmpty) slots_[find(slot.key)] = slot;
  }
}

void LinkPairs::insert(size_t at, int holder, int crossed, double weight) {
  const uint64_t key = keyOf(holder, crossed);
  if (2 * (used_ + 1) > slots_.size()) {
    grow();
    at = find(key);
  }
  ++used_;
  auto& row = rows_[holder];
  auto& column = columns_[crossed];
  const int in_row = static_cast<int>(row.size());
  const int in_column = static_cast<int>(column.size());
  row.push_back({crossed, in_column, weight});
  column.push_back({holder, in_row, weight});
  slots_[at] = {key, in_row, 1};
}

void LinkPairs::drop(size_t slot, int holder, int crossed) {
  auto& row = rows_[holder];
  auto& column = columns_[crossed];
  const int in_row = slots_[slot].at;
  const int in_column = row[in_row].twin;
  erase(slot);
  if (in_row + 1 < static_cast<int>(row.size())) {
    row[in_row] = row.back();
    columns_[row[in_row].link][row[in_row].twin].twin = in_row;
    slots_[find(keyOf(holder, row[in_row].link))].at = in_row;
  }
  row.pop_back();
  if (in_column + 1 < static_cast<int>(column.size())) {
    column[in_column] = column.back();
    rows_[column[in_column].link][column[in_column].twin].twin = in_column;
  }
  column.pop_back();
}

// Shifts back entries that were displaced by this slot.
void LinkPairs::erase(size_t slot) {
  const size_t mask = slots_.size() - 1;
  --used_;
  for (size_t next = (slot + 1) & mask; slots_[next].key != kEmpty; next = (next + 1) & mask) {
    if (((next - home(slots_[next].key)) & mask) >= ((next - slot) & mask)) {
      slots_[slot] = slots_[next];
      slot = next;
    }
  }
  slots_[slot] = Slot();
}

}  // namespace topoopt
