#include "sim/iteration/placements.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/joined.h"

namespace topoopt {

namespace {

constexpr size_t kRememberedPairs = 1 << 14;  // pairs of placements; a long search sees many
constexpr size_t kRememberedCounts = 1 << 18;

// Overlapping parts of producer and consumer along an axis, and the fraction that moves.
struct AxisPair {
  int producer;
  int consumer;
  double fraction;
};

// Overlapping pairs of a and b equal intervals of [0, 1).
std::vector<AxisPair> overlaps(int64_t a, int64_t b) {
  std::vector<AxisPair> found;
  int64_t i = 0;
  int64_t j = 0;
  while (i < a && j < b) {  // in units of 1/(a b)
    const int64_t begin = std::max(i * b, j * a);
    const int64_t end = std::min((i + 1) * b, (j + 1) * a);
    if (end > begin) {
      found.push_back({static_cast<int>(i), static_cast<int>(j),
                       static_cast<double>(end - begin) / static_cast<double>(a * b)});
    }
    if ((i + 1) * b <= (j + 1) * a) {
      ++i;
    } else {
      ++j;
    }
  }
  return found;
}

// All pairs of parts.
std::vector<AxisPair> allPairs(int a, int b, double fraction) {
  std::vector<AxisPair> found;
  for (int i = 0; i < a; ++i) {
    for (int j = 0; j < b; ++j) found.push_back({i, j, fraction});
  }
  return found;
}

// Returns whether part i of a and part j of b equal parts of [0, 1) overlap.
bool overlap(int64_t i, int64_t a, int64_t j, int64_t b) {
  return i * b < (j + 1) * a && j * a < (i + 1) * b;
}

// The number of pairs in `overlaps`.
int64_t overlapCount(int64_t a, int64_t b) { return a + b - std::gcd(a, b); }

bool splitsAlike(const Degrees& producer, const Need& need) {
  return producer.kind == ParameterKind::kColumns && need.parameter > 1 && !need.whole.parameter &&
         !need.by_expert;
}

// Producer columns and consumer feature parts share an axis; other splits are of different axes, or
// partial sums.
std::vector<AxisPair> parameterPairs(const Degrees& producer, const Need& need) {
  const int p = producer.parameter;
  const int q = need.parameter;
  const bool whole = need.whole.parameter;
  if (splitsAlike(producer, need)) return overlaps(p, q);
  const double held = producer.kind == ParameterKind::kRows ? 1.0 : 1.0 / p;
  return allPairs(p, q, whole ? held : held / q);
}

// FNV-1a over the servers and degrees.
uint64_t hashOf(const Placement& placement) {
  uint64_t hash = 14695981039346656037u;
  const auto add = [&hash](int value) {
    hash = (hash ^ static_cast<uint32_t>(value)) * 1099511628211u;
  };
  for (int server : placement.servers) add(server);
  const Degrees& degrees = placement.degrees;
  for (int value :
       {degrees.sample, static_cast<int>(degrees.kind), degrees.parameter, degrees.attribute}) {
    add(value);
  }
  return hash;
}

}  // namespace

Need needOf(const Placement& consumer, WholeOperands whole) {
  const Degrees& degrees = consumer.degrees;
  whole.parameter &= degrees.parameter > 1;  // a single part is the whole
  whole.attribute &= degrees.attribute > 1;
  const bool takes_part = degrees.parameter > 1 && !whole.parameter;
  return {consumer.servers,  degrees.sample, degrees.parameter,
          degrees.attribute, whole,          takes_part && degrees.kind == ParameterKind::kExperts};
}

std::vector<Transfer> transfersBetween(const Placement& producer, const Need& b) {
  const Degrees& a = producer.degrees;
  const auto samples = overlaps(a.sample, b.sample);
  const auto parameters = parameterPairs(a, b);
  const auto positions = b.whole.attribute ? allPairs(a.attribute, b.attribute, 1.0 / a.attribute)
                                           : overlaps(a.attribute, b.attribute);
  std::vector<Transfer> found;
  found.reserve(samples.size() * parameters.size() * positions.size());
  for (const AxisPair& sample : samples) {
    for (const AxisPair& parameter : parameters) {
      for (const AxisPair& position : positions) {
        const int from =
            (sample.producer * a.parameter + parameter.producer) * a.attribute + position.producer;
        const int to =
            (sample.consumer * b.parameter + parameter.consumer) * b.attribute + position.consumer;
        found.push_back({from, to, producer.servers[from], b.servers[to],
                         sample.fraction * parameter.fraction * position.fraction});
      }
    }
  }
  return found;
}

int64_t sentBetween(const Placement& producer, const Need& b) {
  const Degrees& a = producer.degrees;
  const bool alike = splitsAlike(a, b);
  int64_t pairs = overlapCount(a.sample, b.sample);
  pairs *= alike ? overlapCount(a.parameter, b.parameter) : int64_t{a.parameter} * b.parameter;
  pairs *= b.whole.attribute ? int64_t{a.attribute} * b.attribute
                             : overlapCount(a.attribute, b.attribute);
  const int highest = *std::max_element(producer.servers.begin(), producer.servers.end());
  std::vector<int> shard_on(highest + 1, -1);
  for (int shard = 0; shard < a.shards(); ++shard) shard_on[producer.servers[shard]] = shard;
  const int shards = b.sample * b.parameter * b.attribute;
  for (int shard = 0; shard < shards; ++shard) {
    const int server = b.servers[shard];
    const int from = server <= highest ? shard_on[server] : -1;
    if (from < 0) continue;
    const int per_sample = a.parameter * a.attribute;
    const int need_per_sample = b.parameter * b.attribute;
    const bool same_samples =
        overlap(from / per_sample, a.sample, shard / need_per_sample, b.sample);
    const bool same_features = !alike || overlap(from / a.attribute % a.parameter, a.parameter,
                                                 shard / b.attribute % b.parameter, b.parameter);
    const bool same_positions = b.whole.attribute || overlap(from % a.attribute, a.attribute,
                                                             shard % b.attribute, b.attribute);
    pairs -= same_samples && same_features && same_positions;
  }
  return pairs;
}

std::vector<std::vector<int>> parameterGroups(const Placement& placement) {
  const Degrees& degrees = placement.degrees;
  std::vector<std::vector<int>> groups(degrees.parameter);
  for (int shard = 0; shard < degrees.shards(); ++shard) {
    groups[shard / degrees.attribute % degrees.parameter].push_back(placement.servers[shard]);
  }
  for (auto& group : groups) std::sort(group.begin(), group.end());
  return groups;
}

void validate(const Placement& placement, int servers) {
  const Degrees& degrees = placement.degrees;
  const auto count = static_cast<int64_t>(placement.servers.size());
  const int64_t parts = int64_t{degrees.parameter} * degrees.attribute;
  if (count == 0) throw std::invalid_argument("servers: an operator needs at least one server");
  if (degrees.sample < 1 || degrees.parameter < 1 || degrees.attribute < 1 ||
      (degrees.parameter > 1) == (degrees.kind == ParameterKind::kNone) || count % parts != 0 ||
      count / parts != degrees.sample) {
    throw std::invalid_argument("servers: " + std::to_string(placement.servers.size()) +
                                " servers for " + std::to_string(degrees.sample) + " x " +
                                std::to_string(degrees.parameter) + " x " +
                                std::to_string(degrees.attribute) + " shards");
  }
  for (int server : placement.servers) {
    if (server >= 0 && server < servers) continue;
    throw std::invalid_argument("servers: server " + std::to_string(server) + " is not in 0.." +
                                std::to_string(servers - 1));
  }
}

void Placements::check(const Placement& placement) const {
  validate(placement, servers_);
  std::vector<char> seen(servers_, 0);
  for (int server : placement.servers) {
    if (seen[server]++) {
      throw std::invalid_argument("servers: server " + std::to_string(server) +
                                  " is named twice in [" + joined(placement.servers) + "]");
    }
  }
}

int Placements::intern(Placement placement) {
  const uint64_t hash = hashOf(placement);
  const auto [begin, end] = ids_.equal_range(hash);
  for (auto known = begin; known != end; ++known) {
    if (placements_[known->second] == placement) return known->second;
  }
  check(placement);
  const int id = size();
  ids_.emplace(hash, id);
  placements_.push_back(std::move(placement));
  return id;
}

int Placements::intern(std::vector<int> servers) {
  std::sort(servers.begin(), servers.end());
  const int count = static_cast<int>(servers.size());
  return intern(Placement{std::move(servers), {.sample = count}});
}

const std::vector<std::vector<int>>& Placements::groups(int id) {
  const auto [entry, is_new] = groups_.try_emplace(id);
  if (is_new) entry->second = parameterGroups(placements_[id]);
  return entry->second;
}

int Placements::need(int id, WholeOperands whole) {
  if (id >= static_cast<int>(need_of_.size())) need_of_.resize(size(), {-1, -1, -1, -1});
  int& known = need_of_[id][(whole.parameter ? 2 : 0) + (whole.attribute ? 1 : 0)];
  if (known < 0) {
    Need made = needOf(placements_[id], whole);
    const auto [entry, is_new] = need_ids_.try_emplace(made, static_cast<int>(needs_.size()));
    if (is_new) needs_.push_back(std::move(made));
    known = entry->second;
  }
  return known;
}

const std::vector<Transfer>& Placements::transfers(int producer, int need) {
  const uint64_t key = static_cast<uint64_t>(producer) << 32 | static_cast<uint64_t>(need);
  if (const auto known = transfers_.find(key); known != transfers_.end()) return known->second;
  if (transfers_.size() >= kRememberedPairs) transfers_.clear();
  return transfers_[key] = transfersBetween(placements_[producer], needs_[need]);
}

int64_t Placements::sent(int producer, int need) {
  const uint64_t key = static_cast<uint64_t>(producer) << 32 | static_cast<uint64_t>(need);
  if (const auto known = sent_.find(key); known != sent_.end()) return known->second;
  if (sent_.size() >= kRememberedCounts) sent_.clear();
  return sent_[key] = sentBetween(placements_[producer], needs_[need]);
}

namespace {

// The stage of every server: servers that share an operator share a stage.
std::vector<int> stageOfServer(const std::vector<const Placement*>& strategy, int servers) {
  std::vector<int> parent(servers);
  std::iota(parent.begin(), parent.end(), 0);
  const auto root = [&](int server) {
    while (parent[server] != server) server = parent[server] = parent[parent[server]];
    return server;
  };
  for (const Placement* placement : strategy) {
    for (int server : placement->servers) parent[root(server)] = root(placement->servers[0]);
  }
  std::vector<int> stage(servers);
  for (int server = 0; server < servers; ++server) stage[server] = root(server);
  return stage;
}

// Throws std::invalid_argument for an unknown server or operator.
void checkPipeline(const std::vector<const Placement*>& strategy,
                   const std::vector<std::vector<int>>& producers, int servers, int micro_batches) {
  const auto check = [](const char* field, int value, int64_t least, int64_t most) {
    if (value >= least && value <= most) return;
    throw std::invalid_argument(std::string(field) + ": " + std::to_string(value) + " is not in " +
                                std::to_string(least) + ".." + std::to_string(most));
  };
  check("servers", servers, 1, INT32_MAX);
  check("micro_batches", micro_batches, 1, INT32_MAX);
  const auto count = static_cast<int64_t>(strategy.size());
  if (producers.size() != strategy.size()) {
    throw std::invalid_argument("producers: " + std::to_string(producers.size()) + " entries for " +
                                std::to_string(count) + " operators");
  }
  for (const Placement* placement : strategy) {
    for (int server : placement->servers) check("strategy", server, 0, int64_t{servers} - 1);
  }
  for (const auto& of_one : producers) {
    for (int producer : of_one) check("producers", producer, 0, count - 1);
  }
}

}  // namespace

std::vector<int> microBatchesInFlight(const std::vector<const Placement*>& strategy,
                                      const std::vector<std::vector<int>>& producers, int servers,
                                      int micro_batches) {
  const int count = static_cast<int>(strategy.size());
  checkPipeline(strategy, producers, servers, micro_batches);
  std::vector<int> in_flight(count, 1);
  if (micro_batches == 1) return in_flight;
  const std::vector<int> of_server = stageOfServer(strategy, servers);
  const auto stageOf = [&](int op) { return of_server[strategy[op]->servers[0]]; };
  std::vector<std::vector<int>> before(servers);  // stages that a stage reads from
  std::vector<int> readers(servers, 0);
  for (int op = 0; op < count; ++op) {
    for (int producer : producers[op]) {
      const int stage = stageOf(op);
      const int earlier = stageOf(producer);
      if (earlier == stage) continue;
      if (std::find(before[stage].begin(), before[stage].end(), earlier) != before[stage].end()) {
        continue;
      }
      before[stage].push_back(earlier);
      ++readers[earlier];
    }
  }
  std::vector<int> from_end(servers, 1);
  std::vector<int> ready;
  for (int stage = 0; stage < servers; ++stage) {
    if (readers[stage] == 0) ready.push_back(stage);
  }
  for (size_t next = 0; next < ready.size(); ++next) {
    for (int earlier : before[ready[next]]) {
      from_end[earlier] = std::max(from_end[earlier], from_end[ready[next]] + 1);
      if (--readers[earlier] == 0) ready.push_back(earlier);
    }
  }
  if (ready.size() < static_cast<size_t>(servers)) {
    throw std::invalid_argument(
        "strategy: with micro-batches the stages of a pipeline (operators that share servers) must "
        "not wait for each other in a cycle");
  }
  for (int op = 0; op < count; ++op) in_flight[op] = std::min(micro_batches, from_end[stageOf(op)]);
  return in_flight;
}

}  // namespace topoopt
