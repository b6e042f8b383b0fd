#include "search/coarse/coarse_simulator.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace topoopt {

namespace {

constexpr int kSpacing = 8;           // steps between saved states
constexpr int kFewServers = 32;       // limit for modelling shared links of rings and transfers
constexpr int64_t kSumUpAgain = 512;  // accepted proposals before sums are recomputed

}  // namespace

CoarseSimulator::CoarseSimulator(std::shared_ptr<const Job> job, const RoutedNetwork& network)
    : job_(std::move(job)),
      costs_(job_),
      loads_(network, costs_),
      busy_(costs_, loads_),
      loops_(laneLoops()),
      operators_(static_cast<int>(job_->operators.size())),
      server_lanes_(padded(job_->servers)),
      link_lanes_(padded(network.capacity().size())),
      stretch_(job_->stretch()),
      in_edges_(job_->operators.size()),
      out_edges_(job_->operators.size()),
      which_(2 * job_->operators.size() * job_->micro_batches, 0),
      ready_s_(server_lanes_) {
  if (job_->servers != network.servers()) {
    throw std::invalid_argument("servers: the job has " + std::to_string(job_->servers) +
                                ", the network " + std::to_string(network.servers()));
  }
  addEdges();
  sortByDepth();
  state_.server_s.resize(server_lanes_);
  state_.transfer_s.resize(link_lanes_);
  state_.link_s.resize(link_lanes_);
  if (job_->servers <= kFewServers) sharing_.emplace(loads_);
  for (Side& side : sides_) {
    side.finish_s.resize(which_.size() * server_lanes_);
    side.arrive_s.resize(which_.size() * slots_);
    side.saved.assign(which_.size() / kSpacing + 1, state_);
  }
  base_loads_.resize(edges_.size());
  edge_proposal_.assign(edges_.size(), 0);
}

void CoarseSimulator::addEdges() {
  for (int op = 0; op < operators_; ++op) {
    for (const Operand& operand : job_->operators[op].operands) {
      const int edge = static_cast<int>(edges_.size());
      edges_.push_back({operand.producer, op, operand.size_bytes / job_->micro_batches,
                        operand.gradient_bytes / job_->micro_batches,
                        static_cast<int>(out_edges_[operand.producer].size()),
                        static_cast<int>(in_edges_[op].size()), 0});
      in_edges_[op].push_back(edge);
      out_edges_[operand.producer].push_back(edge);
      slots_ = std::max({slots_, in_edges_[op].size(), out_edges_[operand.producer].size()});
    }
  }
  for (const ReadTensor& tensor : costs_.tensors()) {
    auto& readers = readers_.emplace_back();
    for (const Reader& reader : tensor.readers) {
      const int edge = in_edges_[reader.op][reader.operand];
      edges_[edge].tensor = static_cast<int>(readers_.size()) - 1;
      double& gradient_bytes = edges_[edge].gradient_bytes;
      if (gradient_bytes > 0) gradient_bytes = tensor.gradient_bytes / job_->micro_batches;
      readers.push_back(edge);
    }
  }
}

// Sorts operators in issue order, and the readers of each tensor: first those with a gradient, the
// last to have it before the others.
void CoarseSimulator::sortByDepth() {
  const std::vector<int> depth = depths(*job_);
  by_depth_ = byDepth(depth);
  for (auto& readers : readers_) {
    std::stable_sort(readers.begin(), readers.end(), [&](int a, int b) {
      const bool a_stays = edges_[a].gradient_bytes == 0;
      const bool b_stays = edges_[b].gradient_bytes == 0;
      return std::pair(a_stays, depth[edges_[a].consumer]) <
             std::pair(b_stays, depth[edges_[b].consumer]);
    });
  }
}

