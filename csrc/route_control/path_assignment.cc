#include "route_control/path_assignment.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <stdexcept>

#include "route_control/annealing.h"
#include "route_control/balanced_colouring.h"
#include "route_control/greedy.h"
#include "route_control/improvement.h"
#include "sim/core/path_table.h"
#include "sim/flow/max_min_rates.h"

namespace topoopt {

namespace {

constexpr int64_t kStepsPerFlow = 200;  // of annealing
constexpr int64_t kMoves = 200;         // random ones of the scheme `local-search`
constexpr uint64_t kSeed = 0;

// CRC-32 (IEEE 802.3), bitwise, because headers are short.
uint32_t crc32(const std::string& text) {
  uint32_t sum = ~0U;
  for (const char byte : text) {
    sum ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ (0xedb88320U & (0U - (sum & 1)));
  }
  return ~sum;
}

[[noreturn]] void refuse(const std::string& what, int number) {
  throw std::invalid_argument(what + ": " + std::to_string(number) + " is not one");
}

}  // namespace

PathScheme pathScheme(const std::string& name) {
  if (name == "greedy") return PathScheme::kGreedy;
  if (name == "ecmp") return PathScheme::kEcmp;
  if (name == "annealing") return PathScheme::kAnnealing;
  if (name == "local-search") return PathScheme::kLocalSearch;
  throw std::invalid_argument("scheme: " + name +
                              " is not greedy, ecmp, annealing or local-search");
}

PathAssignment::PathAssignment(SwitchGraph graph, PathScheme scheme, bool limits_rates)
    : graph_(std::move(graph)),
      scheme_(scheme),
      limits_rates_(limits_rates),
      kinds_(std::make_shared<Kinds>()),
      dead_(graph_.links.size(), 0),
      loads_(graph_.links.size(), 0) {
  if (graph_.capacity.size() != graph_.links.size()) {
    throw std::invalid_argument("capacity: not one for each link");
  }
  for (const auto& [from, to] : graph_.links) {
    if (from < 0 || to < 0) refuse("links: a switch", std::min(from, to));
  }
  kinds_->table.capacity = graph_.capacity;
  kinds_->table.first_path = kinds_->table.first_link = {0};
  kinds_->table.check();
  alike_ = std::set<double>(graph_.capacity.begin(), graph_.capacity.end()).size() <= 1;
}

int PathAssignment::addKind(int source, int target, const std::vector<std::vector<int>>& paths) {
  for (const auto& path : paths) {
    if (path.empty()) throw std::invalid_argument("paths: one has no link");
    for (const int link : path) {
      if (link < 0 || link >= static_cast<int>(dead_.size())) refuse("paths: a link", link);
    }
  }
  for (const int tor : {source, target}) {
    if (tor < 0 || tor >= graph_.tors) refuse("kind: a ToR", tor);
  }
  if (kinds_.use_count() > 1) kinds_ = std::make_shared<Kinds>(*kinds_);
  kinds_->source.push_back(source);
  kinds_->target.push_back(target);
  SwitchedPaths& table = kinds_->table;
  for (const auto& path : paths) {
    table.links.insert(table.links.end(), path.begin(), path.end());
    table.first_link.push_back(static_cast<int>(table.links.size()));
    kinds_->spine.push_back(path.size() == 2 ? graph_.links[path[0]].second : -1);
  }
  table.first_path.push_back(static_cast<int>(table.first_link.size()) - 1);
  count_.push_back(0);
  live_.reset();
  return table.pairs() - 1;
}

std::vector<int> PathAssignment::cutOff(const std::vector<int>& dead) const {
  std::vector<char> is_dead(dead_.size(), 0);
  for (const int link : dead) is_dead.at(link) = 1;
  const SwitchedPaths& table = kinds_->table;
  std::vector<int> found;
  for (int kind = 0; kind < table.pairs(); ++kind) {
    bool cut = true;
    for (int path = table.first_path[kind]; cut && path < table.first_path[kind + 1]; ++path) {
      cut = std::any_of(table.links.begin() + table.first_link[path],
                        table.links.begin() + table.first_link[path + 1],
                        [&](int link) { return is_dead[link] != 0; });
    }
    if (cut) found.push_back(kind);
  }
  return found;
}

void PathAssignment::checkFlow(int flow) const {
  if (flow < 0 || flow >= static_cast<int>(kind_.size()) || kind_[flow] < 0) refuse("flow", flow);
}

void PathAssignment::checkKind(int kind) const {
  if (kind < 0 || kind >= kinds_->table.pairs()) refuse("kind", kind);
}

bool PathAssignment::isLive(int path) const {
  const SwitchedPaths& table = kinds_->table;
  return std::none_of(table.links.begin() + table.first_link[path],
                      table.links.begin() + table.first_link[path + 1],
                      [&](int link) { return dead_[link] != 0; });
}

void PathAssignment::put(int flow, int path) {
  const SwitchedPaths& table = kinds_->table;
  const auto add = [&](int of, int count) {
    if (of < 0) return;
    for (int i = table.first_link[of]; i < table.first_link[of + 1]; ++i) {
      loads_[table.links[i]] += count;
    }
  };
  add(path_[flow], -1);
  add(path, 1);
  path_[flow] = path;
}

int PathAssignment::begin(int kind) {
  int flow = static_cast<int>(kind_.size());
  if (free_.empty()) {
    kind_.push_back(kind);
    path_.push_back(-1);
    place_.push_back(0);
    rate_.push_back(-1);
  } else {
    flow = free_.back();
    free_.pop_back();
    kind_[flow] = kind;
  }
  place_[flow] = static_cast<int>(order_.size());
  order_.push_back(flow);
  ++count_[kind];
  return flow;
}

void PathAssignment::end(int flow) {
  put(flow, -1);
  --count_[kind_[flow]];
  kind_[flow] = -1;
  rate_[flow] = -1;
  free_.push_back(flow);
  order_[place_[flow]] = -1;
  ++holes_;
}

// The flow keeps its path if the new kind has it, too.
void PathAssignment::setKind(int flow, int kind) {
  const SwitchedPaths& table = kinds_->table;
  const int old = path_[flow];
  const auto linksOf = [&](int path) {
    return std::pair{table.links.begin() + table.first_link[path],
                     table.links.begin() + table.first_link[path + 1]};
  };
  int found = -1;
  for (int path = table.first_path[kind]; old >= 0 && path < table.first_path[kind + 1]; ++path) {
    const auto [a, a_end] = linksOf(old);
    const auto [b, b_end] = linksOf(path);
    if (std::equal(a, a_end, b, b_end)) found = path;
  }
  put(flow, found);
  --count_[kind_[flow]];
  ++count_[kind];
  kind_[flow] = kind;
}

std::vector<int> PathAssignment::takeIn(const AssignmentChange& change) {
  std::set<int> ended;
  for (const int flow : change.ended) {
    checkFlow(flow);
    if (!ended.insert(flow).second) refuse("ended, a second time", flow);
  }
  for (const int kind : change.started) checkKind(kind);
  for (const auto& [flow, kind] : change.kinds) {
    checkFlow(flow);
    checkKind(kind);
    if (ended.count(flow) != 0) refuse("flow", flow);
  }
  if (change.dead) {
    std::vector<char> dead(dead_.size(), 0);
    for (const int link : *change.dead) {
      if (link < 0 || link >= static_cast<int>(dead.size())) refuse("dead: a link", link);
      dead[link] = 1;
    }
    if (dead != dead_) live_.reset();
    dead_ = std::move(dead);
  }
  for (const int flow : change.ended) end(flow);
  if (holes_ > static_cast<int>(order_.size()) / 2) {
    std::erase(order_, -1);
    for (size_t i = 0; i < order_.size(); ++i) place_[order_[i]] = static_cast<int>(i);
    holes_ = 0;
  }
  for (const auto& [flow, kind] : change.kinds) setKind(flow, kind);
  std::vector<int> started;
  for (const int kind : change.started) started.push_back(begin(kind));
  return started;
}

std::vector<int> PathAssignment::restore(const std::vector<int>& kinds,
                                         const std::vector<int>& paths,
                                         const std::vector<double>& rates, std::vector<int> dead) {
  if (kinds.size() != paths.size() || kinds.size() != rates.size()) {
    throw std::invalid_argument("paths, rates: not one for each flow");
  }
  AssignmentChange change{{}, kinds, {}, std::move(dead)};
  const std::vector<int> flows = takeIn(change);
  for (size_t i = 0; i < flows.size(); ++i) {
    const int first = kinds_->table.first_path[kinds[i]];
    const int last = kinds_->table.first_path[kinds[i] + 1];
    if (paths[i] >= 0 && (paths[i] < first || paths[i] >= last)) refuse("path", paths[i]);
    put(flows[i], paths[i]);
    rate_[flows[i]] = rates[i];
  }
  return flows;
}

const PathAssignment::LivePaths& PathAssignment::live() {
  if (live_) return *live_;
  auto found = std::make_shared<LivePaths>();
  const SwitchedPaths& all = kinds_->table;
  found->table.capacity = all.capacity;
  found->table.first_path = found->table.first_link = {0};
  found->from_full.assign(all.first_link.size() - 1, -1);
  for (int kind = 0; kind < all.pairs(); ++kind) {
    for (int path = all.first_path[kind]; path < all.first_path[kind + 1]; ++path) {
      if (!isLive(path)) continue;
      found->from_full[path] = static_cast<int>(found->to_full.size());
      found->to_full.push_back(path);
      found->table.links.insert(found->table.links.end(), all.links.begin() + all.first_link[path],
                                all.links.begin() + all.first_link[path + 1]);
      found->table.first_link.push_back(static_cast<int>(found->table.links.size()));
    }
    found->table.first_path.push_back(static_cast<int>(found->to_full.size()));
  }
  live_ = std::move(found);
  return *live_;
}

AssignmentResult PathAssignment::change(const AssignmentChange& change, int threads) {
  const std::vector<int> before = path_;
  AssignmentResult result;
  result.started = takeIn(change);
  if (change.dead) {
    for (const int flow : order_) {
      if (flow >= 0 && path_[flow] >= 0 && !isLive(path_[flow])) put(flow, -1);
    }
  }
  fill();
  findBetter(threads);
  for (const int flow : result.started) result.moved.emplace_back(flow, path_[flow]);
  const size_t old = order_.size() - result.started.size();
  for (size_t i = 0; i < old; ++i) {
    const int flow = order_[i];
    if (flow >= 0 && path_[flow] != before[flow]) result.moved.emplace_back(flow, path_[flow]);
  }
  if (limits_rates_) publishRates(result);
  return result;
}

void PathAssignment::adopt(const AssignmentChange& change, const AssignmentResult& result) {
  if (takeIn(change) != result.started) {
    throw std::logic_error("a result of another assignment");
  }
  for (const auto& [flow, path] : result.moved) put(flow, path);
  for (const auto& [flow, rate] : result.rates) rate_[flow] = rate;
}

void PathAssignment::fill() {
  const SwitchedPaths& table = kinds_->table;
  for (const int flow : order_) {
    if (flow < 0 || path_[flow] >= 0) continue;
    int best = -1;
    double least = 0;
    const int kind = kind_[flow];
    for (int path = table.first_path[kind]; path < table.first_path[kind + 1]; ++path) {
      double most = 0;
      bool is_live = true;
      for (int i = table.first_link[path]; i < table.first_link[path + 1]; ++i) {
        const int link = table.links[i];
        is_live &= dead_[link] == 0;
        most = std::max(most, (loads_[link] + 1) / graph_.capacity[link]);
      }
      if (is_live && (best < 0 || most < least)) {
        best = path;
        least = most;
      }
    }
    if (best >= 0) put(flow, best);
  }
}

double PathAssignment::most() const {
  double most = 0;
  for (size_t link = 0; link < loads_.size(); ++link) {
    most = std::max(most, loads_[link] / graph_.capacity[link]);
  }
  return most;
}

// Lower bound of the maximum congestion: traffic of a ToR uses its live links, in whole flows.
double PathAssignment::bound() {
  struct End {
    int flows = 0, links = 0;
    double capacity = 0, first = 0;
    bool alike = true;
  };
  std::vector<End> leaving(graph_.tors);
  std::vector<End> reaching(graph_.tors);
  const auto addLink = [](End& end, double capacity) {
    if (end.links++ == 0) end.first = capacity;
    end.alike &= capacity == end.first;
    end.capacity += capacity;
  };
  for (size_t link = 0; link < dead_.size(); ++link) {
    if (dead_[link] != 0) continue;
    const auto& [from, to] = graph_.links[link];
    if (from < graph_.tors) addLink(leaving[from], graph_.capacity[link]);
    if (to < graph_.tors) addLink(reaching[to], graph_.capacity[link]);
  }
  const SwitchedPaths& table = live().table;
  for (int kind = 0; kind < table.pairs(); ++kind) {
    if (table.pathCount(kind) == 0) continue;
    leaving[kinds_->source[kind]].flows += count_[kind];
    reaching[kinds_->target[kind]].flows += count_[kind];
  }
  double bound = 0;
  for (const auto* ends : {&leaving, &reaching}) {
    for (const End& end : *ends) {
      if (end.links == 0) continue;
      const int whole = (end.flows + end.links - 1) / end.links;
      bound = std::max(bound, end.alike ? whole / end.first : end.flows / end.capacity);
    }
  }
  return bound;
}

double PathAssignment::mostOf(const std::vector<int>& paths) const {
  const SwitchedPaths& table = kinds_->table;
  std::vector<int> loads(loads_.size(), 0);
  for (const int path : paths) {
    if (path < 0) continue;
    for (int i = table.first_link[path]; i < table.first_link[path + 1]; ++i) {
      ++loads[table.links[i]];
    }
  }
  double most = 0;
  for (size_t link = 0; link < loads.size(); ++link) {
    most = std::max(most, loads[link] / graph_.capacity[link]);
  }
  return most;
}

void PathAssignment::findBetter(int threads) {
  const double least = bound();
  const double now = most();
  if (now <= least * (1 + kSame)) return;  // already optimal
  std::vector<int> numbers;
  std::vector<RoutedFlow> flows;
  const LivePaths& paths = live();
  for (const int flow : order_) {
    if (flow < 0 || path_[flow] < 0) continue;
    numbers.push_back(flow);
    flows.push_back({kind_[flow], 1.0});
  }
  const auto take = [&](const PathChoice& choice) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (path_[numbers[i]] != choice[i]) put(numbers[i], choice[i]);
    }
  };
  if (scheme_ == PathScheme::kLocalSearch) {
    PathChoice chains;
    for (const int flow : numbers) chains.push_back(paths.from_full[path_[flow]]);
    improvePaths(paths.table, flows, least, 0, kSeed, chains);
    for (int& path : chains) path = paths.to_full[path];
    if (mostOf(chains) < now * (1 - kSame)) take(chains);
    if (most() <= least * (1 + kSame)) return;
  }
  const double kept = most();
  const PathAssignment before = *this;
  const PathChoice choice = anew(flows, numbers, least, threads);
  take(choice);
  fill();
  if (most() < kept * (1 - kSame)) return;
  path_ = before.path_;
  loads_ = before.loads_;
}

