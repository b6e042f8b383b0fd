#include "plan/cost_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <stdexcept>

#include "plan/direct_schedules.h"
#include "plan/flooding_schedules.h"
#include "plan/graph_costs.h"
#include "plan/torus_schedules.h"

namespace topoopt {
namespace {

constexpr const char* kNames[] = {"direct",        "ring",     "multi_ring", "both_ways",
                                  "tree",          "doubling", "torus",      "swing",
                                  "breadth_first", "packing",  "flooding",   "one_shot"};
constexpr size_t kStepBytes = 64 << 10;  // chunk of a tree
constexpr double kBusy = 0.9;            // fraction of the peak rate of the links
// Upper limit for small messages; scratch is per round.
constexpr size_t kDoublingBytes = 256 << 10;
constexpr size_t kSwingBytes = 4 << 20;

bool everyRingHasAReverse(const GroupLayout& layout) {
  const std::vector<plan::Ring>& rings = layout.rings();
  return layout.leaders().size() > 2 &&
         std::all_of(rings.begin(), rings.end(), [&](const plan::Ring& ring) {
           std::vector<int> reversed(ring.servers.rbegin(), ring.servers.rend());
           return std::any_of(rings.begin(), rings.end(), [&](const plan::Ring& other) {
             const auto start = std::find(reversed.begin(), reversed.end(), other.servers.front());
             std::vector<int> turned(start, reversed.end());
             turned.insert(turned.end(), reversed.begin(), start);
             return turned == other.servers;
           });
         });
}

// Time until a message from the root has reached all members, each sending to its children in turn.
double arrival(const GroupLayout& layout, const std::vector<std::vector<int>>& children, int member,
               double start_s, double alpha_s, double per_hop_latency_s) {
  double latest_s = start_s;
  double ready_s = start_s;
  for (const int child : children[member]) {
    ready_s += alpha_s;
    const double arrival_s = ready_s + per_hop_latency_s * layout.hops(member, child);
    latest_s =
        std::max(latest_s, arrival(layout, children, child, arrival_s, alpha_s, per_hop_latency_s));
  }
  return latest_s;
}

// The rate of all links over the loads of all rings, which cross several links between neighbours.
double linksOfRings(const GroupLayout& layout) {
  double rate = 0;
  for (const RatedLink& link : layout.links()) {
    rate += link.rate * layout.hops(layout.leaders()[link.source], layout.leaders()[link.target]);
  }
  double load = 0;
  for (const plan::Ring& ring : layout.rings()) {
    for (size_t i = 0; i < ring.servers.size(); ++i) {
      const int next = ring.servers[(i + 1) % ring.servers.size()];
      load += ring.share * layout.hops(ring.servers[i], next);
    }
  }
  return rate > 0 && load > 0 ? rate / load : std::numeric_limits<double>::infinity();
}

// The rate of the links that leave a server, of the one with least; infinity if links are unknown.
double leastOut(const GroupLayout& layout) {
  if (layout.links().empty()) return std::numeric_limits<double>::infinity();
  std::vector<double> out(layout.leaders().size(), 0.0);
  for (const RatedLink& link : layout.links()) out[link.source] += link.rate;
  return *std::min_element(out.begin(), out.end());
}

}  // namespace

const char* nameOf(Algorithm algorithm) { return kNames[static_cast<size_t>(algorithm)]; }

const char* nameOf(Collective collective) {
  constexpr const char* kCollectives[] = {"all_reduce", "broadcast",      "reduce",
                                          "all_gather", "reduce_scatter", "gather",
                                          "scatter",    "all_to_all",     "barrier"};
  return kCollectives[static_cast<size_t>(collective)];
}

std::optional<Algorithm> algorithmNamed(const std::string& name) {
  if (name == "auto") return std::nullopt;
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kMultiRing, Algorithm::kBothWays, Algorithm::kTree,
        Algorithm::kDoubling, Algorithm::kTorus, Algorithm::kSwing, Algorithm::kBreadthFirst,
        Algorithm::kPacking, Algorithm::kFlooding, Algorithm::kOneShot}) {
    if (name == nameOf(algorithm)) return algorithm;
  }
  throw std::invalid_argument(
      "TOPOOPT_ALGORITHM: '" + name +
      "' is not one of auto, ring, multi_ring, both_ways, tree, doubling, torus, swing, "
      "breadth_first, packing, flooding, one_shot");
}

