#include "sim/flow/fold.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <stdexcept>
#include <tuple>

namespace topoopt {

namespace {

using Colour = uint64_t;

constexpr int kFewFlows = 512;  // below this a run is cheaper than finding classes

Colour mixed(Colour a, Colour b) {  // ordered pair; finaliser of SplitMix64
  uint64_t x = (a ^ (b * 0x9e3779b97f4a7c15)) + 0x9e3779b97f4a7c15 + (a << 6);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

Colour mixed(Colour a, double b) { return mixed(a, std::bit_cast<uint64_t>(b)); }

// Classes in the order of their first members.
struct Classes {
  std::vector<int> of;     // per item
  std::vector<int> first;  // per class: first item
  int size() const { return static_cast<int>(first.size()); }
};

Classes classesOf(const std::vector<Colour>& colours) {
  Classes classes;
  classes.of.reserve(colours.size());
  const size_t mask = std::bit_ceil(2 * colours.size() + 1) - 1;
  std::vector<int> table(mask + 1, -1);  // open addressing; colours are already random
  for (size_t i = 0; i < colours.size(); ++i) {
    size_t at = colours[i] & mask;
    while (table[at] >= 0 && colours[classes.first[table[at]]] != colours[i]) at = (at + 1) & mask;
    if (table[at] < 0) {
      table[at] = classes.size();
      classes.first.push_back(static_cast<int>(i));
    }
    classes.of.push_back(table[at]);
  }
  return classes;
}

class Folder {
 public:
  Folder(const TaskGraph& graph, const PathTable& paths, const std::vector<double>& capacity,
         int devices)
      : graph_(graph), paths_(paths), capacity_(capacity), devices_(devices) {}

  // Sorts tasks topologically; returns false for a cycle.
  bool order();
  // Returns whether classes are stable with at most `most` classes of tasks.
  bool refine(int most);
  FoldedGraph folded() const;

 private:
  void setFirstColours();
  void colourTasks();
  void colourPlaces();
  size_t findClasses();

  const TaskGraph& graph_;
  const PathTable& paths_;
  const std::vector<double>& capacity_;
  const int devices_;
  std::vector<int> order_, dependents_begin_, dependents_;
  std::vector<int> place_;  // per task: device, or path in used_paths_; -1 for delays
  std::vector<int> used_paths_, used_links_, local_link_;
  std::vector<Colour> task_, device_, path_, link_;  // paths and links: used ones
  std::vector<Colour> awaited_, on_device_, on_path_, on_link_;
  Classes task_classes_, device_classes_, path_classes_, link_classes_;
};

bool Folder::order() {
  const int count = graph_.size();
  std::vector<int> waiting(count, 0);
  dependents_begin_.assign(count + 1, 0);
  for (const auto& [before, after] : graph_.dependencies()) {
    ++waiting[after];
    ++dependents_begin_[before + 1];
  }
  for (int i = 0; i < count; ++i) dependents_begin_[i + 1] += dependents_begin_[i];
  dependents_.resize(graph_.dependencies().size());
  std::vector<int> next(dependents_begin_.begin(), dependents_begin_.end());
  for (const auto& [before, after] : graph_.dependencies()) dependents_[next[before]++] = after;
  order_.clear();
  for (int i = 0; i < count; ++i) {
    if (waiting[i] == 0) order_.push_back(i);
  }
  for (size_t i = 0; i < order_.size(); ++i) {
    const int task = order_[i];
    for (int d = dependents_begin_[task]; d < dependents_begin_[task + 1]; ++d) {
      if (--waiting[dependents_[d]] == 0) order_.push_back(dependents_[d]);
    }
  }
  return static_cast<int>(order_.size()) == count;
}

// A device runs tasks by priority and index, so the initial colour includes a task's rank on its
// device.
void Folder::setFirstColours() {
  const auto& tasks = graph_.tasks();
  std::vector<std::tuple<int, int, int>> computes;  // device, priority, task
  std::vector<int> local_path(paths_.size(), -1);
  local_link_.assign(capacity_.size(), -1);
  task_.resize(tasks.size());
  place_.assign(tasks.size(), -1);
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks[i];
    task_[i] =
        mixed(mixed(mixed(Colour{1}, static_cast<Colour>(task.kind)), task.amount), task.latency_s);
    if (task.kind == TaskKind::kCompute) {
      computes.emplace_back(task.resource, task.priority, static_cast<int>(i));
      place_[i] = task.resource;
    } else if (task.kind == TaskKind::kFlow) {
      int& local = local_path[task.resource];
      if (local < 0) {
        local = static_cast<int>(used_paths_.size());
        used_paths_.push_back(task.resource);
      }
      place_[i] = local;
    }
  }
  std::ranges::sort(computes);
  for (size_t i = 0, rank = 0; i < computes.size(); ++i, ++rank) {
    const auto& [device, priority, task] = computes[i];
    if (i > 0 && std::get<0>(computes[i - 1]) != device) rank = 0;
    task_[task] = mixed(task_[task], Colour{rank});
  }
  for (int path : used_paths_) {
    for (const LinkUse& use : paths_.uses(path)) {
      if (local_link_[use.link] >= 0) continue;
      local_link_[use.link] = static_cast<int>(used_links_.size());
      used_links_.push_back(use.link);
    }
  }
  device_.assign(devices_, 2);
  path_.assign(used_paths_.size(), 3);
  for (int link : used_links_) link_.push_back(mixed(Colour{4}, capacity_[link]));
}

void Folder::colourTasks() {
  awaited_.assign(task_.size(), 0);  // sums of hashes, independent of order
  on_device_.assign(device_.size(), 0);
  on_path_.assign(path_.size(), 0);
  for (int task : order_) {
    Colour colour = mixed(task_[task], awaited_[task]);
    const TaskKind kind = graph_.tasks()[task].kind;
    const int place = place_[task];
    if (kind == TaskKind::kCompute) {
      colour = mixed(colour, device_[place]);
      on_device_[place] += mixed(colour, Colour{5});
    } else if (kind == TaskKind::kFlow) {
      colour = mixed(colour, path_[place]);
      on_path_[place] += mixed(colour, Colour{6});
    }
    task_[task] = colour;
    const Colour seen = mixed(colour, Colour{7});
    for (int d = dependents_begin_[task]; d < dependents_begin_[task + 1]; ++d) {
      awaited_[dependents_[d]] += seen;
    }
  }
}

void Folder::colourPlaces() {
  for (size_t i = 0; i < device_.size(); ++i) device_[i] = mixed(device_[i], on_device_[i]);
  on_link_.assign(link_.size(), 0);
  for (size_t i = 0; i < path_.size(); ++i) {
    path_[i] = mixed(path_[i], on_path_[i]);
    for (const LinkUse& use : paths_.uses(used_paths_[i])) {
      on_link_[local_link_[use.link]] += mixed(path_[i], use.load);
    }
  }
  for (size_t i = 0; i < link_.size(); ++i) link_[i] = mixed(link_[i], on_link_[i]);
  for (size_t i = 0; i < path_.size(); ++i) {
    Colour crossed = 0;
    for (const LinkUse& use : paths_.uses(used_paths_[i])) {
      crossed += mixed(link_[local_link_[use.link]], use.load);
    }
    path_[i] = mixed(path_[i], crossed);
  }
}

size_t Folder::findClasses() {
  task_classes_ = classesOf(task_);
  device_classes_ = classesOf(device_);
  path_classes_ = classesOf(path_);
  link_classes_ = classesOf(link_);
  return task_classes_.first.size() + device_classes_.first.size() + path_classes_.first.size() +
         link_classes_.first.size();
}

// New colours include old ones, so classes only split; an equal number means stability.
bool Folder::refine(int most) {
  setFirstColours();
  size_t before = 0;
  while (true) {
    colourTasks();
    colourPlaces();
    const size_t now = findClasses();
    if (task_classes_.size() > most) return false;
    if (now == before) return true;
    before = now;
  }
}

FoldedGraph Folder::folded() const {
  FoldedGraph result;
  const auto& tasks = graph_.tasks();
  std::vector<int> kept(tasks.size(), -1);
  std::vector<int> of_class(task_classes_.size(), -1);
  for (size_t i = 0; i < tasks.size(); ++i) {  // keeps the order of equal priorities
    Task task = tasks[i];
    int stands_in = task_classes_.first[task_classes_.of[i]];
    int self = static_cast<int>(i);
    if (task.kind != TaskKind::kDelay) {
      const bool flow = task.kind == TaskKind::kFlow;
      const Classes& places = flow ? path_classes_ : device_classes_;
      self = place_[i];
      stands_in = places.first[places.of[self]];
      if (flow) task.resource = places.of[self];
    }
    if (self != stands_in) continue;
    kept[i] = result.graph.add(task);
    if (of_class[task_classes_.of[i]] < 0) of_class[task_classes_.of[i]] = kept[i];
  }
  for (size_t i = 0; i < tasks.size(); ++i) {
    result.task.push_back(of_class[task_classes_.of[i]]);
    if (result.task.back() < 0) throw std::logic_error("a class of tasks has no representative");
  }
  for (const auto& [before, after] : graph_.dependencies()) {
    if (kept[after] >= 0) result.graph.addDependency(result.task[before], kept[after]);
  }
  std::vector<std::vector<LinkUse>> uses(path_classes_.size());
  for (size_t i = 0; i < path_.size(); ++i) {
    for (const LinkUse& use : paths_.uses(used_paths_[i])) {
      const int link = local_link_[use.link];
      const int of = link_classes_.of[link];
      if (link_classes_.first[of] == link) uses[path_classes_.of[i]].push_back({of, use.load});
    }
  }
  for (auto& of_path : uses) result.paths.add(std::move(of_path));
  for (int link : link_classes_.first) result.capacity.push_back(capacity_[used_links_[link]]);
  for (int local : local_link_) result.link.push_back(local < 0 ? -1 : link_classes_.of[local]);
  for (int i : device_classes_.of) result.device.push_back(device_classes_.first[i]);
  return result;
}

// Cheaply checks that folding may pay: at most half of the links differ in their flows, since
// differing links are never folded.
bool linksLookAlike(const TaskGraph& graph, const PathTable& paths,
                    const std::vector<double>& capacity) {
  std::vector<Colour> crossed(capacity.size(), 0), used;
  for (const Task& task : graph.tasks()) {
    if (task.kind != TaskKind::kFlow) continue;
    const Colour colour = mixed(mixed(Colour{8}, task.amount), task.latency_s);
    for (const LinkUse& use : paths.uses(task.resource)) {
      crossed[use.link] += mixed(colour, use.load);
    }
  }
  for (size_t link = 0; link < crossed.size(); ++link) {
    if (crossed[link] != 0) used.push_back(mixed(crossed[link], capacity[link]));
  }
  return 2 * static_cast<size_t>(classesOf(used).size()) <= used.size();
}

}  // namespace

std::optional<FoldedGraph> fold(const TaskGraph& graph, const PathTable& paths,
                                const std::vector<double>& capacity, int devices, Folding folding) {
  if (folding == Folding::kNever) return std::nullopt;
  const bool always = folding == Folding::kAlways;
  const auto is_flow = [](const Task& task) { return task.kind == TaskKind::kFlow; };
  if (!always && (std::ranges::count_if(graph.tasks(), is_flow) < kFewFlows ||
                  !linksLookAlike(graph, paths, capacity))) {
    return std::nullopt;
  }
  Folder folder(graph, paths, capacity, devices);
  if (!folder.order()) return std::nullopt;
  if (!folder.refine(always ? graph.size() : graph.size() / 2)) return std::nullopt;
  return folder.folded();
}

}  // namespace topoopt
