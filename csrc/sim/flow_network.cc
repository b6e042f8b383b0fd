#include "sim/flow_network.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace topoopt {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kBitsPerByte = 8;

}  // namespace

FlowNetwork::FlowNetwork(const std::vector<double>& capacity, const PathTable& paths)
    : planned_capacity_(capacity), paths_(paths), capacity_(capacity), rates_(capacity_, paths) {}

void FlowNetwork::reset() {
  capacity_.assign(planned_capacity_.begin(), planned_capacity_.end());
  for (int path : used_paths_) {
    path_state_[path] = {.flows = std::move(path_state_[path].flows)};
    path_state_[path].flows.clear();
    path_bytes_[path] = 0;
  }
  used_paths_.clear();
  path_state_.resize(paths_.size());
  path_bytes_.resize(paths_.size(), 0.0);
  rates_.reset();
  touched_paths_.clear();
  deliveries_.clear();
  path_ends_.reset(paths_.size());
  now_ = 0;
  events_ = 0;
}

void FlowNetwork::start(int flow, const Task& task, double now_s) {
  now_ = std::max(now_, now_s);
  PathState& state = path_state_[task.resource];
  touch(task.resource);
  if (state.flows.empty()) state.served = 0;  // keeps `target` precise over long runs
  state.flows.push_back({state.served + task.amount, task.latency_s, flow});
  std::push_heap(state.flows.begin(), state.flows.end(), std::greater<>());
  if (path_bytes_[task.resource] == 0) used_paths_.push_back(task.resource);
  path_bytes_[task.resource] += task.amount;
  rates_.change(task.resource, +1);
}

double FlowNetwork::advance(double until_s, std::vector<int>& delivered) {
  const size_t before = delivered.size();
  while (true) {
    updateRates();
    double time = kNever;
    if (!deliveries_.empty()) time = deliveries_.top().time;
    time = std::min(time, path_ends_.least());
    if (time == kNever || time > until_s * (1 + kSimultaneous)) {
      if (until_s != kNever) now_ = std::max(now_, until_s);
      return until_s;
    }
    now_ = std::max(now_, std::min(time, until_s));
    const double horizon = now_ * (1 + kSimultaneous);
    while (!deliveries_.empty() && deliveries_.top().time <= horizon) {
      delivered.push_back(deliveries_.pop().item);
    }
    ended_paths_.clear();
    path_ends_.take(horizon, ended_paths_);
    for (int path : ended_paths_) completeFlows(path, horizon, delivered);
    if (delivered.size() > before) {
      std::sort(delivered.begin() + static_cast<std::ptrdiff_t>(before), delivered.end());
      return now_;
    }
  }
}

// The first flow of `path` has sent all, and with it those that do so before `horizon`.
void FlowNetwork::completeFlows(int path, double horizon, std::vector<int>& delivered) {
  PathState& state = path_state_[path];
  touch(path);
  const double reach = state.served + state.rate * (horizon - now_);
  int done = 0;
  do {
    std::pop_heap(state.flows.begin(), state.flows.end(), std::greater<>());
    const Pending& flow = state.flows.back();
    ++done;
    if (flow.latency_s > 0) {
      deliveries_.push(now_ + flow.latency_s, flow.flow);
    } else {
      delivered.push_back(flow.flow);
    }
    state.flows.pop_back();
  } while (!state.flows.empty() && state.flows.front().target <= reach);
  rates_.change(path, -done);
  events_ += done;
}

void FlowNetwork::changeLink(int link, double bits_per_s, double now_s) {
  now_ = std::max(now_, now_s);
  capacity_[link] = bits_per_s / kBitsPerByte;
  rates_.changeCapacity(link);
}

void FlowNetwork::updateRates() {
  for (int path : rates_.solve()) {
    if (rates_.rate(path) == path_state_[path].rate) continue;
    touch(path);
    path_state_[path].rate = rates_.rate(path);
  }
  for (int path : touched_paths_) {
    PathState& state = path_state_[path];
    state.touched = false;
    if (state.flows.empty()) state.rate = 0;
    if (state.rate == 0) {
      path_ends_.remove(path);
      continue;
    }
    const double left = std::max(0.0, state.flows.front().target - state.served);
    path_ends_.set(path, now_ + left / state.rate);
  }
  touched_paths_.clear();
}

void FlowNetwork::advancePath(PathState& state) {
  state.served += state.rate * (now_ - state.updated_at);
  state.updated_at = now_;
}

void FlowNetwork::touch(int path) {
  PathState& state = path_state_[path];
  advancePath(state);
  if (state.touched) return;
  state.touched = true;
  touched_paths_.push_back(path);
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
  std::vector<double> bytes(capacity_.size(), 0.0);
  std::vector<int> used(used_paths_);
  std::ranges::sort(used);  // so that sums do not depend on the order of events
  for (int path : used) {
    for (const LinkUse& use : paths_.uses(path)) bytes[use.link] += use.load * path_bytes_[path];
  }
  return bytes;
}

}  // namespace topoopt