CostEstimate::CostEstimate(const GroupLayout& layout, const CostModel& model)
    : layout_(layout),
      model_(model),
      flat_(layout.mostOthers() == 0),
      both_(everyRingHasAReverse(layout)),
      swings_(flat_ && !layout.grid().empty() && std::has_single_bit(layout.grid().size()) &&
              std::has_single_bit(layout.grid().front().size())),
      graph_(layout.linkSets().empty() ? nullptr : std::make_unique<GraphCosts>(layout, model_)) {
  for (const plan::AllReduceTime& time : model.all_reduce) {
    if (const auto algorithm = algorithmNamed(time.algorithm)) {
      times_[*algorithm][time.bytes] = time.seconds;
    }
  }
  double largest = 0;
  for (const plan::Ring& ring : layout.rings()) largest = std::max(largest, ring.share);
  links_ = 1.0 / largest;
  ring_links_ = std::min(links_, linksOfRings(layout));
  tree_links_ = std::min(links_, leastOut(layout));
  const std::vector<int>& order = layout.rings()[0].servers;
  for (size_t i = 0; i < order.size(); ++i) {
    ring_hops_ = std::max(ring_hops_, layout.hops(order[i], order[(i + 1) % order.size()]));
  }
  const plan::Grid& grid = layout.grid();
  for (size_t i = 0; i < grid.size(); ++i) {
    for (size_t j = 0; j < grid[i].size(); ++j) {
      const int east = grid[i][(j + 1) % grid[i].size()];
      const int south = grid[(i + 1) % grid.size()][j];
      grid_hops_[0] = std::max(grid_hops_[0], layout.hops(grid[i][j], east));
      grid_hops_[1] = std::max(grid_hops_[1], layout.hops(grid[i][j], south));
    }
  }
}

CostEstimate::~CostEstimate() = default;

std::vector<Algorithm> CostEstimate::candidates(const Request& request) const {
  std::vector<Algorithm> list;
  const bool several = layout_.rings().size() > 1;
  const auto has = [this](Algorithm algorithm) { return whyNever(algorithm).empty(); };
  switch (request.collective) {
    case Collective::kExchange:
      return {Algorithm::kDirect};
    case Collective::kGather:
    case Collective::kScatter:
      list.push_back(Algorithm::kDirect);
      if (graph_) list.push_back(Algorithm::kBreadthFirst);
      return list;
    case Collective::kBarrier:
      if (has(Algorithm::kDoubling)) list.push_back(Algorithm::kDoubling);
      list.push_back(Algorithm::kTree);
      return list;
    case Collective::kAllReduce:
      if (has(Algorithm::kDoubling) && request.commutative && request.bytes <= kDoublingBytes) {
        list.push_back(Algorithm::kDoubling);
      }
      if (has(Algorithm::kSwing) && request.commutative && request.bytes <= kSwingBytes) {
        list.push_back(Algorithm::kSwing);
      }
      list.push_back(Algorithm::kTree);
      if (has(Algorithm::kTorus)) list.push_back(Algorithm::kTorus);
      break;
    case Collective::kBroadcast:
    case Collective::kReduce:
      list.push_back(Algorithm::kTree);
      if (has(Algorithm::kBothWays)) list.push_back(Algorithm::kBothWays);
      break;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
      break;
  }
  list.push_back(Algorithm::kRing);
  if (several) list.push_back(Algorithm::kMultiRing);
  addGraphCandidates(request, list);
  return list;
}

void CostEstimate::addGraphCandidates(const Request& request, std::vector<Algorithm>& list) const {
  if (!graph_) return;
  list.push_back(Algorithm::kBreadthFirst);
  list.push_back(Algorithm::kPacking);
  const size_t others = layout_.leaders().size() - 1;
  switch (request.collective) {
    case Collective::kAllReduce:
      if (flat_ && request.commutative && request.bytes * others <= kFloodingLimitBytes) {
        list.push_back(Algorithm::kFlooding);
        list.push_back(Algorithm::kOneShot);
      }
      break;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
      if (request.bytes <= kFloodingLimitBytes) list.push_back(Algorithm::kOneShot);
      break;
    default:
      break;
  }
}

