#include "sim/flow/flow_network.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace topoopt {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kBitsPerByte = 8;
constexpr size_t kFewTurns = 32;  // outdated entries

}  // namespace

FlowNetwork::FlowNetwork(const std::vector<double>& capacity, const PathTable& paths)
    : planned_capacity_(capacity),
      planned_paths_(paths),
      paths_(&paths),
      capacity_(capacity),
      rates_(capacity_, paths) {}

void FlowNetwork::reset() {
  capacity_.assign(planned_capacity_.begin(), planned_capacity_.end());
  held_ = false;
  paths_ = &planned_paths_;
  path_latency_s_.clear();
  link_bytes_.assign(capacity_.size(), 0.0);
  for (int path : used_paths_) {
    path_state_[path] = {.flows = std::move(path_state_[path].flows)};
    path_state_[path].flows.clear();
    path_bytes_[path] = 0;
  }
  used_paths_.clear();
  path_state_.resize(paths_->size());
  path_bytes_.resize(paths_->size(), 0.0);
  groups_.resize(capacity_.size());
  for (Group& group : groups_) {
    group = {.next = std::move(group.next)};
    group.next.clear();
  }
  rates_.reset(*paths_);
  touched_paths_.clear();
  touched_groups_.clear();
  deliveries_.clear();
  group_ends_.reset(static_cast<int>(groups_.size()));
  now_ = 0;
  events_ = 0;
}

void FlowNetwork::PathFlows::push(Pending flow) {
  if (!any_) {
    first_ = flow;
    any_ = true;
    return;
  }
  if (first_ > flow) std::swap(first_, flow);
  later_.push_back(flow);
  std::push_heap(later_.begin(), later_.end(), std::greater<>());
}

void FlowNetwork::PathFlows::pop() {
  if (later_.empty()) {
    any_ = false;
    return;
  }
  std::pop_heap(later_.begin(), later_.end(), std::greater<>());
  first_ = later_.back();
  later_.pop_back();
}

void FlowNetwork::start(int flow, const Task& task, double now_s) {
  now_ = std::max(now_, now_s);
  const int path = task.resource;
  PathState& state = path_state_[path];
  touchPath(path);
  if (state.flows.empty()) {  // counting from 0 keeps `target` precise over long runs
    state.served = 0;
    if (state.group >= 0) state.joined = servedNow(groups_[state.group]);
    state.flows.push({task.amount, task.latency_s, flow});
  } else {
    state.flows.push({servedNow(state) + task.amount, task.latency_s, flow});
  }
  if (path_bytes_[path] == 0) used_paths_.push_back(path);
  path_bytes_[path] += task.amount;
  rates_.change(path, +1);
}

double FlowNetwork::advance(double until_s, std::vector<int>& delivered) {
  const size_t before = delivered.size();
  while (true) {
    updateRates();
    const double time = std::min(deliveries_.least(), group_ends_.least());
    if (time == kNever || time > until_s * (1 + kSimultaneous)) {
      if (until_s != kNever) now_ = std::max(now_, until_s);
      return until_s;
    }
    now_ = std::max(now_, std::min(time, until_s));
    const double horizon = now_ * (1 + kSimultaneous);
    arrived_.clear();
    deliveries_.take(horizon, arrived_);
    for (const EventQueue::Event& event : arrived_) delivered.push_back(event.item);
    ended_groups_.clear();
    group_ends_.take(horizon, ended_groups_);
    for (int link : ended_groups_) completeGroup(link, horizon, delivered);
    if (delivered.size() > before) {
      std::sort(delivered.begin() + static_cast<std::ptrdiff_t>(before), delivered.end());
      return now_;
    }
  }
}

// The first flow of the group of `link` has sent all its data: completes it and all others before
// `horizon`.
void FlowNetwork::completeGroup(int link, double horizon, std::vector<int>& delivered) {
  Group& group = groups_[link];
  const double reach = servedNow(group) + group.rate * (horizon - now_);
  do {
    const int path = group.next.front().path;
    std::pop_heap(group.next.begin(), group.next.end(), std::greater<>());
    group.next.pop_back();
    completeFlows(path, reach, delivered);
    dropOutdated(link);
  } while (!group.next.empty() && group.next.front().target <= reach);
  if (!group.next.empty()) touchGroup(link);
}

