// Bindings of the search over strategies, for torch_topoopt.search.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind/iteration.h"
#include "search/chains/descent.h"
#include "search/chains/iteration_prices.h"
#include "search/chains/metropolis_chain.h"
#include "search/coarse/coarse_simulator.h"

namespace py = pybind11;

namespace topoopt {
namespace {

using Placed = std::vector<plan::Placement>;  // per operator

// The coarse simulator for placements instead of ids: a whole strategy first, then changes of the
// previous one.
class PlacedSimulator {
 public:
  PlacedSimulator(std::shared_ptr<Job> job, const std::shared_ptr<RoutedNetwork>& network)
      : simulator_(std::move(job), *network) {}

  double run(const Placed& strategy) {
    base_ = intern(strategy);
    return simulator_.run(base_);
  }

  // With `keep`, the proposal becomes the base.
  double propose(const Placed& strategy, bool keep) {
    const Strategy proposal = intern(strategy);
    if (proposal.size() != base_.size()) {
      throw std::invalid_argument("strategy: run one of as many operators first");
    }
    std::vector<int> changed;
    for (size_t op = 0; op < proposal.size(); ++op) {
      if (proposal[op] != base_[op]) changed.push_back(static_cast<int>(op));
    }
    const double seconds =
        simulator_.propose(proposal, changed, std::numeric_limits<double>::infinity());
    if (keep) {
      simulator_.accept();
      base_ = proposal;
    }
    return seconds;
  }

  const CoarseSimulator& simulator() const { return simulator_; }

 private:
  Strategy intern(const Placed& strategy) { return simulator_.costs().intern(strategy); }

  CoarseSimulator simulator_;
  Strategy base_;
};

// One strategy in IterationPrices.
class Known {
 public:
  Known(IterationPrices& prices, const Placed& strategy)
      : prices_(prices), placements_(prices.servers()) {
    for (const plan::Placement& placement : strategy) {
      strategy_.push_back(placements_.intern(placement));
    }
  }

  std::optional<double> find() {
    const auto price = prices_.find(strategy_, placements_, numbers_);
    return price ? std::optional(price->seconds) : std::nullopt;
  }
  void add(IterationPrices::Price price) { prices_.add(strategy_, placements_, numbers_, price); }

