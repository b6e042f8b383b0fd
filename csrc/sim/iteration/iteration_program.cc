#include "sim/iteration/iteration_program.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace topoopt {

IterationTasks::IterationTasks(std::shared_ptr<const Job> job, RoutedNetwork& network,
                               const std::vector<Placement>& strategy, RingSteps ring_steps)
    : job_(std::move(job)),
      ring_steps_(ring_steps),
      operators_(static_cast<int>(strategy.size())),
      network_(&network) {
  PlacementCosts costs(job_);
  const std::vector<int> ids = costs.intern(strategy);
  std::vector<int> themselves(job_->servers);
  std::iota(themselves.begin(), themselves.end(), 0);
  IterationSteps(costs, ids, themselves, *this).build();
  network_ = nullptr;
}

int IterationTasks::add(Step step) {
  steps_.push_back(step);
  return static_cast<int>(steps_.size()) - 1;
}

int IterationTasks::compute(int server, double seconds, int priority) {
  return add({TaskKind::kCompute, server, priority, seconds});
}

int IterationTasks::delay(double seconds) { return add({TaskKind::kDelay, -1, 0, seconds}); }

int IterationTasks::addFlow(int source, int target, double size_bytes, int cargo) {
  flows_.push_back({source, target, size_bytes, cargo});
  return add({TaskKind::kFlow, static_cast<int>(flows_.size()) - 1, 0, 0.0});
}

int IterationTasks::addCargo(RingCargo cargo) {
  if (cargoes_.empty() || cargoes_.back() != cargo) cargoes_.push_back(std::move(cargo));
  return static_cast<int>(cargoes_.size()) - 1;
}

int IterationTasks::transfer(int source, int target, double size_bytes, const Cargo& cargo) {
  return addFlow(source, target, size_bytes, addCargo({cargo, {}}));
}

// Adds consecutive iterations; a step may become several tasks, one per path of a flow.
class IterationTasks::Emitter {
 public:
  Emitter(const IterationTasks& tasks, FlowProgram& program,
          const std::vector<std::vector<WeightedPath>>& paths, std::span<const int> hosts)
      : tasks_(tasks),
        program_(program),
        paths_(paths),
        hosts_(hosts),
        first_task_(tasks.steps_.size() + 1) {
    waits_.assign(tasks_.steps_.size(), 0);
    waited_for_.assign(tasks_.steps_.size(), 0);
    for (const auto& [before, after] : tasks_.dependencies_) {
      waited_for_[before] = 1;
      waits_[after] = 1;
    }
  }

  // Adds an iteration after task `before` (-1: none); returns its last task.
  int iteration(std::span<const int> path_of_flow, int before) {
    path_of_flow_ = path_of_flow;
    const int steps = static_cast<int>(tasks_.steps_.size());
    for (int step = 0; step < steps; ++step) {
      first_task_[step] = program_.graph().size();
      addStep(tasks_.steps_[step]);
    }
    const int end = first_task_[steps] = program_.graph().size();
    program_.addDelay(0.0, where());
    for (const auto& [first, second] : tasks_.dependencies_) {
      for (int task = first_task_[second]; task < first_task_[second + 1]; ++task) {
        waitFor(first, task);
      }
    }
    for (int step = 0; step < steps; ++step) {
      if (!waited_for_[step]) waitFor(step, end);
      for (int task = first_task_[step];
           before >= 0 && !waits_[step] && task < first_task_[step + 1]; ++task) {
        program_.addDependency(before, task);
      }
    }
    if (before >= 0 && steps == 0) program_.addDependency(before, end);
    return end;
  }

  // Per task of the program.
  std::vector<int> cargoes() && {
    cargo_.resize(program_.graph().size(), -1);
    return std::move(cargo_);
  }

 private:
  FlowProgram::Where where() const {
    return [this] { return "tasks[" + std::to_string(program_.graph().size()) + "]"; };
  }