// Among the readers with a gradient, the carrier is the last to have it.
void CoarseSimulator::shareReads(int tensor) {
  const std::vector<int>& edges = readers_[tensor];
  const auto opOf = [&](int reader) { return edges_[edges[reader]].consumer; };
  for (int reader = 0; reader < static_cast<int>(edges.size()); ++reader) {
    carrier_[edges[reader]] = edges[costs_.carrier(reader, strategy_, opOf)];
  }
}

double& CoarseSimulator::arrival(int edge, int batch, bool forward) {
  const Edge& ends = edges_[edge];
  const int step = at(forward ? ends.producer : ends.consumer, batch, forward);
  return sides_[side(step)].arrive_s[step * slots_ + (forward ? ends.out_slot : ends.in_slot)];
}

double CoarseSimulator::run(const std::vector<int>& strategy) {
  if (strategy.size() != job_->operators.size()) {
    throw std::invalid_argument("strategy: places " + std::to_string(strategy.size()) + " of " +
                                std::to_string(job_->operators.size()) + " operators");
  }
  for (int op = 0; op < operators_; ++op) costs_.shard(op, strategy[op]);  // throws
  changed_.clear();
  changed_edges_.clear();
  base_ = strategy_ = strategy;
  carrier_.resize(edges_.size());
  for (size_t tensor = 0; tensor < readers_.size(); ++tensor) shareReads(static_cast<int>(tensor));
  base_carrier_ = carrier_;
  edge_loads_.resize(edges_.size());
  for (size_t edge = 0; edge < edges_.size(); ++edge) priceEdge(static_cast<int>(edge));
  base_loads_ = edge_loads_;
  sumUp();
  if (order_ == nullptr || job_->micro_batches > 1) {
    order_ = base_order_ = stepOrder(costs_.inFlight(strategy), by_depth_, job_->micro_batches);
  }
  proposed_s_ = simulate(0, kInfinity);
  accept();
  return base_s_;
}

double CoarseSimulator::propose(const std::vector<int>& strategy, const std::vector<int>& changed,
                                double limit_s) {
  if (base_.empty()) throw std::logic_error("a proposal needs a base");
  choose(strategy, changed);
  first_step_ = end_step_ = 0;
  if (changed.empty()) return proposed_s_ = base_s_;
  if (fully_) {
    for (int edge : changed_edges_) priceEdge(edge);
  } else if (tooBusy(limit_s)) {
    full_steps_ += stepCount();
    return busy_.bound();
  }
  ++simulations_;
  order_ = base_order_;
  if (job_->micro_batches > 1) {
    std::vector<int> in_flight = costs_.inFlight(strategy_);
    if (in_flight != base_order_->in_flight)
      order_ = stepOrder(std::move(in_flight), by_depth_, job_->micro_batches);
  }
  if (fully_) return proposed_s_ = simulate(0, kInfinity);
  const bool same_steps = order_ == base_order_;
  return proposed_s_ = simulate(same_steps ? firstStep(changed) : 0, limit_s);
}

// Makes `strategy` the current one, undoes the last proposal, and finds which edges share the reads
// of `changed`. The surrounding edges are priced later.
void CoarseSimulator::choose(const std::vector<int>& strategy, const std::vector<int>& changed) {
  for (int op : changed_) strategy_[op] = base_[op];
  for (int edge : changed_edges_) {
    edge_loads_[edge] = base_loads_[edge];
    carrier_[edge] = base_carrier_[edge];
  }
  changed_ = changed;
  changed_edges_.clear();
  ++proposals_;
  for (int op : changed) {
    costs_.shard(op, strategy[op]);  // throws
    strategy_[op] = strategy[op];
    for (const auto* around : {&in_edges_[op], &out_edges_[op]}) {
      for (int edge : *around) {
        if (edge_proposal_[edge] == proposals_) continue;
        edge_proposal_[edge] = proposals_;
        changed_edges_.push_back(edge);
      }
    }
  }
  for (int op : changed) {
    for (int edge : in_edges_[op]) {
      const std::vector<int>& readers = readers_[edges_[edge].tensor];
      if (readers.size() == 1) continue;
      shareReads(edges_[edge].tensor);
      for (int other : readers) {
        if (carrier_[other] == base_carrier_[other] || edge_proposal_[other] == proposals_)
          continue;
        edge_proposal_[other] = proposals_;
        changed_edges_.push_back(other);
      }
    }
  }
}