Algorithm CostEstimate::choose(const Request& request, std::optional<Algorithm> forced) const {
  const std::vector<Algorithm> list = candidates(request);
  // In a group with one ring, multi_ring is ring.
  if (forced == Algorithm::kMultiRing && layout_.rings().size() == 1) forced = Algorithm::kRing;
  if (forced && std::find(list.begin(), list.end(), *forced) != list.end()) return *forced;
  if (list.size() == 1) return list.front();
  Algorithm best = list.front();
  double least_s = std::numeric_limits<double>::infinity();
  const bool measured =
      request.collective == Collective::kAllReduce &&
      std::any_of(list.begin(), list.end(), [&](Algorithm one) { return times_.contains(one); });
  for (const Algorithm algorithm : list) {
    if (measured && !times_.contains(algorithm)) continue;  // prefer measured times to the model
    if (algorithm == Algorithm::kPacking && !graph_->mayGainFromPacking(request)) continue;
    const double algorithm_s = seconds(request, algorithm);
    if (algorithm_s >= least_s) continue;
    least_s = algorithm_s;
    best = algorithm;
  }
  return best;
}

std::string_view CostEstimate::whyNever(Algorithm algorithm) const {
  if (algorithm == Algorithm::kTorus && layout_.grid().empty()) {
    return "its members are no torus of the plan";
  }
  if (algorithm == Algorithm::kSwing && !swings_) {
    return "its members are no torus of the plan with powers of two rows and columns";
  }
  const bool graph = algorithm == Algorithm::kBreadthFirst || algorithm == Algorithm::kPacking ||
                     algorithm == Algorithm::kFlooding || algorithm == Algorithm::kOneShot;
  if (graph && !graph_) return "no links of the plan join its servers";
  if (algorithm == Algorithm::kFlooding && !flat_) return "it has several members on a server";
  if (algorithm == Algorithm::kBothWays && !both_) return "its rings run one way";
  if (algorithm == Algorithm::kDoubling && !flat_) return "it has several members on a server";
  return "";
}

size_t CostEstimate::busyBytes(size_t least, size_t most, std::optional<Algorithm> forced) const {
  const auto secondsPerByte = [&](size_t bytes) {
    const Request request{Collective::kAllReduce, bytes, 0, true};
    return seconds(request, choose(request, forced)) / static_cast<double>(bytes);
  };
  const double endless_s = secondsPerByte(size_t{1} << 40);
  size_t bytes = least;
  while (bytes < most && secondsPerByte(bytes) * kBusy > endless_s) bytes *= 2;
  return std::min(bytes, most);
}

std::vector<TreeShare> CostEstimate::trees(const Request& request, Algorithm algorithm) const {
  const int rings = static_cast<int>(layout_.rings().size());
  const int first_tree = partsOf(layout_).trees;
  const bool rooted =
      request.collective == Collective::kBroadcast || request.collective == Collective::kReduce;
  if (algorithm == Algorithm::kTree) {
    if (request.collective == Collective::kAllReduce) {
      if (!binary_) binary_ = doubleBinaryTree(layout_);
      return {{(*binary_)[0], 0.5, first_tree}, {(*binary_)[1], 0.5, first_tree + 1}};
    }
    const int root = rooted ? request.root : layout_.leaders()[0];
    return {{quickTree(layout_, root, model_.alpha_s, model_.per_hop_latency_s), 1.0, first_tree}};
  }
  std::vector<TreeShare> list;
  const auto flow = request.collective == Collective::kBroadcast ? ChainDirection::kFromRoot
                                                                 : ChainDirection::kToRoot;
  for (int r = 0; r < rings; ++r) {
    const plan::Ring& ring = layout_.rings()[r];
    const bool one = algorithm == Algorithm::kRing;
    list.push_back({chainTree(layout_, ring, request.root, flow, algorithm == Algorithm::kBothWays),
                    one ? 1.0 : ring.share, r});
    if (one) break;
  }
  return list;
}

// ---- seconds -----------------------------------------------------------------------------------

double CostEstimate::messageSeconds(double hops, size_t bytes) const {
  return model_.alpha_s +
         hops * (model_.per_hop_latency_s + static_cast<double>(bytes) * model_.beta_s_per_byte);
}

// `bytes` go round each ring in equal steps; each step is one message per ring.
double CostEstimate::ringSteps(size_t steps, size_t bytes, double factor, bool reduces,
                               size_t rings) const {
  if (steps == 0) return 0;
  const double others = static_cast<double>(rings - 1) * model_.alpha_s;
  const double latency = static_cast<double>(steps) * (messageSeconds(ring_hops_, 0) + others);
  const double moved = factor * static_cast<double>(bytes);
  const double links = std::min(rings == 1 ? 1.0 : links_, ring_links_);
  const GroupLayout::RouteLoads& loads = layout_.routeLoads();
  const double load = std::max(1 / links, rings == 1 ? loads.first_ring : loads.rings);
  return latency + moved * model_.beta_s_per_byte * load +
         (reduces ? moved * model_.gamma_s_per_byte : 0.0);
}

