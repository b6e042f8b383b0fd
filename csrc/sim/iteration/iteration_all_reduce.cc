// AllReduces of IterationTasks: on rings, along rows and columns of a grid, or over links.

#include <set>
#include <utility>

#include "plan/torus_lines.h"
#include "sim/iteration/iteration_program.h"

namespace topoopt {

void IterationTasks::allReduce(const std::vector<int>& servers, double size_bytes, int after,
                               const Cargo& cargo) {
  const plan::Grid grid = network_->grid(servers);
  if (grid.empty() && !network_->hasSchedules()) {
    onRings(network_->rings(servers), size_bytes, after, cargo);
    return;
  }
  const AllReduceFlows& chosen = network_->allReduce(servers, size_bytes);
  if (const double wait_s = chosen.waitSeconds(size_bytes); wait_s > 0) {
    const int wait = delay(wait_s);
    dependency(after, wait);
    after = wait;
  }
  for (size_t number = 0; number < chosen.parts.size(); ++number) {
    torusPart(grid, number, size_bytes, after, cargo);
  }
  if (chosen.schedule != nullptr) {
    const bool is_direct = !chosen.schedule->over_routes;
    for (const LinkPass& pass : chosen.schedule->passes) {
      after = messages(pass, is_direct, size_bytes, after, cargo);
    }
  }
  onRings(chosen.rings, size_bytes, after, cargo);
}

void IterationTasks::onRings(const std::vector<plan::Ring>& rings, double size_bytes, int after,
                             const Cargo& cargo) {
  for (const plan::Ring& ring : rings) {
    const double k = static_cast<double>(ring.servers.size());
    const bool together = ring_steps_ == RingSteps::kTogether;
    Round round{ring.servers, true, 2 * (k - 1) / k * ring.share * size_bytes, 0};
    round.cargo = addCargo({cargo, ring.servers, false, together ? round.steps() : 1});
    if (together) {
      atOnce(round, after);
      continue;
    }
    Arrived before, last;
    for (int server : ring.servers) before[server] = after;
    inSteps(round, before, last);
    if (ring_steps_ == RingSteps::kChained) barrier(last);
  }
}

// Returns a step that depends on all of them.
int IterationTasks::barrier(const Arrived& arrived) {
  const int end = delay(0.0);
  std::set<int> steps;
  for (const auto& [server, step] : arrived) steps.insert(step);
  for (const int step : steps) dependency(step, end);
  return end;
}

// Returns the final step.
int IterationTasks::messages(const LinkPass& pass, bool is_direct, double size_bytes, int after,
                             const Cargo& cargo) {
  const int number = addCargo({cargo, {}, false, pass.steps});
  const int first = static_cast<int>(flows_.size());
  const int count = static_cast<int>(pass.sends.size());
  const int end = static_cast<int>(steps_.size()) + count;  // the delay that follows all flows
  for (const LinkShare& send : pass.sends) {
    const int flow = addFlow(send.source, send.target, send.share * size_bytes, number);
    flows_.back().is_direct = is_direct ? 1 : 0;
    dependency(after, flow);
    dependency(flow, end);
  }
  return add({TaskKind::kDelay, -1, 0, 0.0, first, count, false, pass.steps});
}

// Returns the final step.
int IterationTasks::atOnce(const Round& round, int after) {
  const int hops = static_cast<int>(round.order.size());
  const int first_hop = static_cast<int>(flows_.size());
  const int first_step = static_cast<int>(steps_.size());
  for (int i = 0; i < hops; ++i) {
    dependency(after,
               addFlow(round.order[i], round.order[(i + 1) % hops], round.hop_bytes, round.cargo));
  }
  const int end = add({TaskKind::kDelay, -1, 0, 0.0, first_hop, hops, round.both});
  for (int hop = first_step; hop < end; ++hop) dependency(hop, end);
  return end;
}

// Every server of the order depends on `before`; its last arrivals are written to `after`.
void IterationTasks::inSteps(const Round& round, const Arrived& before, Arrived& after) {
  const int k = static_cast<int>(round.order.size());
  const int count = round.steps();
  std::vector<int> last;  // each hop's flow in the previous step
  int all = -1;           // barrier after the previous step, if any
  for (int number = 0; number < count; ++number) {
    std::vector<int> now(k);
    for (int i = 0; i < k; ++i) {
      now[i] =
          addFlow(round.order[i], round.order[(i + 1) % k], round.hop_bytes / count, round.cargo);
      if (last.empty()) {
        dependency(before.at(round.order[i]), now[i]);
      } else if (ring_steps_ == RingSteps::kBarrier) {
        dependency(all, now[i]);
      } else {
        dependency(last[i], now[i]);
        dependency(last[(i + k - 1) % k], now[i]);
      }
    }
    last = std::move(now);
    if (ring_steps_ == RingSteps::kBarrier) {
      all = delay(0.0);
      for (const int flow : last) dependency(flow, all);
    }
  }
  for (int i = 0; i < k; ++i) {
    after[round.order[(i + 1) % k]] = all < 0 ? last[i] : all;
  }
}

// Scatters along the first lines, reduces along the second, gathers along the first. With steps, a
// server starts the next phase when its data has arrived.
void IterationTasks::torusPart(const plan::Grid& grid, size_t number, double size_bytes, int after,
                               const Cargo& cargo) {
  const TorusLines lines = torusLines(grid, number);
  const auto [first, second] = torusShares(lines);
  const bool together = ring_steps_ == RingSteps::kTogether;
  Arrived arrived;
  for (const std::vector<int>& line : lines.first) {
    for (int server : line) arrived[server] = after;
  }
  for (int phase = 0; phase < 3; ++phase) {
    const bool between = phase == 1;
    Arrived next;
    for (const std::vector<int>& line : between ? lines.second : lines.first) {
      Round round{line, between, (between ? second : first) * size_bytes, 0};
      round.cargo = addCargo({cargo, line, true, together ? round.steps() : 1});
      if (together) {
        const int end = atOnce(round, arrived.begin()->second);
        for (int server : line) next[server] = end;
      } else {
        inSteps(round, arrived, next);
      }
    }
    arrived = std::move(next);
    if (together || ring_steps_ == RingSteps::kBarrier || phase == 2) {
      const int end = barrier(arrived);
      for (auto& [server, step] : arrived) step = end;
    }
  }
}

}  // namespace topoopt
