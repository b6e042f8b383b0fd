#include "plan/sink_flow.h"

#include <algorithm>

namespace topoopt {

FlowUpdater::FlowUpdater(const IntegerLinks& links)
    : links_(links),
      excess_(links.servers, 0),
      listed_(links.servers, 0),
      from_excess_{{}, 0, std::vector<int>(links.servers), std::vector<int>(links.servers, 0)},
      to_deficit_(from_excess_) {}

int64_t FlowUpdater::update(SinkFlow& flow, int sink, std::span<const int64_t> capacity,
                            std::span<const int64_t> supply) {
  for (const int server : unbalanced_) listed_[server] = excess_[server] = 0;
  unbalanced_.clear();
  for (size_t e = 0; e < capacity.size(); ++e) {
    const int64_t surplus = flow.link[e] - capacity[e];
    if (surplus <= 0) continue;
    flow.link[e] = capacity[e];
    add(links_.source[e], surplus);
    add(links_.target[e], -surplus);
  }
  for (size_t v = 0; v < supply.size(); ++v) {
    const int64_t more = supply[v] - flow.supply[v];
    if (more == 0) continue;
    flow.supply[v] = supply[v];
    add(static_cast<int>(v), more);
    add(sink, -more);
  }
  return finish(flow, capacity);
}

int64_t FlowUpdater::finish(SinkFlow& flow, std::span<const int64_t> capacity) {
  constexpr size_t kFew = 64;
  do {
    start();
    if (unbalanced_.size() > kFew) {
      searchFromSink(flow, capacity);
    } else {
      searchFromBoth(flow, capacity);
    }
    for (const int server : reached_) push(flow, capacity, server);
  } while (!reached_.empty());
  int64_t missing = 0;
  for (const int server : unbalanced_) missing += std::max<int64_t>(excess_[server], 0);
  return missing;
}

void FlowUpdater::add(int server, int64_t units) {
  if (!listed_[server]) {
    listed_[server] = 1;
    unbalanced_.push_back(server);
  }
  excess_[server] += units;
}

void FlowUpdater::start() {
  ++stamp_;
  reached_.clear();
  for (Side* side : {&from_excess_, &to_deficit_}) {
    side->queue.clear();
    side->next = 0;
  }
  for (const int server : unbalanced_) {
    if (excess_[server] == 0) continue;
    Side& side = excess_[server] > 0 ? from_excess_ : to_deficit_;
    side.seen[server] = stamp_;
    side.via[server] = -1;
    side.queue.push_back(server);
  }
}

// Visits the neighbours of the next server of one side, and lists those that the other side has
// reached.
template <bool kForward>
void FlowUpdater::grow(const SinkFlow& flow, std::span<const int64_t> capacity) {
  Side& side = kForward ? from_excess_ : to_deficit_;
  const Side& other = kForward ? to_deficit_ : from_excess_;
  const int v = side.queue[side.next++];
  const auto visit = [&](int server, int link) {
    side.seen[server] = stamp_;
    side.via[server] = link;
    side.queue.push_back(server);
    if (other.seen[server] == stamp_) reached_.push_back(server);
  };
  const auto isFree = [&](int e, bool along) {
    return along ? flow.link[e] < capacity[e] : flow.link[e] > 0;
  };
  for (int e = links_.first_in[v]; e < links_.first_in[v + 1]; ++e) {
    const int u = links_.source[e];
    if (side.seen[u] != stamp_ && isFree(e, !kForward)) visit(u, e);
  }
  for (int i = links_.first_out[v]; i < links_.first_out[v + 1]; ++i) {
    const int e = links_.out[i];
    const int u = links_.target[e];
    if (side.seen[u] != stamp_ && isFree(e, kForward)) visit(u, e);
  }
}

// Searches back from the deficits, breadth-first, until all excesses are reached.
void FlowUpdater::searchFromSink(const SinkFlow& flow, std::span<const int64_t> capacity) {
  cut_by_excess_ = false;
  const size_t wanted = from_excess_.queue.size();
  while (reached_.size() < wanted && to_deficit_.next < to_deficit_.queue.size()) {
    grow<false>(flow, capacity);
  }
}

// Searches from both ends, which visits few servers, until one path is found.
void FlowUpdater::searchFromBoth(const SinkFlow& flow, std::span<const int64_t> capacity) {
  while (reached_.empty()) {
    const size_t ahead = from_excess_.queue.size() - from_excess_.next;
    const size_t behind = to_deficit_.queue.size() - to_deficit_.next;
    cut_by_excess_ = ahead == 0;
    if (ahead == 0 || behind == 0) return;
    if (ahead < behind) {
      grow<true>(flow, capacity);
    } else {
      grow<false>(flow, capacity);
    }
  }
}

// Sends units along the path that the searches have found through a server.
void FlowUpdater::push(SinkFlow& flow, std::span<const int64_t> capacity, int through) {
  path_.clear();
  int from = through;
  if (from_excess_.seen[from] == stamp_) {
    while (from_excess_.via[from] >= 0) {
      const int e = from_excess_.via[from];
      const bool along = links_.target[e] == from;
      path_.push_back({e, along});
      from = along ? links_.source[e] : links_.target[e];
    }
  }
  int to = through;
  while (to_deficit_.via[to] >= 0) {
    const int e = to_deficit_.via[to];
    const bool along = links_.source[e] == to;
    path_.push_back({e, along});
    to = along ? links_.target[e] : links_.source[e];
  }
  int64_t units = std::min(excess_[from], -excess_[to]);
  for (const auto& [e, along] : path_) {
    units = std::min(units, along ? capacity[e] - flow.link[e] : flow.link[e]);
  }
  for (const auto& [e, along] : path_) flow.link[e] += along ? units : -units;
  excess_[from] -= units;
  excess_[to] += units;
}

}  // namespace topoopt
