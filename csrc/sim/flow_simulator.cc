#include "sim/flow_simulator.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

namespace topoopt {

namespace {

constexpr double kSimultaneous = 1e-12;  // relative distance of events that count as one

template <typename T>
void push(std::vector<T>& heap, const T& item) {
  heap.push_back(item);
  std::push_heap(heap.begin(), heap.end(), std::greater<>());
}

template <typename T>
T pop(std::vector<T>& heap) {
  std::pop_heap(heap.begin(), heap.end(), std::greater<>());
  T item = heap.back();
  heap.pop_back();
  return item;
}

[[noreturn]] void failTask(int task, const std::string& what) {
  throw std::invalid_argument("tasks[" + std::to_string(task) + "]: " + what);
}

}  // namespace

FlowSimulator::FlowSimulator(const std::vector<double>& capacity, const PathTable& paths,
                             int devices)
    : capacity_(capacity), paths_(paths), rates_(capacity, paths), devices_(devices) {
  for (size_t link = 0; link < capacity.size(); ++link) {
    if (!(capacity[link] > 0) || !std::isfinite(capacity[link])) {
      throw std::invalid_argument("links[" + std::to_string(link) + "].bytes_per_s: " +
                                  std::to_string(capacity[link]) + " is not above 0 and finite");
    }
  }
}

void FlowSimulator::validate(const TaskGraph& graph) const {
  for (int i = 0; i < graph.size(); ++i) {
    const Task& task = graph.tasks()[i];
    const bool flow = task.kind == TaskKind::kFlow;
    if (!std::isfinite(task.amount) || task.amount < 0 || (flow && task.amount == 0)) {
      failTask(i, (flow ? "size_bytes: " : "seconds: ") + std::to_string(task.amount) +
                      (flow ? " is not above 0 and finite" : " is not at least 0 and finite"));
    }
    if (!std::isfinite(task.latency_s) || task.latency_s < 0) {
      failTask(i, "latency_s: " + std::to_string(task.latency_s) + " is not at least 0 and finite");
    }
    if (flow && (task.resource < 0 || task.resource >= paths_.size())) {
      failTask(i, "path " + std::to_string(task.resource) + " does not exist");
    }
    if (task.kind == TaskKind::kCompute &&
        (task.resource < 0 || task.resource >= static_cast<int>(devices_.size()))) {
      failTask(i, "device: " + std::to_string(task.resource) + " is not in 0.." +
                      std::to_string(static_cast<int>(devices_.size()) - 1));
    }
  }
  for (const auto& [before, after] : graph.dependencies()) {
    for (int task : {before, after}) {
      if (task < 0 || task >= graph.size()) {
        throw std::invalid_argument("after: task " + std::to_string(task) + " is not in 0.." +
                                    std::to_string(graph.size() - 1));
      }
    }
  }
}

void FlowSimulator::prepare(const TaskGraph& graph) {
  validate(graph);
  const size_t count = graph.size();
  tasks_ = &graph.tasks();
  waiting_.assign(count, 0);
  dependents_begin_.assign(count + 1, 0);
  for (const auto& [before, after] : graph.dependencies()) {
    ++waiting_[after];
    ++dependents_begin_[before + 1];
  }
  for (size_t i = 0; i < count; ++i) dependents_begin_[i + 1] += dependents_begin_[i];
  dependents_.resize(graph.dependencies().size());
  std::vector<int>& next = touched_paths_;  // borrowed as scratch
  next.assign(dependents_begin_.begin(), dependents_begin_.end());
  for (const auto& [before, after] : graph.dependencies()) dependents_[next[before]++] = after;

  for (Device& device : devices_) {
    device.busy = false;
    device.ready.clear();
  }
  for (PathState& state : path_state_) {
    state.flows.clear();
    state.served = state.updated_at = state.rate = 0;
    state.touched = false;
  }
  path_state_.resize(paths_.size());
  path_bytes_.assign(paths_.size(), 0.0);
  rates_.reset();
  idle_devices_.clear();
  touched_paths_.clear();
  used_paths_.clear();
  timers_.clear();
  path_ends_.reset(paths_.size());
  now_ = 0;
  finished_ = 0;
  outcome_.makespan_s = 0;
  outcome_.events = 0;
  outcome_.finish_s.assign(count, 0.0);
  outcome_.device_busy_s.assign(devices_.size(), 0.0);
}

const Outcome& FlowSimulator::run(const TaskGraph& graph) {
  prepare(graph);
  for (int i = 0; i < graph.size(); ++i) {
    if (waiting_[i] == 0) start(i);
  }
  while (true) {
    dispatchDevices();
    updateRates();
    const double time = nextEventTime();
    if (time == std::numeric_limits<double>::infinity()) break;
    now_ = std::max(now_, time);
    const double horizon = now_ * (1 + kSimultaneous);
    takeTimers(horizon);
    takeFlows(horizon);
  }
  if (finished_ < graph.size()) failOnCycle(graph);
  outcome_.makespan_s = now_;
  addLinkBytes();
  return outcome_;
}

void FlowSimulator::start(int task) {
  const Task& t = (*tasks_)[task];
  switch (t.kind) {
    case TaskKind::kFlow:
      startFlow(task);
      break;
    case TaskKind::kDelay:
      push(timers_, {now_ + t.amount, task});
      break;
    case TaskKind::kCompute:
      push(devices_[t.resource].ready, {t.priority, task});
      if (!devices_[t.resource].busy) idle_devices_.push_back(t.resource);
      break;
  }
}

void FlowSimulator::startFlow(int task) {
  const Task& t = (*tasks_)[task];
  PathState& state = path_state_[t.resource];
  advance(state);
  if (state.flows.empty()) state.served = 0;  // keeps `target` precise over long runs
  push(state.flows, {state.served + t.amount, task});
  if (path_bytes_[t.resource] == 0) used_paths_.push_back(t.resource);
  path_bytes_[t.resource] += t.amount;
  rates_.change(t.resource, +1);
  touch(t.resource);
}

void FlowSimulator::finish(int task) {
  ++finished_;
  ++outcome_.events;
  outcome_.finish_s[task] = now_;
  for (int i = dependents_begin_[task]; i < dependents_begin_[task + 1]; ++i) {
    if (--waiting_[dependents_[i]] == 0) start(dependents_[i]);
  }
}

double FlowSimulator::nextEventTime() const {
  double time = std::numeric_limits<double>::infinity();
  if (!timers_.empty()) time = timers_.front().time;
  if (!path_ends_.empty()) time = std::min(time, path_ends_.topKey());
  return time;
}

void FlowSimulator::takeTimers(double horizon) {
  while (!timers_.empty() && timers_.front().time <= horizon) {
    const int task = pop(timers_).task;
    const Task& t = (*tasks_)[task];
    if (t.kind == TaskKind::kCompute) {
      devices_[t.resource].busy = false;
      idle_devices_.push_back(t.resource);
    }
    finish(task);
  }
}

void FlowSimulator::takeFlows(double horizon) {
  while (!path_ends_.empty() && path_ends_.topKey() <= horizon) {
    const int path = path_ends_.top();
    path_ends_.remove(path);
    completeFlows(path, horizon);
  }
}

// The first flow of `path` is done, and with it those that end before `horizon`.
void FlowSimulator::completeFlows(int path, double horizon) {
  PathState& state = path_state_[path];
  advance(state);
  const double reach = state.served + state.rate * (horizon - now_);
  touch(path);
  done_.clear();
  do {
    done_.push_back(pop(state.flows).task);
  } while (!state.flows.empty() && state.flows.front().target <= reach);
  rates_.change(path, -static_cast<int>(done_.size()));
  for (int task : done_) {
    const double latency_s = (*tasks_)[task].latency_s;
    if (latency_s > 0) {
      push(timers_, {now_ + latency_s, task});
    } else {
      finish(task);  // may start flows on this very path, so only after all are taken off it
    }
  }
}

void FlowSimulator::dispatchDevices() {
  for (size_t i = 0; i < idle_devices_.size(); ++i) {
    const int device = idle_devices_[i];
    Device& d = devices_[device];
    if (d.busy || d.ready.empty()) continue;
    const int task = pop(d.ready).task;
    const double seconds = (*tasks_)[task].amount;
    d.busy = true;
    outcome_.device_busy_s[device] += seconds;
    push(timers_, {now_ + seconds, task});
  }
  idle_devices_.clear();
}

void FlowSimulator::updateRates() {
  for (int path : rates_.solve()) {
    if (rates_.rate(path) == path_state_[path].rate) continue;
    advance(path_state_[path]);
    path_state_[path].rate = rates_.rate(path);
    touch(path);
  }
  for (int path : touched_paths_) {
    PathState& state = path_state_[path];
    state.touched = false;
    if (state.flows.empty()) {
      state.rate = 0;
      path_ends_.remove(path);
      continue;
    }
    const double left = std::max(0.0, state.flows.front().target - state.served);
    path_ends_.set(path, now_ + left / state.rate);
  }
  touched_paths_.clear();
}

void FlowSimulator::advance(PathState& state) {
  state.served += state.rate * (now_ - state.updated_at);
  state.updated_at = now_;
}

void FlowSimulator::touch(int path) {
  if (path_state_[path].touched) return;
  path_state_[path].touched = true;
  advance(path_state_[path]);
  touched_paths_.push_back(path);
}

void FlowSimulator::addLinkBytes() {
  outcome_.link_bytes.assign(capacity_.size(), 0.0);
  std::sort(used_paths_.begin(), used_paths_.end());
  for (int path : used_paths_) {
    for (const LinkUse& use : paths_.uses(path)) {
      outcome_.link_bytes[use.link] += use.load * path_bytes_[path];
    }
  }
}

// Walks back over unfinished dependencies until a task repeats: that is the cycle.
void FlowSimulator::failOnCycle(const TaskGraph& graph) const {
  std::vector<int> blocker(graph.size(), -1);
  for (const auto& [before, after] : graph.dependencies()) {
    if (waiting_[before] > 0 && waiting_[after] > 0) blocker[after] = before;
  }
  int task = 0;
  while (waiting_[task] == 0 || blocker[task] < 0) ++task;
  std::vector<int> order;
  std::vector<char> seen(graph.size(), 0);
  for (; !seen[task]; task = blocker[task]) {
    seen[task] = 1;
    order.push_back(task);
  }
  std::string cycle = std::to_string(task);
  for (auto it = std::find(order.begin(), order.end(), task) + 1; it != order.end(); ++it) {
    cycle += " after " + std::to_string(*it);
  }
  throw std::invalid_argument("tasks: the dependencies form a cycle: " + cycle + " after " +
                              std::to_string(task));
}

}  // namespace topoopt