void CoarseSimulator::priceEdge(int edge) {
  const Edge& ends = edges_[edge];
  edge_loads_[edge] =
      loads_.edge(ends.consumer, strategy_[ends.producer], strategy_[ends.consumer]);
}

// Adds the transfers of a tensor's carrier with these loads.
void CoarseSimulator::addBusy(int edge, const std::vector<std::shared_ptr<const EdgeLoads>>& loads,
                              const std::vector<int>& carrier, double times) {
  if (carrier[edge] != edge) return;
  busy_.send(loads[edge].get(), edges_[edge].size_bytes, edges_[edge].gradient_bytes, times);
}

// Returns whether a server or link is busy for longer than `limit_s`, in order of increasing
// effort. Prices changed edges until it is known.
bool CoarseSimulator::tooBusy(double limit_s) {
  busy_.propose();
  for (int op : changed_) busy_.compute(op, base_[op], -1);
  for (int op : changed_) busy_.compute(op, strategy_[op], 1);
  if (busy_.bound() > limit_s) return true;
  for (int op : changed_) busy_.reduce(op, base_[op], -1);
  for (int edge : changed_edges_) addBusy(edge, base_loads_, base_carrier_, -1);
  for (int op : changed_) busy_.reduce(op, strategy_[op], 1);
  for (int edge : changed_edges_) {
    if (busy_.bound() > limit_s) return true;
    priceEdge(edge);
    addBusy(edge, edge_loads_, carrier_, 1);
  }
  return busy_.bound() > limit_s;
}

// Recomputes the base's busy times, because proposals accumulate rounding errors.
void CoarseSimulator::sumUp() {
  busy_.clear();
  for (int op = 0; op < operators_; ++op) {
    busy_.compute(op, base_[op], 1);
    busy_.reduce(op, base_[op], 1);
  }
  for (size_t edge = 0; edge < edges_.size(); ++edge) {
    addBusy(static_cast<int>(edge), base_loads_, base_carrier_, 1);
  }
  busy_.accept();
}

void CoarseSimulator::accept() {
  for (int step = first_step_; step < end_step_; ++step) which_[step] ^= 1;
  for (int op : changed_) base_[op] = strategy_[op];
  for (int edge : changed_edges_) {
    base_loads_[edge] = edge_loads_[edge];
    base_carrier_[edge] = carrier_[edge];
  }
  base_order_ = order_;
  base_s_ = proposed_s_;
  first_step_ = end_step_ = 0;
  if (!changed_.empty() && !fully_) {
    busy_.accept();
    if (++accepted_ % kSumUpAgain == 0) sumUp();
  }
  changed_.clear();
  changed_edges_.clear();
}

// Returns the first changed step: of a changed operator, or of one that sends to it.
int CoarseSimulator::firstStep(const std::vector<int>& changed) const {
  int first = stepCount();
  for (int op : changed) {
    first = std::min(first, at(op, 0, true));
    for (int edge : in_edges_[op]) first = std::min(first, at(edges_[edge].producer, 0, true));
  }
  return first;
}