// The first flow of `path` has sent all its data: completes it and all others before its group has
// served `reach` bytes.
void FlowNetwork::completeFlows(int path, double reach, std::vector<int>& delivered) {
  PathState& state = path_state_[path];
  const double path_reach = state.served + (reach - state.joined);
  int done = 0;
  do {
    const Pending& flow = state.flows.front();
    ++done;
    const bool moved = !path_latency_s_.empty() && path_latency_s_[path] >= 0;
    const double latency_s = moved ? path_latency_s_[path] : flow.latency_s;
    if (latency_s > 0) {
      deliveries_.push(now_ + latency_s, flow.flow);
    } else {
      delivered.push_back(flow.flow);
    }
    state.flows.pop();
  } while (!state.flows.empty() && state.flows.front().target <= path_reach);
  if (!state.flows.empty()) touchPath(path);
  rates_.change(path, -done);
  events_ += done;
}

void FlowNetwork::changeLink(int link, double bits_per_s, double now_s) {
  now_ = std::max(now_, now_s);
  if (held_) {
    held_capacity_[link] = bits_per_s / kBitsPerByte;
    return;
  }
  capacity_[link] = bits_per_s / kBitsPerByte;
  rates_.changeCapacity(link);
}

void FlowNetwork::hold(bool held) {
  if (held == held_) return;
  held_ = held;
  if (held) held_capacity_ = capacity_;
  for (size_t link = 0; link < capacity_.size(); ++link) {
    const double now = held ? 0.0 : held_capacity_[link];
    if (capacity_[link] == now) continue;
    capacity_[link] = now;
    rates_.changeCapacity(static_cast<int>(link));
  }
}

double FlowNetwork::PathFlows::targets() const {
  double sum = any_ ? first_.target : 0.0;
  for (const Pending& flow : later_) sum += flow.target;
  return sum;
}

double FlowNetwork::waitingOf(int path) const {
  const PathFlows& flows = path_state_[path].flows;
  if (flows.empty()) return 0;
  return std::max(0.0, flows.targets() - flows.size() * servedNow(path_state_[path]));
}

// A flow with less than a byte left, possibly by rounding, still needs its circuit.
std::vector<double> FlowNetwork::waitingBytes() const {
  std::vector<double> bytes(path_state_.size(), 0.0);
  for (int path : used_paths_) {
    if (!path_state_[path].flows.empty()) bytes[path] = std::max(1.0, waitingOf(path));
  }
  return bytes;
}

// Rebases all flows' sent bytes and resets the solver.
void FlowNetwork::reroute(const std::vector<std::pair<int, const PairPath*>>& paths) {
  for (int path : used_paths_) {
    PathState& state = path_state_[path];
    const double waiting = waitingOf(path);
    for (const LinkUse& use : paths_->uses(path)) {
      link_bytes_[use.link] += use.load * (path_bytes_[path] - waiting);
    }
    path_bytes_[path] = waiting;
    state = {.served = servedNow(state), .flows = std::move(state.flows)};
  }
  std::erase_if(used_paths_, [this](int path) { return path_state_[path].flows.empty(); });
  replacePaths(paths);
  for (Group& group : groups_) {
    group.served = group.rate = 0;
    group.updated_at = now_;
    group.next.clear();
  }
  group_ends_.reset(static_cast<int>(groups_.size()));
  rates_.reset(*paths_);
  touched_paths_.clear();
  for (int path : used_paths_) {
    rates_.change(path, path_state_[path].flows.size());
    touchPath(path);
  }
}

void FlowNetwork::replacePaths(const std::vector<std::pair<int, const PairPath*>>& paths) {
  std::vector<const PairPath*> moved(paths_->size(), nullptr);
  path_latency_s_.resize(paths_->size(), -1.0);
  for (const auto& [path, to] : paths) {
    for (const LinkUse& use : to->uses) {
      if (use.link >= 0 && use.link < static_cast<int>(capacity_.size())) continue;
      throw std::invalid_argument("paths: link " + std::to_string(use.link) + " is not in 0.." +
                                  std::to_string(static_cast<int64_t>(capacity_.size()) - 1));
    }
    moved[path] = to;
    path_latency_s_[path] = to->latency_s;
  }
  PathTable table;
  for (int path = 0; path < paths_->size(); ++path) {
    const auto kept = paths_->uses(path);
    table.add(moved[path] != nullptr ? moved[path]->uses
                                     : std::vector<LinkUse>(kept.begin(), kept.end()));
  }
  moved_paths_ = std::move(table);
  paths_ = &moved_paths_;
}

