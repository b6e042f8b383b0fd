#include "sim/flow/ring_transfers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace topoopt {

namespace {

constexpr double kSent = 1e-9;  // fraction of a flow's bytes tolerated as rounding at its end

}  // namespace

RingTransfers::RingTransfers(std::vector<double> capacity) : capacity_(std::move(capacity)) {
  for (double rate : capacity_) {
    if (!(rate > 0) || !std::isfinite(rate)) {
      throw std::invalid_argument("capacity: " + std::to_string(rate) + " is not above 0");
    }
  }
}

int RingTransfers::start(std::vector<LinkPath> hops, double size_bytes, int rounds) {
  check(hops);
  if (!(size_bytes > 0) || !std::isfinite(size_bytes)) {
    throw std::invalid_argument("size_bytes: " + std::to_string(size_bytes) + " is not above 0");
  }
  if (rounds < 1) {
    throw std::invalid_argument("rounds: " + std::to_string(rounds) + " is not at least 1");
  }
  Ring ring{.hops = std::vector<Hop>(hops.size()),
            .size_bytes = size_bytes,
            .rounds_left = rounds,
            .sending = 0,
            .round_began_s = now_,
            .ended = {}};
  for (size_t i = 0; i < hops.size(); ++i) {
    ring.hops[i].links = std::move(hops[i]);
    ring.hops[i].left_bytes = size_bytes;
  }
  ring.sending = static_cast<int>(ring.hops.size());
  const int number = static_cast<int>(rings_.size());
  rings_.push_back(std::move(ring));
  active_.push_back(number);
  is_outdated_ = true;
  return number;
}

void RingTransfers::reroute(int ring, std::vector<LinkPath> hops) {
  Ring& changed = rings_[&ringOf(ring) - rings_.data()];
  check(hops);
  if (changed.rounds_left == 0 || hops.size() != changed.hops.size()) {
    throw std::invalid_argument("ring: " + std::to_string(ring) + " has " +
                                std::to_string(changed.rounds_left ? changed.hops.size() : 0) +
                                " hops, not " + std::to_string(hops.size()));
  }
  for (size_t i = 0; i < hops.size(); ++i) changed.hops[i].links = std::move(hops[i]);
  is_outdated_ = true;
}

std::vector<int> RingTransfers::advance(double until_s) {
  std::vector<int> ended;
  if (is_outdated_) rebuild();
  while (ended.empty() && now_ < until_s) {
    const double next_s = nextEnd();
    const bool is_last = now_ + next_s >= until_s;
    if (is_last && !std::isfinite(until_s)) break;  // no flow will send again
    send(is_last ? until_s - now_ : next_s);
    now_ = is_last ? until_s : now_ + next_s;
    bool changed = false;
    for (int number : active_) {
      Ring& ring = rings_[number];
      changed |= endFlows(ring);
      if (ring.sending > 0) continue;
      if (--ring.rounds_left > 0) {
        beginRound(ring);
      } else {
        ended.push_back(number);
      }
    }
    if (changed) rates_->solve();
    if (is_last) break;
  }
  std::erase_if(active_, [&](int number) { return rings_[number].rounds_left == 0; });
  std::sort(ended.begin(), ended.end());
  return ended;
}

void RingTransfers::check(const std::vector<LinkPath>& hops) const {
  if (hops.empty()) throw std::invalid_argument("hops: a ring has at least one");
  for (const LinkPath& links : hops) {
    if (links.empty()) throw std::invalid_argument("hops: a path has at least one link");
    for (int link : links) {
      if (link < 0 || link >= static_cast<int>(capacity_.size())) {
        throw std::invalid_argument("hops: there is no link " + std::to_string(link));
      }
    }
  }
}

const RingTransfers::Ring& RingTransfers::ringOf(int ring) const {
  if (ring < 0 || ring >= static_cast<int>(rings_.size())) {
    throw std::invalid_argument("ring: there is no number " + std::to_string(ring));
  }
  return rings_[ring];
}

void RingTransfers::rebuild() {
  auto table = std::make_unique<PathTable>();
  std::map<LinkPath, int> known;  // flows over the same links are one path with a count
  for (int number : active_) {
    for (Hop& hop : rings_[number].hops) {
      const auto [place, is_new] = known.try_emplace(hop.links, table->size());
      if (is_new) {
        std::vector<LinkUse> uses;
        for (int link : hop.links) uses.push_back({link, 1.0});
        table->add(std::move(uses));
      }
      hop.path = place->second;
    }
  }
  rates_ = std::make_unique<MaxMinRates>(capacity_, *table);
  table_ = std::move(table);
  for (int number : active_) {
    for (const Hop& hop : rings_[number].hops) {
      if (hop.sends) rates_->change(hop.path, 1);
    }
  }
  rates_->solveAnew();
  is_outdated_ = false;
}

double RingTransfers::nextEnd() const {
  double next_s = std::numeric_limits<double>::infinity();
  for (int number : active_) {
    for (const Hop& hop : rings_[number].hops) {
      if (hop.sends) next_s = std::min(next_s, hop.left_bytes / rates_->rate(hop.path));
    }
  }
  return next_s;
}

void RingTransfers::send(double seconds) {
  for (int number : active_) {
    for (Hop& hop : rings_[number].hops) {
      if (hop.sends) hop.left_bytes -= rates_->rate(hop.path) * seconds;
    }
  }
}

bool RingTransfers::endFlows(Ring& ring) {
  bool any = false;
  for (Hop& hop : ring.hops) {
    if (!hop.sends || hop.left_bytes > kSent * ring.size_bytes) continue;
    const double took_s = now_ - ring.round_began_s;
    hop.sends = false;
    --ring.sending;
    ++ring.ended.count;
    ring.ended.seconds += took_s;
    ring.ended.bytes_per_s += ring.size_bytes / took_s;
    ring.ended.bytes += ring.size_bytes - hop.left_bytes;
    rates_->change(hop.path, -1);
    any = true;
  }
  return any;
}

void RingTransfers::beginRound(Ring& ring) {
  ring.round_began_s = now_;
  ring.sending = static_cast<int>(ring.hops.size());
  for (Hop& hop : ring.hops) {
    hop.left_bytes = ring.size_bytes;
    hop.sends = true;
    rates_->change(hop.path, 1);
  }
}

}  // namespace topoopt