 private:
  IterationPrices& prices_;
  Placements placements_;
  Strategy strategy_;
  std::vector<int> numbers_;
};

void bindSpaceAndPrices(py::module_& module) {
  py::class_<SearchSpace>(
      module, "SearchSpace",
      "Numbers of placements in groups, by ways of splitting; per operator which of these, and its "
      "kind.")
      .def(py::init<std::vector<plan::Placement>, std::vector<PlacementGroups>, std::vector<int>,
                    std::vector<int>>(),
           py::arg("placements"), py::arg("spaces"), py::arg("space_of_operator"),
           py::arg("kind_of_operator"));
  py::class_<IterationPrices, std::shared_ptr<IterationPrices>>(
      module, "IterationPrices",
      "Prices at flow level of one job on one network, shared by all who simulate there.")
      .def(py::init<int>(), py::arg("servers"))
      .def(
          "find",
          [](IterationPrices& prices, const Placed& strategy) {
            return Known(prices, strategy).find();
          },
          py::arg("strategy"), "Its seconds; None where it has not been simulated.")
      .def(
          "add",
          [](IterationPrices& prices, const Placed& strategy, double seconds, int tasks) {
            Known(prices, strategy).add({seconds, tasks});
          },
          py::arg("strategy"), py::arg("seconds"), py::arg("tasks"))
      .def("__len__", &IterationPrices::size);
}

void bindFlowChain(py::module_& module) {
  const py::call_guard<py::gil_scoped_release> released;
  py::class_<FlowChain>(module, "StrategySearch",
                        "A Markov chain over strategies, priced at flow level.")
      .def(py::init([](std::shared_ptr<Job> job, std::shared_ptr<RoutedNetwork> network,
                       const SearchSpace& space, const std::vector<Placed>& starts,
                       int64_t memory_limit_bytes, int64_t max_transfers, uint64_t seed,
                       double beta, std::shared_ptr<IterationPrices> prices, double slack) {
             return std::make_unique<FlowChain>(
                 std::make_unique<FlowPricing>(std::move(job), std::move(network),
                                               std::move(prices), slack),
                 space, starts, memory_limit_bytes, max_transfers, seed, beta);
           }),
           py::arg("job").none(false), py::arg("network").none(false), py::arg("space"),
           py::arg("starts"), py::arg("memory_limit_bytes"), py::arg("max_transfers"),
           py::arg("seed"), py::arg("beta"), py::arg("prices").none(false),
           py::arg("slack") = std::numeric_limits<double>::infinity())
      .def("step", &FlowChain::step, py::arg("evaluations"), released)
      .def("best", [](const FlowChain& chain) { return chain.best(1)[0].second; })
      .def_property_readonly("evaluations", &FlowChain::evaluations)
      .def_property_readonly("accepted", &FlowChain::accepted)
      .def_property_readonly("simulations",
                             [](const FlowChain& chain) { return chain.pricing().simulations(); })
      .def_property_readonly("tasks",
                             [](const FlowChain& chain) { return chain.pricing().tasks(); })
      .def_property_readonly("current_s", &FlowChain::currentSeconds)
      .def_property_readonly("best_s", &FlowChain::bestSeconds);
}

void bindDescent(py::module_& module) {
  const py::call_guard<py::gil_scoped_release> released;
  py::class_<Descent>(module, "Descent", "Downhill from one strategy, priced at flow level.")
      .def(py::init([](std::shared_ptr<Job> job, std::shared_ptr<RoutedNetwork> network,
                       const SearchSpace& space, const Placed& start, int64_t memory_limit_bytes,
                       int64_t max_transfers, std::shared_ptr<IterationPrices> prices) {
             return std::make_unique<Descent>(
                 std::make_unique<FlowPricing>(std::move(job), std::move(network),
                                               std::move(prices), /*slack=*/0),
                 space, start, memory_limit_bytes, max_transfers);
           }),
           py::arg("job").none(false), py::arg("network").none(false), py::arg("space"),
           py::arg("start"), py::arg("memory_limit_bytes"), py::arg("max_transfers"),
           py::arg("prices").none(false))
      .def("step", &Descent::step, py::arg("evaluations"), py::arg("slack"), released)
      .def("step_blocks", &Descent::stepBlocks, py::arg("evaluations"), py::arg("slack"), released)
      .def("best", &Descent::best)
      .def_property_readonly("done", &Descent::done)
      .def_property_readonly("blocks_done", &Descent::blocksDone)
      .def_property_readonly("evaluations", &Descent::evaluations)
      .def_property_readonly("simulations",
                             [](const Descent& descent) { return descent.pricing().simulations(); })
      .def_property_readonly("tasks",
                             [](const Descent& descent) { return descent.pricing().tasks(); })
      .def_property_readonly("best_s", &Descent::bestSeconds);
}

void bindCoarseChain(py::module_& module) {
  const py::call_guard<py::gil_scoped_release> released;
  py::class_<CoarseChain>(module, "CoarseChain",
                          "A Markov chain over strategies, priced by the coarse simulator.")
      .def(py::init([](std::shared_ptr<Job> job, const std::shared_ptr<RoutedNetwork>& network,
                       const SearchSpace& space, const std::vector<Placed>& starts,
                       int64_t memory_limit_bytes, int64_t max_transfers, uint64_t seed,
                       double beta) {
             return std::make_unique<CoarseChain>(
                 std::make_unique<CoarseSimulator>(std::move(job), *network), space, starts,
                 memory_limit_bytes, max_transfers, seed, beta);
           }),
           py::arg("job").none(false), py::arg("network").none(false), py::arg("space"),
           py::arg("starts"), py::arg("memory_limit_bytes"), py::arg("max_transfers"),
           py::arg("seed"), py::arg("beta"))
      .def("step", &CoarseChain::step, py::arg("evaluations"), released)
      .def("cool", &CoarseChain::cool, py::arg("evaluations"), py::arg("times"),
           "Over the next `evaluations`, beta grows to `times` what it is.")
      .def(
          "simulate_fully", [](CoarseChain& chain) { chain.pricing().simulateFully(); },
          "From now on, every proposal from start to end; the chain goes the same way.")
      .def("best", &CoarseChain::best, py::arg("count"), "The best first, each with its seconds.")
      .def_property_readonly("evaluations", &CoarseChain::evaluations)
      .def_property_readonly("accepted", &CoarseChain::accepted)
      .def_property_readonly("simulations",
                             [](const CoarseChain& chain) { return chain.pricing().simulations(); })
      .def_property_readonly("current_s", &CoarseChain::currentSeconds)
      .def_property_readonly("best_s", &CoarseChain::bestSeconds)
      .def_property_readonly(
          "steps_simulated",
          [](const CoarseChain& chain) { return chain.pricing().stepsSimulated(); })
      .def_property_readonly("full_steps",
                             [](const CoarseChain& chain) { return chain.pricing().fullSteps(); });
}

void bindCoarseSimulator(py::module_& module) {
  py::class_<PlacedSimulator>(
      module, "CoarseSimulator",
      "The coarse simulator: strategies priced from the start, or as changes "
      "of the one before.")
      .def(py::init<std::shared_ptr<Job>, const std::shared_ptr<RoutedNetwork>&>(),
           py::arg("job").none(false), py::arg("network").none(false))
      .def("run", &PlacedSimulator::run, py::arg("strategy"))
      .def("propose", &PlacedSimulator::propose, py::arg("strategy"), py::arg("keep") = false)
      .def_property_readonly(
          "steps_simulated",
          [](const PlacedSimulator& bound) { return bound.simulator().stepsSimulated(); })
      .def_property_readonly(
          "full_steps", [](const PlacedSimulator& bound) { return bound.simulator().fullSteps(); });
}

}  // namespace

void bindSearch(py::module_& module) {
  bindSpaceAndPrices(module);
  bindFlowChain(module);
  bindDescent(module);
  bindCoarseChain(module);
  bindCoarseSimulator(module);
  module.def("acceptance_probability", &acceptanceProbability, py::arg("current_s"),
             py::arg("proposed_s"), py::arg("beta"));
}

}  // namespace topoopt