// The scheme's paths; -1 if it has none that the flow may use.
PathChoice PathAssignment::anew(const std::vector<RoutedFlow>& flows, const std::vector<int>&,
                                double bound, int threads) {
  const LivePaths& paths = live();
  const auto full = [&](PathChoice choice) {
    for (int& path : choice) path = paths.to_full[path];
    return choice;
  };
  std::vector<int> order(flows.size());
  std::iota(order.begin(), order.end(), 0);
  switch (scheme_) {
    case PathScheme::kGreedy:
      return full(greedyPaths(paths.table, flows, order, threads));
    case PathScheme::kEcmp:
      return full(hashed(flows));
    case PathScheme::kAnnealing: {
      PathChoice choice = hashed(flows);
      const int64_t steps = kStepsPerFlow * static_cast<int64_t>(flows.size());
      annealPaths(paths.table, flows, steps, kSeed, choice);
      return full(choice);
    }
    case PathScheme::kLocalSearch:
      break;
  }
  if (const std::vector<int> spines = liveSpines(); !spines.empty()) return coloured(flows, spines);
  PathChoice choice = greedyPaths(paths.table, flows, order, threads);
  improvePaths(paths.table, flows, bound, kMoves, kSeed, choice);
  return full(choice);
}

// Spines reached by every ToR, if capacities are equal and no spine is reached by only some ToRs.
std::vector<int> PathAssignment::liveSpines() const {
  if (graph_.spines == 0 || !alike_) return {};
  std::set<int> found;
  size_t live = 0;
  for (size_t link = 0; link < dead_.size(); ++link) {
    if (dead_[link] != 0) continue;
    ++live;
    if (graph_.links[link].first < graph_.tors) found.insert(graph_.links[link].second);
  }
  if (found.size() * graph_.tors * 2 != live) return {};
  return {found.begin(), found.end()};
}

