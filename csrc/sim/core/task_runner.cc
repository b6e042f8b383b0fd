#include "sim/core/task_runner.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace topoopt {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kTurnsBetweenReports = 1024;

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

}  // namespace

void TaskRunner::prepare(const TaskGraph& graph) {
  const size_t count = graph.size();
  tasks_ = &graph.tasks();
  dependents_.prepare(graph, !graph.loops().empty());
  for (Device& device : devices_) {
    device.busy = false;
    device.ready.clear();
  }
  idle_devices_.clear();
  timers_.clear();
  at_once_ = graph.devicesAtOnce();
  busy_ = 0;
  worked_s_ = worked_at_s_ = 0;
  shared_.clear();
  delivered_.clear();
  next_change_ = 0;
  now_ = 0;
  outcome_.finished = 0;
  outcome_.events = 0;
  outcome_.start_s.assign(count, kNever);
  outcome_.finish_s.assign(count, kNever);
  outcome_.device_busy_s.assign(devices_.size(), 0.0);
  prepareLoops(graph);
}

void TaskRunner::prepareLoops(const TaskGraph& graph) {
  loops_.clear();
  loop_of_.clear();
  left_ = graph.size();
  outcome_.round_ends_s.assign(graph.loops().size(), {});
  if (graph.loops().empty()) return;
  loop_of_.assign(graph.size(), -1);
  for (const Loop& loop : graph.loops()) {
    std::fill(loop_of_.begin() + loop.first, loop_of_.begin() + loop.end + 1,
              static_cast<int>(loops_.size()));
    loops_.push_back({loop});
    left_ += rounds_ - (loop.end - loop.first + 1);
  }
  for (const auto& [before, after] : graph.dependencies()) {
    if (loop_of_[before] == loop_of_[after]) continue;
    throw std::invalid_argument("loops: task " + std::to_string(after) + " waits for task " +
                                std::to_string(before) + ", and only one of them is in a loop");
  }
}

void TaskRunner::beginRound(int loop) {
  Turning& turning = loops_[loop];
  turning.begin_s = now_;
  turning.finished = 0;
  for (int task = turning.loop.first; task <= turning.loop.end; ++task) {
    if (dependents_.isFree(task)) start(task);
  }
}

void TaskRunner::finishInLoop(int loop, int task) {
  Turning& turning = loops_[loop];
  ++turning.finished;
  if (task != turning.loop.end) return;
  const std::string name = "loops[" + std::to_string(loop) + "]";
  if (turning.finished != turning.loop.end - turning.loop.first + 1) {
    throw std::invalid_argument(name + ": its last task does not wait for all others");
  }
  if (!(now_ > turning.begin_s)) throw std::invalid_argument(name + ": a round takes no time");
  std::vector<double>& ends = outcome_.round_ends_s[loop];
  ends.push_back(now_);
  if (static_cast<int>(ends.size()) <= rounds_) --left_;
  beginRound(loop);
}

const Outcome& TaskRunner::run(const TaskGraph& graph, Network& network,
                               const RunOptions& options) {
  rounds_ = options.rounds;
  prepare(graph);
  changes_.assign(options.changes.begin(), options.changes.end());
  std::ranges::stable_sort(changes_, {}, &LinkChange::time_s);
  network_ = &network;
  first_come_ = options.first_come;
  network.reset();
  takeChanges();  // changes at time 0 precede all flows
  double control_at_s = options.control ? options.control_at_s : kNever;
  if (control_at_s <= 0) control_at_s = options.control(0);
  for (int i = 0; i < graph.size(); ++i) {
    if (dependents_.isFree(i) && (loop_of_.empty() || loop_of_[i] < 0)) start(i);
  }
  for (int i = 0; i < static_cast<int>(loops_.size()); ++i) {
    timers_.push(loops_[i].loop.start_s, graph.size() + i);
  }
  bool cut_short = false;
  for (int turn = 1; !cut_short && left_ > 0; ++turn) {
    dispatchDevices();
    double limit = options.until_s;
    limit = std::min({limit, timers_.least(), nextWorkedOff()});
    if (next_change_ < changes_.size()) limit = std::min(limit, changes_[next_change_].time_s);
    limit = std::min(limit, control_at_s);
    const double reached = network.advance(limit, delivered_);
    if (reached == kNever) break;
    now_ = std::max(now_, reached);
    work();
    takeTimers();
    takeWorkedOff();
    for (int task : delivered_) finish(task);
    const bool quiet = delivered_.empty();
    delivered_.clear();
    takeChanges();
    if (now_ >= control_at_s) control_at_s = options.control(now_);
    cut_short = now_ >= options.until_s && left_ > 0;
    if (options.keep_going && (quiet || turn % kTurnsBetweenReports == 0)) {
      cut_short = cut_short || !options.keep_going(now_, outcome_.finished);
    }
  }
  if (!cut_short && left_ > 0) failOnUnfinished(graph);
  outcome_.complete = left_ <= 0;
  outcome_.makespan_s = now_;
  outcome_.link_bytes = network.linkBytes();
  outcome_.events += network.events();
  return outcome_;
}