void FlowNetwork::updateRates() {
  rates_.solve();
  for (int link : rates_.solvedLinks()) {
    Group& group = groups_[link];
    group.served = servedNow(group);
    group.updated_at = now_;
    group.rate = rates_.groupSize(link) > 0 ? rates_.level(link) : 0.0;
    touchGroup(link);
  }
  for (int path : rates_.movedPaths()) regroup(path);
  for (int link : rates_.solvedLinks()) {
    if (rates_.groupSize(link) > 0) continue;
    groups_[link].served = 0;
    groups_[link].next.clear();
  }
  for (int path : touched_paths_) addTurn(path);
  touched_paths_.clear();
  for (int link : touched_groups_) setEnd(link);
  touched_groups_.clear();
}

// Moves a path to another link's clock.
void FlowNetwork::regroup(int path) {
  touchPath(path);
  PathState& state = path_state_[path];
  state.served = servedNow(state);
  state.group = rates_.bottleneck(path);
  if (state.group >= 0) state.joined = servedNow(groups_[state.group]);
}

void FlowNetwork::addTurn(int path) {
  PathState& state = path_state_[path];
  state.touched = false;
  ++state.turn;
  if (state.flows.empty()) return;
  touchGroup(state.group);
  std::vector<Turn>& next = groups_[state.group].next;
  next.push_back({state.joined + (state.flows.front().target - state.served), path, state.turn});
  std::push_heap(next.begin(), next.end(), std::greater<>());
}

void FlowNetwork::setEnd(int link) {
  Group& group = groups_[link];
  group.touched = false;
  if (group.next.size() > 2 * static_cast<size_t>(rates_.groupSize(link)) + kFewTurns) {
    std::erase_if(group.next, [this](const Turn& turn) { return !counts(turn); });
    std::make_heap(group.next.begin(), group.next.end(), std::greater<>());
  }
  dropOutdated(link);
  if (group.next.empty() || group.rate == 0) {
    group_ends_.remove(link);
    return;
  }
  const double left = std::max(0.0, group.next.front().target - servedNow(group));
  group_ends_.set(link, now_ + left / group.rate);
}

void FlowNetwork::dropOutdated(int link) {
  std::vector<Turn>& next = groups_[link].next;
  while (!next.empty() && !counts(next.front())) {
    std::pop_heap(next.begin(), next.end(), std::greater<>());
    next.pop_back();
  }
}

void FlowNetwork::touchPath(int path) {
  if (path_state_[path].touched) return;
  path_state_[path].touched = true;
  touched_paths_.push_back(path);
}

void FlowNetwork::touchGroup(int link) {
  if (groups_[link].touched) return;
  groups_[link].touched = true;
  touched_groups_.push_back(link);
}

ProgramFlowNetwork::ProgramFlowNetwork(const FlowProgram& program) {
  capacity.reserve(program.links().size());
  for (const ProgramLink& link : program.links()) {
    capacity.push_back(link.bits_per_s / kBitsPerByte);
  }
  std::vector<LinkUse> uses;
  for (int route = 0; route < program.routeCount(); ++route) {
    uses.clear();
    for (int link : program.route(route)) uses.push_back({link, 1.0});
    paths.add(uses);
  }
}

std::vector<double> FlowNetwork::linkBytes() const {
  std::vector<double> bytes = link_bytes_;
  bytes.resize(capacity_.size(), 0.0);
  std::vector<int> used(used_paths_);
  std::ranges::sort(used);  // so that sums do not depend on the event order
  for (int path : used) {
    for (const LinkUse& use : paths_->uses(path)) bytes[use.link] += use.load * path_bytes_[path];
  }
  return bytes;
}

}  // namespace topoopt