PathChoice PathAssignment::coloured(const std::vector<RoutedFlow>& flows,
                                    const std::vector<int>& spines) {
  std::vector<std::pair<int, int>> edges;
  for (const RoutedFlow& flow : flows) {
    edges.emplace_back(kinds_->source[flow.pair], kinds_->target[flow.pair]);
  }
  PathChoice choice = balancedColouring(graph_.tors, edges, static_cast<int>(spines.size()));
  const LivePaths& paths = live();
  for (size_t i = 0; i < flows.size(); ++i) {
    const int first = paths.table.first_path[flows[i].pair];
    const int last = paths.table.first_path[flows[i].pair + 1];
    const auto leadsOver = [&](int path) {
      return path < last && kinds_->spine[paths.to_full[path]] == spines[choice[i]];
    };
    int path = first + choice[i];
    if (!leadsOver(path)) {  // the kind lacks this path
      for (path = first; path < last && !leadsOver(path);) ++path;
    }
    choice[i] = path < last ? paths.to_full[path] : -1;
  }
  return choice;
}

// Hashes like switches: CRC-32 of a flow's ends and index.
PathChoice PathAssignment::hashed(const std::vector<RoutedFlow>& flows) {
  const SwitchedPaths& table = live().table;
  PathChoice choice;
  for (size_t i = 0; i < flows.size(); ++i) {
    const int kind = flows[i].pair;
    const std::string header = std::to_string(kSeed) + ' ' + std::to_string(kinds_->source[kind]) +
                               ' ' + std::to_string(kinds_->target[kind]) + ' ' + std::to_string(i);
    const auto count = static_cast<uint32_t>(table.pathCount(kind));
    choice.push_back(table.first_path[kind] + static_cast<int>(crc32(header) % count));
  }
  return choice;
}

