#include "plan/tree_schedules.h"

#include <algorithm>

#include "plan/schedule_parts.h"

namespace topoopt {
namespace {

// A tree and its chunks from one member's view.
struct TreeView {
  int parent;
  std::vector<int> children;
  Extent extent;
  size_t element_bytes;
  size_t chunks;

  bool root() const { return parent < 0; }

  Range chunk(Buffer buffer, size_t index) const {
    const Extent part = divide(extent, chunks, index);
    return {buffer, part.first * element_bytes, part.count * element_bytes};
  }
  size_t largestChunkBytes() const { return divide(extent, chunks, 0).count * element_bytes; }
};

// A sum keeps its slot until the last child's data has arrived.
size_t slotsFor(size_t children) { return std::max(kSlots, 2 * children); }

size_t mostChildren(const Tree& tree) {
  std::vector<size_t> children(tree.parent.size(), 0);
  for (const int parent : tree.parent) {
    if (parent >= 0) ++children[parent];
  }
  return *std::max_element(children.begin(), children.end());
}

std::vector<TreeView> viewsOf(const std::vector<TreeShare>& trees, int rank, size_t count,
                              size_t element_bytes, bool slots) {
  std::vector<plan::Ring> shares;
  size_t all_slots = 0;
  for (const TreeShare& tree : trees) {
    shares.push_back({{}, tree.share});
    if (slots) all_slots += slotsFor(mostChildren(tree.tree));
  }
  const std::vector<Extent> extents = divideByShare(count, shares);
  std::vector<TreeView> views;
  for (size_t t = 0; t < trees.size(); ++t) {
    views.push_back({trees[t].tree.parent[rank], trees[t].tree.childrenOf(rank), extents[t],
                     element_bytes, chunkCount(extents[t].count * element_bytes, all_slots)});
  }
  return views;
}

// From the root to the leaves; `ready` completes each chunk at the root.
void sendDown(Schedule& schedule, int lane, const TreeView& tree,
              const std::vector<StepRef>& ready) {
  for (size_t c = 0; c < tree.chunks; ++c) {
    const Range data = tree.chunk(Buffer::kInput, c);
    if (data.bytes == 0) continue;
    StepRef here = ready[c];
    if (!tree.root()) {
      Receive receive;
      receive.peer = tree.parent;
      receive.into = data;
      here = addReceive(schedule, lane, receive);
    }
    for (const int child : tree.children) addSend(schedule, lane, child, data, here);
  }
}

// Sums in place towards the root; returns the step that completes each chunk here.
std::vector<StepRef> addUp(Schedule& schedule, int lane, const TreeView& tree) {
  std::vector<StepRef> ready(tree.chunks);
  Slots slots(schedule, tree.children.empty() ? 0 : kSlots, tree.largestChunkBytes());
  for (size_t c = 0; c < tree.chunks; ++c) {
    const Range data = tree.chunk(Buffer::kInput, c);
    if (data.bytes == 0) continue;
    for (const int child : tree.children) {
      Receive receive;
      receive.peer = child;
      const Slots::Slot slot = slots.take(receive, data.bytes);
      receive.into = slot.range;
      receive.reduce = true;
      receive.target = data;
      receive.operand = slot.range;
      receive.turn_after = ready[c];
      ready[c] = addReceive(schedule, lane, receive);
      slots.filledBy(slot.number, ready[c]);
    }
    if (!tree.root()) addSend(schedule, lane, tree.parent, data, ready[c]);
  }
  return ready;
}

}  // namespace

Schedule treeAllReduceSchedule(const std::vector<TreeShare>& trees, int rank, size_t count,
                               size_t element_bytes) {
  Schedule schedule;
  const std::vector<TreeView> views = viewsOf(trees, rank, count, element_bytes, true);
  for (size_t t = 0; t < trees.size(); ++t) {
    const int up = addLane(schedule, 2 * t, trees[t].part);
    const int down = addLane(schedule, 2 * t + 1, trees[t].part);
    sendDown(schedule, down, views[t], addUp(schedule, up, views[t]));
  }
  return schedule;
}

Schedule treeBroadcastSchedule(const std::vector<TreeShare>& trees, int rank, size_t count,
                               size_t element_bytes) {
  Schedule schedule;
  const std::vector<TreeView> views = viewsOf(trees, rank, count, element_bytes, false);
  for (size_t t = 0; t < trees.size(); ++t) {
    const int lane = addLane(schedule, t, trees[t].part);
    sendDown(schedule, lane, views[t], std::vector<StepRef>(views[t].chunks));
  }
  return schedule;
}

Schedule treeReduceSchedule(const std::vector<TreeShare>& trees, int rank, size_t count,
                            size_t element_bytes) {
  Schedule schedule;
  const std::vector<TreeView> views = viewsOf(trees, rank, count, element_bytes, true);
  for (size_t t = 0; t < trees.size(); ++t) {
    const TreeView& tree = views[t];
    const int lane = addLane(schedule, t, trees[t].part);
    const size_t slot_count = tree.children.empty() ? 0 : slotsFor(tree.children.size());
    Slots slots(schedule, slot_count, tree.largestChunkBytes());
    for (size_t c = 0; c < tree.chunks; ++c) {
      const Range own = tree.chunk(Buffer::kInput, c);
      if (own.bytes == 0) continue;
      ChunkSum sum = tree.root() ? ChunkSum(schedule, own, tree.chunk(Buffer::kOutput, c))
                                 : ChunkSum(schedule, own);
      for (const int child : tree.children) sum.add(lane, child, slots);
      if (!tree.root()) sum.send(lane, tree.parent);
    }
  }
  return schedule;
}

}  // namespace topoopt
