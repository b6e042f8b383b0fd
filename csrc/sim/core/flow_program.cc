#include "sim/core/flow_program.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace topoopt {

namespace {

constexpr int64_t kMostNodes = std::numeric_limits<int>::max();

std::string text(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return {buffer, end};
}

[[noreturn]] void fail(const FlowProgram::Where& where, const std::string& what) {
  throw std::invalid_argument(where() + ": " + what);
}

void checkNode(int node, int nodes, const char* field, const FlowProgram::Where& where) {
  if (node >= 0 && node < nodes) return;
  fail(where, std::string(field) + " " + std::to_string(node) + " is not a node; they are 0.." +
                  std::to_string(nodes - 1));
}

void checkAmount(double amount, bool zero, const char* field, const FlowProgram::Where& where) {
  if (std::isfinite(amount) && (zero ? amount >= 0 : amount > 0)) return;
  fail(where, std::string(field) + " " + text(amount) +
                  (zero ? " is not a finite number from 0 on" : " is not a finite number above 0"));
}

}  // namespace

FlowProgram::FlowProgram(int64_t nodes, int64_t hosts) {
  if (nodes < 1 || nodes > kMostNodes) {
    throw std::invalid_argument("nodes " + std::to_string(nodes) + " is not in 1.." +
                                std::to_string(kMostNodes));
  }
  if (hosts < 1 || hosts > nodes) {
    throw std::invalid_argument("hosts " + std::to_string(hosts) +
                                " is not in 1..nodes = " + std::to_string(nodes));
  }
  nodes_ = static_cast<int>(nodes);
  hosts_ = static_cast<int>(hosts);
}

void FlowProgram::addLink(const ProgramLink& link, const Where& where) {
  checkNode(link.source, nodes_, "source", where);
  checkNode(link.target, nodes_, "target", where);
  if (link.source == link.target) {
    fail(where, "connects node " + std::to_string(link.source) + " to itself");
  }
  checkAmount(link.bits_per_s, false, "bits_per_s", where);
  checkAmount(link.latency_ns, true, "latency_ns", where);
  links_.push_back(link);
}

int FlowProgram::addFlow(const ProgramFlow& flow, std::span<const int> links, const Where& where) {
  for (const auto& [field, node] : {std::pair{"source", flow.source}, {"target", flow.target}}) {
    checkNode(node, nodes_, field, where);
    if (node >= hosts_) {
      fail(where, std::string(field) + " " + std::to_string(node) + " is not a host; they are 0.." +
                      std::to_string(hosts_ - 1));
    }
  }
  if (flow.source == flow.target) {
    fail(where, "goes from node " + std::to_string(flow.source) + " to itself");
  }
  checkAmount(flow.size_bytes, false, "bytes", where);
  int at = flow.source;
  double latency_ns = 0;
  for (int link : links) {
    if (link < 0 || link >= static_cast<int>(links_.size())) {
      fail(where, "path: link " + std::to_string(link) + " is not in 0.." +
                      std::to_string(static_cast<int64_t>(links_.size()) - 1));
    }
    if (links_[link].source != at) {
      fail(where, "path: link " + std::to_string(links_[link].id) + " leaves node " +
                      std::to_string(links_[link].source) + ", but the path is at node " +
                      std::to_string(at));
    }
    at = links_[link].target;
    latency_ns += links_[link].latency_ns;
  }
  if (at != flow.target) {
    fail(where,
         "path: ends at node " + std::to_string(at) + ", not at " + std::to_string(flow.target));
  }
  ++flows_;
  task_ids_.push_back(flow.id);
  return graph_.addFlow(routeOf(links), flow.size_bytes, latency_ns * 1e-9);
}

void FlowProgram::setRounds(int rounds) {
  if (rounds < 1) {
    throw std::invalid_argument("rounds: " + std::to_string(rounds) + " is not at least 1");
  }
  rounds_ = rounds;
}

int FlowProgram::addCompute(int host, double seconds, int priority, const Where& where) {
  if (host < 0 || host >= hosts_) {
    fail(where, "host " + std::to_string(host) + " is not in 0.." + std::to_string(hosts_ - 1));
  }
  checkAmount(seconds, true, "seconds", where);
  task_ids_.push_back(-1);
  return graph_.addCompute(host, seconds, priority);
}

int FlowProgram::addDelay(double seconds, const Where& where) {
  checkAmount(seconds, true, "seconds", where);
  task_ids_.push_back(-1);
  return graph_.addDelay(seconds);
}

void FlowProgram::addChange(const LinkChange& change, const Where& where) {
  checkAmount(change.time_s, true, "time_s", where);
  checkAmount(change.bits_per_s, true, "bits_per_s", where);
  if (change.link < 0 || change.link >= static_cast<int>(links_.size())) {
    fail(where, "link " + std::to_string(change.link) + " does not exist");
  }
  changes_.push_back(change);
}

int FlowProgram::routeOf(std::span<const int> links) {
  uint64_t hash = links.size();
  for (int link : links) {
    hash = (hash ^ static_cast<uint64_t>(link)) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  const auto [first, last] = route_of_hash_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (std::ranges::equal(route(it->second), links)) return it->second;
  }
  route_links_.insert(route_links_.end(), links.begin(), links.end());
  route_begin_.push_back(static_cast<int64_t>(route_links_.size()));
  route_of_hash_.emplace(hash, routeCount() - 1);
  return routeCount() - 1;
}

// Removes tasks without open dependencies until none is left, then walks back over the rest until a
// task repeats.
std::vector<int> findCycle(const TaskGraph& graph) {
  const int count = graph.size();
  std::vector<int> waiting(count, 0), begin(count + 1, 0), next, after(graph.dependencies().size());
  for (const auto& [before, task] : graph.dependencies()) {
    ++waiting[task];
    ++begin[before + 1];
  }
  for (int i = 0; i < count; ++i) begin[i + 1] += begin[i];
  next = begin;
  for (const auto& [before, task] : graph.dependencies()) after[next[before]++] = task;
  std::vector<int> ready;
  for (int i = 0; i < count; ++i) {
    if (waiting[i] == 0) ready.push_back(i);
  }
  for (size_t i = 0; i < ready.size(); ++i) {
    for (int j = begin[ready[i]]; j < begin[ready[i] + 1]; ++j) {
      if (--waiting[after[j]] == 0) ready.push_back(after[j]);
    }
  }
  if (static_cast<int>(ready.size()) == count) return {};

  std::vector<int> blocker(count, -1);
  for (const auto& [before, task] : graph.dependencies()) {
    if (waiting[before] > 0 && waiting[task] > 0) blocker[task] = before;
  }
  int task = 0;
  while (waiting[task] == 0 || blocker[task] < 0) ++task;
  std::vector<int> order;
  std::vector<char> seen(count, 0);
  for (; !seen[task]; task = blocker[task]) {
    seen[task] = 1;
    order.push_back(task);
  }
  order.erase(order.begin(), std::ranges::find(order, task));
  std::ranges::reverse(order);
  return order;
}

std::string cycleText(const std::vector<int>& cycle, const std::function<int64_t(int)>& id) {
  constexpr size_t kShown = 20;
  std::string text = std::to_string(id(cycle.back()));
  const size_t shown = std::min(cycle.size(), kShown);
  for (size_t i = 1; i < shown; ++i) {
    text += " after " + std::to_string(id(cycle[cycle.size() - 1 - i]));
  }
  if (shown < cycle.size()) {
    return text + " after .. (" + std::to_string(cycle.size()) + " in all)";
  }
  return text + " after " + std::to_string(id(cycle.back()));
}

}  // namespace topoopt
