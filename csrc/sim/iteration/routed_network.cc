#include "sim/iteration/routed_network.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "plan/torus_lines.h"

namespace topoopt {

namespace {

std::string name(int source, int target) {
  return "from server " + std::to_string(source) + " to " + std::to_string(target);
}

void checkServers(int servers) {
  if (servers >= 1 && servers <= RoutedNetwork::kMaxServers) return;
  throw std::invalid_argument("servers: " + std::to_string(servers) + " is not in 1.." +
                              std::to_string(RoutedNetwork::kMaxServers));
}

void checkLatency(double latency_s) {
  if (latency_s >= 0 && std::isfinite(latency_s)) return;
  throw std::invalid_argument("latency_s: " + std::to_string(latency_s) +
                              " is not at least 0 and finite");
}

}  // namespace

RoutedNetwork::RoutedNetwork(int servers, const std::vector<plan::LinkPorts>& links,
                             double bytes_per_s, double latency_s, std::vector<plan::Route> routes,
                             std::vector<plan::AllReduceGroup> groups, RouteRules rules)
    : servers_(servers), latency_s_(latency_s) {
  checkServers(servers);
  if (!(bytes_per_s > 0) || !std::isfinite(bytes_per_s)) {
    throw std::invalid_argument("bytes_per_s: " + std::to_string(bytes_per_s) +
                                " is not above 0 and finite");
  }
  checkLatency(latency_s);
  addLinks(links, bytes_per_s);
  pair_path_.assign(static_cast<size_t>(servers) * servers, {-1, 1.0, 0.0});
  for (size_t i = 0; i < routes.size(); ++i) {
    const auto& hops = routes[i].servers;
    if (hops.size() < 2) {
      throw std::invalid_argument("routes[" + std::to_string(i) + "]: needs at least two servers");
    }
    for (size_t h = 0; h < hops.size(); ++h) {
      checkServer("routes", i, hops[h]);
      if (h > 0 && edge(hops[h - 1], hops[h]) < 0) {
        throw std::invalid_argument("routes[" + std::to_string(i) + "]: there is no link " +
                                    name(hops[h - 1], hops[h]));
      }
    }
    const int pair = hops.front() * servers_ + hops.back();
    routes_[pair].push_back(std::move(routes[i]));
  }
  setGroups(std::move(groups));
  setRules(std::move(rules));
}

void RoutedNetwork::setRules(RouteRules rules) {
  if (!rules.by_offset.empty()) by_offset_.resize(servers_);
  for (plan::StrideRoute& route : rules.by_offset) {
    int offset = 0;
    for (int stride : route.strides) {
      if (stride < 1 || stride >= servers_) {
        throw std::invalid_argument("by_offset: stride " + std::to_string(stride) +
                                    " is not in 1.." + std::to_string(servers_ - 1));
      }
      offset = (offset + stride) % servers_;
    }
    by_offset_[offset].push_back(std::move(route));
  }
  next_hops_ = std::move(rules.next_hops);
  if (!next_hops_.empty() && next_hops_.size() != static_cast<size_t>(servers_) * servers_) {
    throw std::invalid_argument("next_hops: " + std::to_string(next_hops_.size()) +
                                " entries are not one for each pair of " +
                                std::to_string(servers_) + " servers");
  }
  for (size_t i = 0; i < next_hops_.size(); ++i) checkServer("next_hops", i, next_hops_[i]);
}

void RoutedNetwork::setGroups(std::vector<plan::AllReduceGroup> groups) {
  groups_ = std::move(groups);
  for (size_t i = 0; i < groups_.size(); ++i) {
    std::sort(groups_[i].servers.begin(), groups_[i].servers.end());
    for (const plan::Ring& ring : groups_[i].rings) {
      std::vector<int> members = ring.servers;
      std::sort(members.begin(), members.end());
      for (int server : members) checkServer("groups", i, server);
      if (members != groups_[i].servers) {
        throw std::invalid_argument("groups[" + std::to_string(i) +
                                    "].rings: a ring must visit each server of its group once");
      }
    }
    if (!groups_[i].grid.empty()) checkGrid(i);
  }
}

void RoutedNetwork::checkGrid(size_t index) const {
  const plan::Grid& grid = groups_[index].grid;
  const std::string where = "groups[" + std::to_string(index) + "].grid: ";
  const size_t columns = grid.front().size();
  std::vector<int> members;
  for (const std::vector<int>& row : grid) {
    if (row.size() != columns) throw std::invalid_argument(where + "rows of different lengths");
    members.insert(members.end(), row.begin(), row.end());
  }
  if (grid.size() < 2 || columns < 2) {
    throw std::invalid_argument(where + std::to_string(grid.size()) + " x " +
                                std::to_string(columns) + " is not at least 2 x 2");
  }
  std::sort(members.begin(), members.end());
  for (int server : members) checkServer("groups", index, server);
  if (members != groups_[index].servers) {
    throw std::invalid_argument(where + "must have each server of its group once");
  }
}

void RoutedNetwork::checkServer(const char* where, size_t index, int server) const {
  if (server < 0 || server >= servers_) {
    throw std::invalid_argument(std::string(where) + "[" + std::to_string(index) + "]: server " +
                                std::to_string(server) + " is not in 0.." +
                                std::to_string(servers_ - 1));
  }
}

void RoutedNetwork::addLinks(const std::vector<plan::LinkPorts>& links, double bytes_per_s) {
  edge_of_pair_.assign(static_cast<size_t>(servers_) * servers_, -1);
  for (size_t i = 0; i < links.size(); ++i) {
    const int source = links[i].source;
    const int target = links[i].target;
    checkServer("links", i, source);
    checkServer("links", i, target);
    if (source == target) {
      throw std::invalid_argument("links[" + std::to_string(i) + "]: connects server " +
                                  std::to_string(source) + " to itself");
    }
    int& index = edge_of_pair_[source * servers_ + target];
    if (index < 0) {
      index = static_cast<int>(capacity_.size());
      capacity_.push_back(0);
      parallel_.push_back(0);
    }
    capacity_[index] += bytes_per_s;
    ++parallel_[index];
    edge_of_link_.push_back(index);
  }
  both_ways_ = std::ranges::all_of(
      links, [this](const auto& link) { return edge(link.target, link.source) >= 0; });
}

RoutedNetwork RoutedNetwork::idealSwitch(int servers, double bytes_per_s, double latency_s) {
  RoutedNetwork network(servers, {}, bytes_per_s, latency_s, {}, {});
  network.is_switch_ = true;
  network.both_ways_ = false;
  network.capacity_.assign(2 * static_cast<size_t>(servers), bytes_per_s);
  network.parallel_.assign(network.capacity_.size(), 1);
  for (int i = 0; i < 2 * servers; ++i) network.edge_of_link_.push_back(i);
  return network;
}

RoutedNetwork RoutedNetwork::ofPaths(int servers, std::vector<double> capacity,
                                     std::vector<PairPath> pairs,
                                     std::vector<plan::AllReduceGroup> groups) {
  checkServers(servers);
  RoutedNetwork network(servers);
  network.capacity_ = std::move(capacity);
  const int links = static_cast<int>(network.capacity_.size());
  network.parallel_.assign(links, 1);
  for (int link = 0; link < links; ++link) network.edge_of_link_.push_back(link);
  network.lists_pairs_ = true;
  network.edge_of_pair_.assign(static_cast<size_t>(servers) * servers, -1);
  network.pair_path_.assign(static_cast<size_t>(servers) * servers, {-1, 1.0, 0.0});
  for (size_t i = 0; i < pairs.size(); ++i) {
    PairPath& pair = pairs[i];
    network.checkServer("pairs", i, pair.source);
    network.checkServer("pairs", i, pair.target);
    const std::string where = "pairs[" + std::to_string(i) + "]: ";
    if (!(pair.latency_s >= 0) || !std::isfinite(pair.latency_s)) {
      throw std::invalid_argument(where + "latency_s " + std::to_string(pair.latency_s) +
                                  " is not at least 0 and finite");
    }
    for (const LinkUse& use : pair.uses) {
      if (use.link < 0 || use.link >= links) {
        throw std::invalid_argument(where + "link " + std::to_string(use.link) + " is not in 0.." +
                                    std::to_string(links - 1));
      }
    }
    FlowPath& known = network.pair_path_[pair.source * servers + pair.target];
    if (known.path >= 0) {
      throw std::invalid_argument(where + "a second path " + name(pair.source, pair.target));
    }
    known = {network.paths_.add(std::move(pair.uses)), 1.0, pair.latency_s};
  }
  network.setGroups(std::move(groups));
  return network;
}

int RoutedNetwork::edge(int source, int target) const {
  return edge_of_pair_[source * servers_ + target];
}

FlowPath RoutedNetwork::makePair(int source, int target) {
  if (is_switch_) return {paths_.add({{source, 1.0}, {servers_ + target, 1.0}}), 1.0, latency_s_};
  std::vector<LinkUse> uses;
  const size_t hops = addRoutes(source, target, uses);
  return {paths_.add(std::move(uses)), 1.0, static_cast<double>(hops) * latency_s_};
}

// Appends the loads of the pair's own routes, else of the rules, else of its link. Returns the
// links of the longest.
size_t RoutedNetwork::addRoutes(int source, int target, std::vector<LinkUse>& uses) const {
  size_t longest = 0;
  const auto addHop = [&](int from, int to, double weight) {
    const int used = edge(from, to);
    if (used < 0) {
      throw std::invalid_argument("routes: there is no link " + name(from, to) + " on the route " +
                                  name(source, target));
    }
    uses.push_back({used, weight});
  };
  const auto addRoute = [&](const plan::Route& route) {
    for (size_t h = 1; h < route.servers.size(); ++h) {
      addHop(route.servers[h - 1], route.servers[h], route.weight);
    }
    longest = std::max(longest, route.servers.size() - 1);
  };
  const auto found = routes_.find(source * servers_ + target);
  if (found != routes_.end()) {
    for (const plan::Route& route : found->second) addRoute(route);
    return longest;
  }
  if (!by_offset_.empty()) {
    for (const plan::StrideRoute& rule : by_offset_[(target - source + servers_) % servers_]) {
      int at = source;
      for (int stride : rule.strides) {
        const int next = (at + stride) % servers_;
        addHop(at, next, rule.weight);
        at = next;
      }
      longest = std::max(longest, rule.strides.size());
    }
  }
  if (longest > 0) return longest;
  if (!next_hops_.empty()) {
    addRoute(walk(source, target));
    return longest;
  }
  if (edge(source, target) < 0) {
    throw std::invalid_argument("routes: no link and no route " + name(source, target));
  }
  uses.push_back({edge(source, target), 1.0});
  return 1;
}

plan::Route RoutedNetwork::walk(int source, int target) const {
  plan::Route route{{source}, 1.0};
  while (route.servers.back() != target) {
    route.servers.push_back(next_hops_[route.servers.back() * servers_ + target]);
    if (route.servers.size() > static_cast<size_t>(servers_)) {
      throw std::invalid_argument("next_hops: the way " + name(source, target) + " has a loop");
    }
  }
  return route;
}

const FlowPath& RoutedNetwork::pair(int source, int target) {
  FlowPath& known = pair_path_[source * servers_ + target];
  if (known.path < 0) known = makePair(source, target);
  return known;
}

double ringLatency(std::span<const double> hop_s) {
  const size_t k = hop_s.size();
  double round_s = 0;
  double skipped_s = hop_s[k - 1] + hop_s[0];
  for (size_t i = 0; i < k; ++i) {
    round_s += hop_s[i];
    if (i > 0) skipped_s = std::min(skipped_s, hop_s[i - 1] + hop_s[i]);
  }
  return 2 * round_s - skipped_s;
}

FlowPath RoutedNetwork::makeRing(const plan::Ring& ring) {
  const size_t k = ring.servers.size();
  std::vector<LinkUse> uses;
  std::vector<double> hop_s(k);
  for (size_t i = 0; i < k; ++i) {
    const FlowPath hop = pair(ring.servers[i], ring.servers[(i + 1) % k]);
    const auto hop_uses = paths_.uses(hop.path);
    uses.insert(uses.end(), hop_uses.begin(), hop_uses.end());
    hop_s[i] = hop.latency_s;
  }
  return {paths_.add(std::move(uses)), ring.share, ringLatency(hop_s)};
}

double lineLatency(std::span<const double> hop_s) {
  return std::accumulate(hop_s.begin(), hop_s.end(), 0.0) - *std::ranges::min_element(hop_s);
}

size_t GroupPaths::choiceAt(double size_bytes) const {
  if (choices_ != nullptr) {
    const auto& choices = choices_->choices();
    return static_cast<size_t>(
        std::ranges::lower_bound(choices, size_bytes, {}, &ScheduleChoice::up_to_bytes) -
        choices.begin());
  }
  const auto seconds = [&](const auto& flows) { return flows->seconds(size_bytes); };
  return static_cast<size_t>(std::ranges::min_element(all_, {}, seconds) - all_.begin());
}

std::string GroupPaths::algorithm(double size_bytes) const {
  if (choices_ == nullptr) return "";
  return nameOf(choices_->choices()[choiceAt(size_bytes)].algorithm);
}

std::vector<double> GroupPaths::crossings() const {
  std::vector<double> found;
  if (choices_ != nullptr) {
    for (const ScheduleChoice& choice : choices_->choices()) found.push_back(choice.up_to_bytes);
    found.pop_back();
    return found;
  }
  const AllReduceFlows* current = &*all_[choiceAt(0)];
  while (true) {
    double next = std::numeric_limits<double>::infinity();
    const AllReduceFlows* faster = nullptr;
    for (const auto& other : all_) {
      if (!(other->s_per_byte < current->s_per_byte)) continue;
      const double bytes =
          (other->latency_s - current->latency_s) / (current->s_per_byte - other->s_per_byte);
      if (bytes < next || (bytes == next && other->s_per_byte < faster->s_per_byte)) {
        next = bytes;
        faster = &*other;
      }
    }
    if (faster == nullptr) return found;
    if (next > 0) found.push_back(next);
    current = faster;
  }
}

FlowPath RoutedNetwork::makeLines(const std::vector<std::vector<int>>& lines, double share,
                                  bool both) {
  std::vector<LinkUse> uses;
  double latency_s = 0;
  for (const std::vector<int>& line : lines) {
    std::vector<double> hop_s;
    for (size_t i = 0; i < line.size(); ++i) {
      const FlowPath hop = pair(line[i], line[(i + 1) % line.size()]);
      const auto hop_uses = paths_.uses(hop.path);
      uses.insert(uses.end(), hop_uses.begin(), hop_uses.end());
      hop_s.push_back(hop.latency_s);
    }
    latency_s = std::max(latency_s, both ? ringLatency(hop_s) : lineLatency(hop_s));
  }
  return {paths_.add(std::move(uses)), share, latency_s};
}

std::vector<TorusPart> RoutedNetwork::makeParts(const plan::Grid& grid) {
  std::vector<TorusPart> parts;
  for (size_t number = 0; number < kTorusParts; ++number) {
    const TorusLines lines = torusLines(grid, number);
    const auto [first, second] = torusShares(lines);
    parts.push_back({makeLines(lines.first, first, false), makeLines(lines.second, second, true)});
  }
  return parts;
}

// The busy time of the busiest link if these bytes are sent on each path.
double RoutedNetwork::busiest(const std::vector<std::pair<int, double>>& paths) const {
  std::vector<double> busy_s(capacity_.size());
  double most_s = 0;
  for (const auto& [path, bytes] : paths) {
    for (const LinkUse& use : paths_.uses(path)) {
      most_s = std::max(most_s, busy_s[use.link] += bytes * use.load / capacity_[use.link]);
    }
  }
  return most_s;
}

AllReduceFlows RoutedNetwork::onRings(std::vector<plan::Ring> rings) {
  const double k = static_cast<double>(rings.front().servers.size());
  AllReduceFlows found;
  std::vector<std::pair<int, double>> sent;
  for (const plan::Ring& ring : rings) {
    FlowPath path = makeRing(ring);
    path.share *= 2 * (k - 1) / k;
    sent.emplace_back(path.path, path.share);
    found.latency_s = std::max(found.latency_s, path.latency_s);
    found.flows.push_back(path);
  }
  found.s_per_byte = busiest(sent);
  found.rings = std::move(rings);
  return found;
}

AllReduceFlows RoutedNetwork::onGrid(const plan::Grid& grid) {
  AllReduceFlows found;
  found.parts = makeParts(grid);
  std::vector<std::pair<int, double>> first, second;
  for (const TorusPart& part : found.parts) {
    first.emplace_back(part.first.path, part.first.share);
    second.emplace_back(part.second.path, part.second.share);
    found.latency_s = std::max(found.latency_s, 2 * part.first.latency_s + part.second.latency_s);
  }
  found.s_per_byte = 2 * busiest(first) + busiest(second);
  return found;
}

AllReduceFlows RoutedNetwork::onLinks(std::shared_ptr<const LinkSchedule> schedule) {
  AllReduceFlows found;
  for (const LinkPass& pass : schedule->passes) {
    auto [uses, step_s] = usesOf(pass, schedule->over_routes);
    const double latency_s = pass.steps * step_s;
    found.flows.push_back({paths_.add(std::move(uses)), 1.0, latency_s});
    found.latency_s += latency_s;
    found.s_per_byte += busiest({{found.flows.back().path, 1.0}});
  }
  found.schedule = std::move(schedule);
  return found;
}

// The loads of all messages, and the latency of the longest.
std::pair<std::vector<LinkUse>, double> RoutedNetwork::usesOf(const LinkPass& pass,
                                                              bool over_routes) {
  std::vector<LinkUse> uses;
  double longest_s = cost_.per_hop_latency_s;
  for (const LinkShare& send : pass.sends) {
    if (over_routes) {
      longest_s = std::max(longest_s, addMessage(send, uses));
      continue;
    }
    for (const LinkUse& use : uses_of_ends_.at({send.source, send.target})) {
      uses.push_back({use.link, use.load * send.share});
    }
  }
  return {std::move(uses), longest_s};
}

// Adds the links of a message over routes, a shortest path if the pair has no route. Returns its
// latency.
double RoutedNetwork::addMessage(const LinkShare& send, std::vector<LinkUse>& uses) {
  const bool known = pair_path_[send.source * servers_ + send.target].path >= 0;
  if (known || !lists_pairs_) {
    const FlowPath path = pair(send.source, send.target);
    for (const LinkUse& use : paths_.uses(path.path)) {
      uses.push_back({use.link, use.load * send.share});
    }
    return path.latency_s;
  }
  double latency_s = 0;
  for (int at = send.source; at != send.target;) {
    const int next = schedules_->nextHop(at, send.target);
    for (const LinkUse& use : uses_of_ends_.at({at, next})) {
      uses.push_back({use.link, use.load * send.share});
    }
    latency_s += cost_.per_hop_latency_s;
    at = next;
  }
  return latency_s;
}

// Builds choice `place`. Simulated flows may be faster than the cost model, which counts messages
// and steps: the difference is waited.
AllReduceFlows RoutedNetwork::chosen(const std::vector<int>& servers, GroupPaths& paths,
                                     size_t place) {
  const ScheduleChoice& choice = paths.choices_->choices()[place];
  const auto [unwaited, added] = paths.unwaited_.try_emplace(choice.algorithm);
  if (added) {
    const std::vector<plan::Ring> planned = rings(servers);
    switch (choice.algorithm) {
      case Algorithm::kTorus:
        unwaited->second = onGrid(grid(servers));
        break;
      case Algorithm::kRing:
        unwaited->second = onRings({{planned.front().servers, 1.0}});
        break;
      case Algorithm::kMultiRing:
        unwaited->second = onRings(planned);
        break;
      default:
        unwaited->second = onLinks(paths.choices_->schedule(choice.algorithm));
    }
  }
  AllReduceFlows found = unwaited->second;
  if (found.schedule == nullptr && cost_.alpha_s == 0) return found;  // latencies are exact
  const double first_s = std::max(0.0, choice.first_s - found.seconds(choice.first_bytes));
  const double last_s = std::max(0.0, choice.last_s - found.seconds(choice.last_bytes));
  if (choice.last_bytes > choice.first_bytes) {
    found.wait_s_per_byte = (last_s - first_s) / (choice.last_bytes - choice.first_bytes);
  }
  found.wait_s = first_s - found.wait_s_per_byte * choice.first_bytes;
  return found;
}

void RoutedNetwork::addSchedules(const std::vector<std::pair<int, int>>& ends, CostModel cost,
                                 std::optional<Algorithm> forced, int ranks_per_server) {
  checkLatency(cost.per_hop_latency_s);
  if (ranks_per_server < 1) throw std::invalid_argument("ranks_per_server: must be at least 1");
  if (ends.size() != edge_of_link_.size()) {
    throw std::invalid_argument("ends: " + std::to_string(ends.size()) +
                                " are not one for each of " + std::to_string(edge_of_link_.size()) +
                                " links");
  }
  std::map<std::pair<int, int>, std::map<int, double>> rates;  // by edge
  double slowest = std::numeric_limits<double>::infinity();    // of a single link
  for (size_t link = 0; link < ends.size(); ++link) {
    const auto [source, target] = ends[link];
    if (source < 0 || target < 0) {
      throw std::invalid_argument("ends[" + std::to_string(link) + "]: below 0");
    }
    if (source >= servers_ || target >= servers_) continue;
    const int edge = edge_of_link_[link];
    rates[ends[link]][edge] = capacity_[edge];
    slowest = std::min(slowest, capacity_[edge] / parallel_[edge]);
  }
  std::vector<RatedLink> links;
  for (const auto& [between, edges] : rates) {
    double total = 0;
    for (const auto& [edge, rate] : edges) total += rate;
    links.push_back({between.first, between.second, total});
    std::vector<LinkUse>& uses = uses_of_ends_[between];
    for (const auto& [edge, rate] : edges) uses.push_back({edge, rate / total});
  }
  if (cost.beta_s_per_byte == 0) cost.beta_s_per_byte = 1 / slowest;
  cost_ = cost;
  ranks_per_server_ = ranks_per_server;
  schedules_ = std::make_shared<GroupSchedules>(servers_, std::move(links), cost_, forced);
  group_paths_.clear();
}

GroupPaths RoutedNetwork::makeGroup(const std::vector<int>& servers) {
  GroupPaths paths;
  if (schedules_ != nullptr && schedules_->isDirect()) {
    std::vector<int> members;
    for (const int server : servers) members.insert(members.end(), ranks_per_server_, server);
    paths.choices_ = schedules_->of(members, rings(servers), grid(servers));
    paths.all_.resize(paths.choices_->choices().size());
    return paths;
  }
  paths.all_.emplace_back(onRings(rings(servers)));
  if (const plan::Grid rows = grid(servers); !rows.empty()) paths.all_.emplace_back(onGrid(rows));
  if (schedules_ == nullptr) return paths;
  if (auto both = bothWays(rings(servers)); !both.empty()) {
    paths.all_.emplace_back(onRings(std::move(both)));
  }
  if (schedules_->isOverSwitches()) {
    auto exchange = std::make_shared<const LinkSchedule>(exchangeAmong(servers));
    paths.all_.emplace_back(onLinks(std::move(exchange)));
  }
  return paths;
}

GroupPaths& RoutedNetwork::groupPaths(const std::vector<int>& servers) {
  const auto known = group_paths_.find(servers);
  if (known != group_paths_.end()) return known->second;
  return group_paths_.emplace(servers, makeGroup(servers)).first->second;
}

const AllReduceFlows& RoutedNetwork::allReduce(const std::vector<int>& servers, double size_bytes) {
  GroupPaths& paths = groupPaths(servers);
  const size_t place = paths.choiceAt(size_bytes);
  if (!paths.all_[place]) paths.all_[place] = chosen(servers, paths, place);
  return *paths.all_[place];
}

std::vector<plan::Ring> RoutedNetwork::rings(const std::vector<int>& servers) const {
  return ringsOfGroup(groups_, servers, both_ways_,
                      [this](int source, int target) { return hops(source, target); });
}

// Links of the shortest route; 0 unless routes are lists of servers.
int RoutedNetwork::hops(int source, int target) const {
  if (edge_of_link_.empty() || is_switch_ || edge_of_pair_.empty()) return 0;
  if (const auto found = routes_.find(source * servers_ + target); found != routes_.end()) {
    size_t least = found->second.front().servers.size();
    for (const plan::Route& route : found->second) least = std::min(least, route.servers.size());
    return static_cast<int>(least) - 1;
  }
  if (!by_offset_.empty()) {
    const auto& rules = by_offset_[(target - source + servers_) % servers_];
    size_t least = std::numeric_limits<int>::max();
    for (const plan::StrideRoute& rule : rules) least = std::min(least, rule.strides.size());
    if (!rules.empty()) return static_cast<int>(least);
  }
  return next_hops_.empty() ? 1 : static_cast<int>(walk(source, target).servers.size()) - 1;
}

std::vector<double> RoutedNetwork::collectiveLinkBytes(Collective collective,
                                                       const std::vector<int>& members,
                                                       size_t bytes, int root) {
  if (schedules_ == nullptr || !schedules_->isDirect()) {
    throw std::invalid_argument("collective: the network has no schedules over links");
  }
  std::vector<int> servers = members;
  servers.erase(std::unique(servers.begin(), servers.end()), servers.end());
  std::vector<double> edge_bytes(capacity_.size());
  if (servers.size() > 1 && bytes > 0) {
    const auto choices = schedules_->of(members, rings(servers), grid(servers));
    const LinkSchedule schedule = choices->collective(collective, bytes, root);
    for (const LinkUse& use : usesOf(schedule.passes.front(), schedule.over_routes).first) {
      edge_bytes[use.link] += use.load;
    }
  }
  return linkBytes(edge_bytes);
}

std::vector<double> RoutedNetwork::allReduceLinkBytes(const std::vector<int>& servers,
                                                      double size_bytes) {
  std::vector<double> edge_bytes(capacity_.size());
  const auto add = [&](const FlowPath& flow, double times) {
    for (const LinkUse& use : paths_.uses(flow.path)) {
      edge_bytes[use.link] += times * flow.share * use.load * size_bytes;
    }
  };
  const AllReduceFlows& chosen = allReduce(servers, size_bytes);
  for (const FlowPath& flow : chosen.flows) add(flow, 1);
  for (const TorusPart& part : chosen.parts) {
    add(part.first, 2);
    add(part.second, 1);
  }
  return linkBytes(edge_bytes);
}

std::vector<double> RoutedNetwork::linkBytes(const std::vector<double>& edge_bytes) const {
  std::vector<double> bytes;
  bytes.reserve(edge_of_link_.size());
  for (int edge : edge_of_link_) bytes.push_back(edge_bytes[edge] / parallel_[edge]);
  return bytes;
}

}  // namespace topoopt