// Parts that start with rows and parts that start with columns run the same phase concurrently on
// different links; the slower direction decides. In each step a server receives a message of every
// part.
double CostEstimate::torusSeconds(size_t bytes) const {
  const std::array<double, 2> size = {static_cast<double>(layout_.grid().front().size()),
                                      static_cast<double>(layout_.grid().size())};
  const double others = static_cast<double>(kTorusParts - 1) * model_.alpha_s;
  const double quarter = static_cast<double>(bytes) / static_cast<double>(kTorusParts);
  double latency = 0;
  double first = 0;   // along the scattering and gathering line
  double second = 0;  // along the reducing line
  for (size_t line = 0; line < 2; ++line) {
    const int hops = grid_hops_[line];
    const double steps = size[line] - 1;
    latency += 2 * steps * (messageSeconds(hops, 0) + others);
    const double link_s = 2 * steps / size[line] * quarter * hops * model_.beta_s_per_byte;
    first = std::max(first, link_s);
    second = std::max(second, link_s / size[1 - line]);
  }
  const double servers = size[0] * size[1];
  const double reduced = 2 * (servers - 1) / servers * static_cast<double>(bytes);
  return latency + first + second + reduced * model_.gamma_s_per_byte;
}

double CostEstimate::treeSeconds(const std::vector<TreeShare>& trees, size_t bytes, int directions,
                                 bool reduces) const {
  double latency = 0;
  double busiest_edge = 0;
  std::vector<double> out(static_cast<size_t>(layout_.size()), 0.0);
  for (const TreeShare& part : trees) {
    const double share = part.share * static_cast<double>(bytes);
    const double step = std::min(share, static_cast<double>(kStepBytes));
    const double hop_s = model_.per_hop_latency_s + step * model_.beta_s_per_byte;
    const double reduce_s = reduces ? step * model_.gamma_s_per_byte : 0.0;
    latency = std::max(latency, arrival(layout_, part.tree.children(), part.tree.root(), 0.0,
                                        model_.alpha_s + reduce_s, hop_s));
    const double rest_s = (share - step) * model_.beta_s_per_byte;
    for (size_t i = 0; i < part.tree.parent.size(); ++i) {
      const int parent = part.tree.parent[i];
      if (parent < 0) continue;
      const double edge_s = rest_s * layout_.hops(parent, static_cast<int>(i));
      busiest_edge = std::max(busiest_edge, rest_s);
      out[parent] += edge_s;
      if (directions > 1) out[i] += edge_s;
    }
  }
  const double parallel = static_cast<double>(trees.size() - 1) * model_.alpha_s;
  return directions * (latency + parallel) +
         std::max(busiest_edge, *std::max_element(out.begin(), out.end()) / tree_links_);
}

double CostEstimate::doublingSeconds(size_t bytes) const {
  const std::vector<int>& order = layout_.plannedRings()[0].servers;
  const size_t core = size_t{1} << doublingRounds(order.size());
  double total = core < order.size() ? 2 * messageSeconds(ring_hops_, bytes) : 0.0;
  for (size_t distance = 1; distance < core; distance *= 2) {
    int hops = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      hops = std::max(hops, layout_.hops(order[i], order[(i + distance) % order.size()]));
    }
    total += messageSeconds(hops, bytes) + static_cast<double>(bytes) * model_.gamma_s_per_byte;
  }
  return total;
}

// In each step, the two parts along rows load the links of a row evenly, and those along columns
// likewise: each link carries a quarter of the bytes, times the distance of partners.
double CostEstimate::swingSeconds(size_t bytes) const {
  const plan::Grid& grid = layout_.grid();
  const double quarter = static_cast<double>(bytes) / static_cast<double>(kTorusParts);
  const std::vector<int> starts_along_rows = swingPartners(grid, 0, 0, 0);
  const std::vector<int> starts_along_columns = swingPartners(grid, 0, 0, 1);
  double total = 0;
  for (size_t step = 0; step < starts_along_rows.size(); ++step) {
    const int first = layout_.hops(grid[0][0], starts_along_rows[step]);
    const int second = layout_.hops(grid[0][0], starts_along_columns[step]);
    const auto& row = grid[0];
    const auto in_row = [&](int member) {
      return std::find(row.begin(), row.end(), member) != row.end();
    };
    const bool same = in_row(starts_along_rows[step]) == in_row(starts_along_columns[step]);
    const double load = same ? first + second : std::max(first, second);
    total += model_.alpha_s + std::max(first, second) * model_.per_hop_latency_s +
             load * quarter * model_.beta_s_per_byte +
             static_cast<double>(bytes) * model_.gamma_s_per_byte;
  }
  return total;
}