double CoarseSimulator::simulate(int first_step, double limit_s) {
  first_step_ = end_step_ = first_step / kSpacing * kSpacing;
  if (first_step_ == 0) {
    for (auto* times : {&state_.transfer_s, &state_.link_s}) {
      std::fill(times->begin(), times->end(), 0.0);
    }
    std::fill(state_.server_s.begin(), state_.server_s.end(), job_->overhead_s * stretch_);
    state_.reducing.links.clear();
    state_.reducing.until_s = 0;
    state_.buckets.clear();
    state_.end_s = 0;
  } else {
    state_ = sides_[side(first_step_ - 1)].saved[first_step_ / kSpacing];
  }
  full_steps_ += stepCount();
  end_step_ = stepCount();
  for (int step = first_step_; step < stepCount(); ++step) {
    if (step % kSpacing == 0 && step > first_step_) {
      sides_[side(step - 1)].saved[step / kSpacing] = state_;
      const double bound_s = lowerBound();
      if (bound_s > limit_s) return bound_s;
    }
    ++steps_simulated_;
    run(order_->steps[step]);
  }
  for (const Bucket& bucket : state_.buckets) {
    if (bucket.size_bytes > 0) {
      start(bucket.placement, bucket.size_bytes, bucket.ready_s, bucket.before_s);
    }
  }
  return lowerBound();
}

void CoarseSimulator::run(const OperatorStep& step) {
  const auto [op, batch, forward] = step;
  const int id = strategy_[op];
  const ShardCost& cost = costs_.shard(op, id);
  std::fill(ready_s_.begin(), ready_s_.end(), 0.0);
  double* done = finish(op, batch, forward);
  if (forward) {
    for (int edge : in_edges_[op]) takeReady(edge, batch, true);
    compute(done, id, cost.forward_s);
    for (int edge : out_edges_[op]) {
      if (carrier_[edge] == edge) send(edge, batch, true);
    }
    return;
  }
  for (int edge : out_edges_[op]) {
    if (edges_[edge].gradient_bytes > 0 && carrier_[edge] == edge) takeReady(edge, batch, false);
  }
  compute(done, id, cost.backward_s);
  const bool reduces = batch == job_->micro_batches - 1;
  if (reduces && sharing_) allReduce(op);  // before it is sent, so that transfers see it
  for (int edge : in_edges_[op]) {
    if (edges_[edge].gradient_bytes > 0 && carrier_[edge] == edge) send(edge, batch, false);
  }
  if (reduces && !sharing_) allReduce(op);
}

// Runs a shard on every server of placement `id`, after the server's earlier work and `ready_s_`.
void CoarseSimulator::compute(double* done, int id, double seconds) {
  loops_.compute(done, state_.server_s.data(), ready_s_.data(), loads_.members(id).data(),
                 seconds * stretch_, server_lanes_);
}

// Merges arrivals over an edge. Local data needs no check, because a server works in step order.
void CoarseSimulator::takeReady(int edge, int batch, bool forward) {
  const EdgeLoads* loads = edge_loads_[edge].get();
  if (loads == nullptr) return;
  const std::vector<double>& takes = forward ? loads->receives : loads->sends;
  const double arrived_s = arrival(carrier_[edge], batch, forward);
  loops_.wait(ready_s_.data(), takes.data(), arrived_s, server_lanes_);
}

void CoarseSimulator::send(int edge, int batch, bool forward) {
  const EdgeLoads* loads = edge_loads_[edge].get();
  if (loads == nullptr) return;
  const Edge& ends = edges_[edge];
  const double* from = finish(forward ? ends.producer : ends.consumer, batch, forward);
  const double ready_s =
      loops_.latest(from, (forward ? loads->sends : loads->receives).data(), server_lanes_);
  const LinkLoads& ways = forward ? loads->forward : loads->backward;
  const double size_bytes = forward ? ends.size_bytes : ends.gradient_bytes;
  arrival(edge, batch, forward) =
      size_bytes > 0 ? transfer(ways, size_bytes, ready_s) + ways.latency_s : ready_s;
}

