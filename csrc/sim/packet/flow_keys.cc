#include "sim/packet/flow_keys.h"

#include <bit>

namespace topoopt::packet {

namespace {

// The finaliser of SplitMix64.
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t joined(uint64_t hash, uint64_t value) {
  return mixed(hash * 0x9e3779b97f4a7c15 + value + 1);
}

// Key of a task without dependencies.
std::vector<uint64_t> ownKeys(const FlowProgram& program, uint64_t seed) {
  std::vector<uint64_t> of_route(program.routeCount());
  for (int route = 0; route < program.routeCount(); ++route) {
    uint64_t hash = mixed(seed + 0x9e3779b97f4a7c15);
    for (int link : program.route(route)) hash = joined(hash, static_cast<uint64_t>(link));
    of_route[route] = hash;
  }
  std::vector<uint64_t> keys;
  keys.reserve(program.graph().size());
  for (const Task& task : program.graph().tasks()) {
    uint64_t hash = task.kind == TaskKind::kFlow
                        ? of_route[task.resource]
                        : joined(seed, static_cast<uint64_t>(static_cast<int64_t>(task.resource)));
    hash = joined(hash, static_cast<uint64_t>(task.kind));
    keys.push_back(joined(hash, std::bit_cast<uint64_t>(task.amount)));
  }
  return keys;
}

// A list per task.
struct Lists {
  std::vector<int> begin, items;

  // Groups the second of every pair by the first.
  template <typename Pairs, typename First, typename Second>
  Lists(int count, const Pairs& pairs, First first, Second second)
      : begin(count + 1, 0), items(pairs.size()) {
    for (const auto& pair : pairs) ++begin[first(pair) + 1];
    for (int i = 0; i < count; ++i) begin[i + 1] += begin[i];
    std::vector<int> next(begin.begin(), begin.end() - 1);
    for (const auto& pair : pairs) items[next[first(pair)]++] = second(pair);
  }
};

}  // namespace

// Two sweeps: forward over dependencies, backward over dependents. Sums do not depend on the order
// of terms.
std::vector<uint64_t> flowKeys(const FlowProgram& program, uint64_t seed) {
  const TaskGraph& graph = program.graph();
  const int count = graph.size();
  std::vector<uint64_t> keys = ownKeys(program, seed);
  if (graph.dependencies().empty()) return keys;
  const Lists dependents(
      count, graph.dependencies(), [](const auto& pair) { return pair.first; },
      [](const auto& pair) { return pair.second; });
  std::vector<int> waiting(count, 0);
  for (const auto& [before, after] : graph.dependencies()) ++waiting[after];
  std::vector<int> order;
  order.reserve(count);
  for (int task = 0; task < count; ++task) {
    if (waiting[task] == 0) order.push_back(task);
  }
  std::vector<uint64_t> sums(count, 0);
  const auto each = [&](int task, auto&& visit) {
    for (int i = dependents.begin[task]; i < dependents.begin[task + 1]; ++i) {
      visit(dependents.items[i]);
    }
  };
  for (size_t i = 0; i < order.size(); ++i) {
    const int task = order[i];
    keys[task] = joined(keys[task], sums[task]);
    each(task, [&](int after) {
      sums[after] += mixed(keys[task]);
      if (--waiting[after] == 0) order.push_back(after);
    });
  }
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    uint64_t sum = 0;
    each(*it, [&](int after) { sum += mixed(keys[after]); });
    keys[*it] = joined(keys[*it], sum);
  }
  return keys;
}

}  // namespace topoopt::packet