double CostEstimate::disseminationSeconds() const {
  const std::vector<int>& order = layout_.plannedRings()[0].servers;
  double total = 0;
  for (size_t distance = 1; distance < order.size(); distance *= 2) {
    int hops = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      hops = std::max(hops, layout_.hops(order[i], order[(i + distance) % order.size()]));
    }
    total += messageSeconds(hops, 1);
  }
  return total;
}

double CostEstimate::seconds(const Request& request, Algorithm algorithm) const {
  if (const auto measured_s = measuredSeconds(request, algorithm)) return *measured_s;
  return modelSeconds(request, algorithm);
}

// Ring gather and scatter are halves of the ring all_reduce.
std::optional<double> CostEstimate::measuredSeconds(const Request& request,
                                                    Algorithm algorithm) const {
  const bool half = request.collective == Collective::kAllGather ||
                    request.collective == Collective::kReduceScatter;
  const auto found = times_.find(algorithm);
  // Their AllReduce is no scatter and gather.
  if (half && (algorithm == Algorithm::kOneShot || algorithm == Algorithm::kFlooding)) return {};
  if (found == times_.end() || !(half || request.collective == Collective::kAllReduce)) return {};
  const std::map<size_t, double>& times = found->second;
  const double part = half ? 0.5 : 1.0;
  const auto above = times.lower_bound(request.bytes);
  if (above == times.begin()) return part * above->second;
  const auto& [low, low_s] = *std::prev(above);
  if (above != times.end()) {
    const auto& [high, high_s] = *above;
    const double place = static_cast<double>(request.bytes - low) / static_cast<double>(high - low);
    return part * (low_s + place * (high_s - low_s));
  }
  // At most the rated speed of links, because the slope between two short times may be noise.
  const auto modelled = [&](size_t bytes) {
    return modelSeconds({Collective::kAllReduce, bytes, 0, request.commutative}, algorithm);
  };
  double beyond_s = modelled(request.bytes) - modelled(low);
  if (times.size() > 1) {
    const auto& [before, before_s] = *std::prev(above, 2);
    const double slope_s = (low_s - before_s) / static_cast<double>(low - before);
    beyond_s = std::max(beyond_s, slope_s * static_cast<double>(request.bytes - low));
  }
  return part * (low_s + beyond_s);
}

double CostEstimate::modelSeconds(const Request& request, Algorithm algorithm) const {
  const size_t servers = layout_.leaders().size();
  const double around = static_cast<double>(servers - 1) / static_cast<double>(servers);
  const size_t rings = algorithm == Algorithm::kMultiRing ? layout_.rings().size() : 1;
  const size_t bytes = request.bytes;
  if (algorithm >= Algorithm::kBreadthFirst) return graph_->of(request, algorithm).seconds;
  switch (request.collective) {
    case Collective::kGather:
    case Collective::kScatter:
      return graph_ ? graph_->of(request, algorithm).seconds : messageSeconds(1, bytes);
    case Collective::kExchange:
      return messageSeconds(1, bytes);
    case Collective::kBarrier:
      if (algorithm == Algorithm::kDoubling) return disseminationSeconds();
      return treeSeconds(trees(request, algorithm), 1, 2, false);
    case Collective::kAllReduce:
      if (algorithm == Algorithm::kDoubling) return doublingSeconds(bytes);
      if (algorithm == Algorithm::kTorus) return torusSeconds(bytes);
      if (algorithm == Algorithm::kSwing) return swingSeconds(bytes);
      if (algorithm == Algorithm::kTree) {
        return treeSeconds(trees(request, algorithm), bytes, 2, true);
      }
      return ringSteps(2 * (servers - 1), bytes, 2 * around, true, rings);
    case Collective::kBroadcast:
      return treeSeconds(trees(request, algorithm), bytes, 1, false);
    case Collective::kReduce:
      return treeSeconds(trees(request, algorithm), bytes, 1, true);
    case Collective::kAllGather:
      return ringSteps(servers - 1, bytes, around, false, rings);
    case Collective::kReduceScatter:
      return ringSteps(servers - 1, bytes, around, true, rings);
  }
  return 0;
}

}  // namespace topoopt