// Returns when the last link has finished.
double CoarseSimulator::transfer(const LinkLoads& loads, double size_bytes, double ready_s) {
  double* transfers = state_.transfer_s.data();
  double* all = state_.link_s.data();
  if (ready_s < state_.reducing.until_s) {
    return sharing_->transfer(loads, size_bytes, ready_s, transfers, all, state_.reducing);
  }
  if (loads.link.empty()) {
    return loops_.transfer(transfers, all, loads.s_per_byte.data(), size_bytes, ready_s,
                           link_lanes_);
  }
  double done_s = ready_s;
  for (size_t i = 0; i < loads.link.size(); ++i) {
    const int link = loads.link[i];
    const double busy_s = loads.s_per_byte[i] * size_bytes;
    const double begin_s = std::max(transfers[link], ready_s);
    transfers[link] = begin_s + busy_s;
    all[link] = std::max(all[link], begin_s) + busy_s;
    done_s = std::max(done_s, begin_s + busy_s);
  }
  return done_s;
}

// Starts after all earlier AllReduces, with lower priority than transfers.
void CoarseSimulator::reduce(const LinkLoads& loads, double size_bytes, double ready_s) {
  double* all = state_.link_s.data();
  if (sharing_) {
    sharing_->reduce(loads, size_bytes, ready_s, state_.transfer_s.data(), all, state_.reducing);
  }
  double done_s = ready_s;
  if (!loads.link.empty()) {
    for (size_t i = 0; i < loads.link.size(); ++i) {
      double& link_s = all[loads.link[i]];
      link_s = std::max(link_s, ready_s) + loads.s_per_byte[i] * size_bytes;
      done_s = std::max(done_s, link_s);
    }
  } else {
    done_s = loops_.reduce(all, loads.s_per_byte.data(), size_bytes, ready_s, link_lanes_);
  }
  const double latency_s = loads.latency_s + size_bytes * loads.latency_s_per_byte;
  state_.end_s = std::max(state_.end_s, done_s + latency_s);
}

// Reduces all parameter groups together, when the last shard has its gradients.
void CoarseSimulator::allReduce(int op) {
  const int id = strategy_[op];
  const double bytes = costs_.reducedBytes(op, id);
  if (bytes == 0) return;
  if (loads_.reductions(id, bytes).empty() && job_->local_reduce_s_per_byte == 0) return;
  const double* gradients = finish(op, job_->micro_batches - 1, false);
  const double ready_s = loops_.latest(gradients, loads_.members(id).data(), server_lanes_);
  if (job_->buckets.perOperator()) {
    start(id, bytes, ready_s, 0);
  } else {
    fill(id, bytes, ready_s);
  }
}

// Adds gradients to the bucket of placement `id`, which starts when full.
void CoarseSimulator::fill(int id, double size_bytes, double ready_s) {
  std::vector<Bucket>& buckets = state_.buckets;
  auto bucket = std::find_if(buckets.begin(), buckets.end(),
                             [&](const Bucket& other) { return other.placement == id; });
  if (bucket == buckets.end()) bucket = buckets.insert(bucket, Bucket{id});
  bucket->size_bytes += size_bytes;
  bucket->ready_s = std::max(bucket->ready_s, ready_s);
  const GradientBuckets& rule = job_->buckets;
  if (bucket->size_bytes < (bucket->is_first ? rule.first_bytes : rule.cap_bytes)) return;
  start(id, bucket->size_bytes, bucket->ready_s, bucket->before_s);
  bucket->before_s = std::max(bucket->ready_s, bucket->before_s);
  bucket->size_bytes = 0;
  bucket->is_first = false;
}

void CoarseSimulator::start(int id, double size_bytes, double gradients_s, double before_s) {
  const double local_s = size_bytes * job_->local_reduce_s_per_byte;
  const double ready_s = std::max(gradients_s, before_s) + local_s;
  const LinkLoads& loads = loads_.reductions(id, size_bytes);
  if (loads.empty()) {
    state_.end_s = std::max(state_.end_s, ready_s);
  } else {
    reduce(loads, size_bytes, ready_s);
  }
}

// A lower bound from the steps so far, which only grow.
double CoarseSimulator::lowerBound() const {
  const double computed_s = loops_.largest(state_.server_s.data(), state_.end_s, server_lanes_);
  return loops_.largest(state_.link_s.data(), computed_s, link_lanes_);
}

}  // namespace topoopt