  const std::vector<WeightedPath>& pathsOf(int flow) const {
    const int number = path_of_flow_[flow];
    if (number < 0 || number >= static_cast<int>(paths_.size())) {
      throw std::invalid_argument("path_of_flow: " + std::to_string(number) + " is not in 0.." +
                                  std::to_string(static_cast<int64_t>(paths_.size()) - 1));
    }
    return paths_[number];
  }

  int hostOf(int server) const { return hosts_.empty() ? server : hosts_[server]; }

  void waitFor(int step, int task) {
    for (int before = first_task_[step]; before < first_task_[step + 1]; ++before) {
      program_.addDependency(before, task);
    }
  }

  void addStep(const Step& step) {
    if (step.kind == TaskKind::kCompute) {
      program_.addCompute(hostOf(step.resource), step.seconds, step.priority, where());
    } else if (step.kind == TaskKind::kDelay) {
      program_.addDelay(step.hops > 0 ? ringDelay(step) : step.seconds, where());
    } else {
      const TaskFlow& flow = tasks_.flows_[step.resource];
      for (const WeightedPath& path : pathsOf(step.resource)) {
        if (path.weight == 0) continue;
        program_.addFlow({program_.graph().size(), hostOf(flow.source), hostOf(flow.target),
                          flow.size_bytes * path.weight},
                         path.links, where());
        cargo_.resize(program_.graph().size(), -1);
        cargo_.back() = flow.cargo;
      }
    }
  }

  // The remaining latency of a ring or schedule after all its flows, each with its own latency,
  // have arrived.
  double ringDelay(const Step& step) const {
    std::vector<double> hop_s(step.hops, 0.0);
    for (int hop = 0; hop < step.hops; ++hop) {
      for (const WeightedPath& path : pathsOf(step.first_hop + hop)) {
        double latency_ns = 0;
        for (int link : path.links) latency_ns += program_.links()[link].latency_ns;
        hop_s[hop] = std::max(hop_s[hop], latency_ns * 1e-9);
      }
    }
    const double longest_s = *std::ranges::max_element(hop_s);
    if (step.schedule_steps > 0) return (step.schedule_steps - 1) * longest_s;
    const double latency_s = step.both ? ringLatency(hop_s) : lineLatency(hop_s);
    return std::max(0.0, latency_s - longest_s);
  }

  const IterationTasks& tasks_;
  FlowProgram& program_;
  const std::vector<std::vector<WeightedPath>>& paths_;
  std::span<const int> hosts_;
  std::span<const int> path_of_flow_;
  std::vector<int> first_task_;           // per step and at the end, of the current iteration
  std::vector<char> waits_, waited_for_;  // per step
  std::vector<int> cargo_;
};

AddedIterations IterationTasks::addTo(FlowProgram& program,
                                      const std::vector<std::vector<WeightedPath>>& paths,
                                      std::span<const int> path_of_flow, int iterations,
                                      std::span<const int> hosts) const {
  if (iterations < 1) {
    throw std::invalid_argument("iterations: " + std::to_string(iterations) + " is not at least 1");
  }
  if (path_of_flow.size() != flows_.size() * iterations) {
    throw std::invalid_argument("path_of_flow: " + std::to_string(path_of_flow.size()) +
                                " entries are not one for each of " +
                                std::to_string(flows_.size()) + " flows of " +
                                std::to_string(iterations) + " iterations");
  }
  if (!hosts.empty() && static_cast<int>(hosts.size()) != job_->servers) {
    throw std::invalid_argument("hosts: " + std::to_string(hosts.size()) +
                                " are not one for each of " + std::to_string(job_->servers) +
                                " servers");
  }
  program.setHostsAtOnce(job_->servers_at_once);
  Emitter emitter(*this, program, paths, hosts);
  AddedIterations added;
  for (int i = 0; i < iterations; ++i) {
    added.ends.push_back(emitter.iteration(path_of_flow.subspan(i * flows_.size(), flows_.size()),
                                           i == 0 ? -1 : added.ends.back()));
  }
  added.cargo_of_task = std::move(emitter).cargoes();
  return added;
}

}  // namespace topoopt