std::vector<double> PathAssignment::shares() const {
  const SwitchedPaths& all = kinds_->table;
  PathTable table;
  std::vector<int> number(all.first_link.size() - 1, -1);
  for (const int flow : order_) {
    if (flow < 0 || path_[flow] < 0 || number[path_[flow]] >= 0) continue;
    const int path = path_[flow];
    number[path] = table.size();
    std::vector<LinkUse> uses;
    for (int i = all.first_link[path]; i < all.first_link[path + 1]; ++i) {
      uses.push_back({all.links[i], 1.0});
    }
    table.add(std::move(uses));
  }
  MaxMinRates rates(graph_.capacity, table);
  for (const int flow : order_) {
    if (flow >= 0 && path_[flow] >= 0) rates.change(number[path_[flow]], 1);
  }
  rates.solveAnew();
  std::vector<double> shares(kind_.size(), 0.0);
  for (const int flow : order_) {
    if (flow >= 0 && path_[flow] >= 0) shares[flow] = rates.rate(number[path_[flow]]);
  }
  return shares;
}

void PathAssignment::publishRates(AssignmentResult& result) {
  const std::vector<double> now = shares();
  for (const int flow : order_) {
    if (flow < 0) continue;
    const double share = path_[flow] < 0 ? -1 : now[flow];
    const double known = rate_[flow];
    const bool differs =
        share < 0 || known < 0 ? share != known : std::abs(share - known) > kRateStep * known;
    if (!differs) continue;
    rate_[flow] = share;
    result.rates.emplace_back(flow, share);
  }
}

}  // namespace topoopt