void TaskRunner::start(int task) {
  const Task& t = (*tasks_)[task];
  outcome_.start_s[task] = now_;
  switch (t.kind) {
    case TaskKind::kFlow:
      network_->start(task, t, now_);
      break;
    case TaskKind::kDelay:
      timers_.push(now_ + t.amount, task);
      break;
    case TaskKind::kCompute:
      push(devices_[t.resource].ready, {t.priority, first_come_ ? now_ : 0.0, task});
      if (!devices_[t.resource].busy) idle_devices_.push_back(t.resource);
      break;
  }
}

void TaskRunner::finish(int task) {
  ++outcome_.finished;
  ++outcome_.events;
  outcome_.finish_s[task] = now_;
  dependents_.release(task, [this](int dependent) { start(dependent); });
  if (loop_of_.empty() || loop_of_[task] < 0) {
    --left_;
  } else {
    finishInLoop(loop_of_[task], task);
  }
}

void TaskRunner::takeTimers() {
  const double horizon = now_ * (1 + kSimultaneous);
  while (timers_.least() <= horizon) {
    expired_.clear();
    timers_.take(horizon, expired_);
    std::sort(expired_.begin(), expired_.end());
    for (const EventQueue::Event& event : expired_) {
      const int tasks = static_cast<int>(tasks_->size());
      if (event.item >= tasks) {
        beginRound(event.item - tasks);
        continue;
      }
      const Task& t = (*tasks_)[event.item];
      if (t.kind == TaskKind::kCompute) free(t.resource);
      finish(event.item);
    }
  }
}

void TaskRunner::free(int device) {
  devices_[device].busy = false;
  idle_devices_.push_back(device);
}

// Speed of a busy device.
double TaskRunner::pace() const { return busy_ <= at_once_ ? 1.0 : at_once_ / busy_; }

double TaskRunner::nextWorkedOff() const {
  return shared_.empty() ? kNever : worked_at_s_ + (shared_.least() - worked_s_) / pace();
}

void TaskRunner::work() {
  worked_s_ += (now_ - worked_at_s_) * pace();
  worked_at_s_ = now_;
}

void TaskRunner::takeWorkedOff() {
  const double horizon = worked_s_ + std::max(worked_s_, now_) * kSimultaneous;
  expired_.clear();
  shared_.take(horizon, expired_);
  std::sort(expired_.begin(), expired_.end());
  for (const EventQueue::Event& event : expired_) {
    --busy_;
    const int device = (*tasks_)[event.item].resource;
    outcome_.device_busy_s[device] += now_ - devices_[device].since_s;
    free(device);
    finish(event.item);
  }
}

void TaskRunner::takeChanges() {
  const double horizon = now_ * (1 + kSimultaneous);
  for (; next_change_ < changes_.size() && changes_[next_change_].time_s <= horizon;
       ++next_change_) {
    network_->changeLink(changes_[next_change_].link, changes_[next_change_].bits_per_s, now_);
  }
}

void TaskRunner::dispatchDevices() {
  for (size_t i = 0; i < idle_devices_.size(); ++i) {
    const int device = idle_devices_[i];
    Device& d = devices_[device];
    if (d.busy || d.ready.empty()) continue;
    const int task = pop(d.ready).task;
    const double seconds = (*tasks_)[task].amount;
    d.busy = true;
    d.since_s = now_;
    if (at_once_ == kNever) {
      outcome_.device_busy_s[device] += seconds;
      timers_.push(now_ + seconds, task);
    } else {
      ++busy_;
      shared_.push(worked_s_ + seconds, task);
    }
  }
  idle_devices_.clear();
}

void TaskRunner::failOnUnfinished(const TaskGraph& graph) const {
  const std::vector<int> cycle = findCycle(graph);
  if (!cycle.empty()) {
    throw std::invalid_argument("tasks: the dependencies form a cycle: " +
                                cycleText(cycle, [](int task) { return int64_t{task}; }));
  }
  for (int task = 0; task < graph.size(); ++task) {
    if (!loop_of_.empty() && loop_of_[task] >= 0) continue;
    if (dependents_.isWaiting(task) || outcome_.finish_s[task] != kNever) continue;
    throw std::invalid_argument("tasks[" + std::to_string(task) +
                                "]: never arrives: a link of its path has failed and stays so");
  }
  if (!loops_.empty()) {
    throw std::invalid_argument(
        "loops: a flow never arrives: a link of its path has failed and stays so");
  }
  throw std::logic_error("a task is neither finished nor waiting");
}

}  // namespace topoopt
