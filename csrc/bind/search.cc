// The search over strategies for Python. torch_topoopt.search is the front.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind/iteration.h"
#include "search/coarse_simulator.h"
#include "search/metropolis_chain.h"

namespace py = pybind11;

namespace topoopt {
namespace {

using PyStrategy = std::vector<PyPlacement>;
using PySpaces = std::vector<std::vector<PyStrategy>>;

SearchSpace toSpace(const PySpaces& spaces, const std::vector<int>& space_of_operator) {
  SearchSpace space{{}, space_of_operator};
  for (const auto& groups : spaces) {
    auto& made = space.spaces.emplace_back();
    for (const PyStrategy& group : groups) made.push_back(toStrategy(group));
  }
  return space;
}

std::vector<std::vector<Placement>> toStrategies(const std::vector<PyStrategy>& strategies) {
  std::vector<std::vector<Placement>> made;
  for (const PyStrategy& strategy : strategies) made.push_back(toStrategy(strategy));
  return made;
}

PyStrategy fromStrategy(const std::vector<Placement>& strategy) {
  PyStrategy made;
  for (const Placement& placement : strategy) made.push_back(fromPlacement(placement));
  return made;
}

// Prices strategies as they come: the first from the start, others as changes of the one before.
class StrategyPrices {
 public:
  StrategyPrices(std::shared_ptr<Job> job, const std::shared_ptr<RoutedNetwork>& network)
      : simulator_(std::move(job), *network) {}

  double run(const PyStrategy& strategy) {
    base_ = intern(strategy);
    return simulator_.run(base_);
  }

  // Keeps the proposal as the base where `keep` says so.
  double propose(const PyStrategy& strategy, bool keep) {
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
  Strategy intern(const PyStrategy& strategy) {
    Strategy ids;
    for (const Placement& placement : toStrategy(strategy)) {
      ids.push_back(simulator_.costs().placements().intern(placement));
    }
    return ids;
  }

  CoarseSimulator simulator_;
  Strategy base_;
};

}  // namespace

void bindSearch(py::module_& module) {
  const py::call_guard<py::gil_scoped_release> released;
  py::class_<SearchSpace>(module, "SearchSpace")
      .def(py::init(&toSpace), py::arg("spaces"), py::arg("space_of_operator"));
  py::class_<FlowChain>(module, "StrategySearch")
      .def(py::init([](std::shared_ptr<Job> job, std::shared_ptr<RoutedNetwork> network,
                       const SearchSpace& space, const std::vector<PyStrategy>& starts,
                       int64_t memory_limit_bytes, int64_t max_transfers, uint64_t seed,
                       double beta) {
             return std::make_unique<FlowChain>(
                 std::make_unique<FlowPricing>(std::move(job), std::move(network)), space,
                 toStrategies(starts), memory_limit_bytes, max_transfers, seed, beta);
           }),
           py::arg("job").none(false), py::arg("network").none(false), py::arg("space"),
           py::arg("starts"), py::arg("memory_limit_bytes"), py::arg("max_transfers"),
           py::arg("seed"), py::arg("beta"))
      .def("step", &FlowChain::step, py::arg("evaluations"), released)
      .def("best", [](const FlowChain& chain) { return fromStrategy(chain.best(1)[0].second); })
      .def_property_readonly("evaluations", &FlowChain::evaluations)
      .def_property_readonly("accepted", &FlowChain::accepted)
      .def_property_readonly("simulations",
                             [](const FlowChain& chain) { return chain.pricing().simulations(); })
      .def_property_readonly("tasks",
                             [](const FlowChain& chain) { return chain.pricing().tasks(); })
      .def_property_readonly("current_s", &FlowChain::currentSeconds)
      .def_property_readonly("best_s", &FlowChain::bestSeconds);
  py::class_<CoarseChain>(module, "CoarseChain")
      .def(py::init([](std::shared_ptr<Job> job, const std::shared_ptr<RoutedNetwork>& network,
                       const SearchSpace& space, const std::vector<PyStrategy>& starts,
                       int64_t memory_limit_bytes, int64_t max_transfers, uint64_t seed,
                       double beta) {
             return std::make_unique<CoarseChain>(
                 std::make_unique<CoarseSimulator>(std::move(job), *network), space,
                 toStrategies(starts), memory_limit_bytes, max_transfers, seed, beta);
           }),
           py::arg("job").none(false), py::arg("network").none(false), py::arg("space"),
           py::arg("starts"), py::arg("memory_limit_bytes"), py::arg("max_transfers"),
           py::arg("seed"), py::arg("beta"))
      .def("step", &CoarseChain::step, py::arg("evaluations"), released)
      .def("cool", &CoarseChain::cool, py::arg("evaluations"), py::arg("times"))
      .def("simulate_fully", [](CoarseChain& chain) { chain.pricing().simulateFully(); })
      .def(
          "best",
          [](const CoarseChain& chain, int count) {
            std::vector<std::pair<double, PyStrategy>> found;
            for (const auto& [seconds, strategy] : chain.best(count)) {
              found.emplace_back(seconds, fromStrategy(strategy));
            }
            return found;
          },
          py::arg("count"))
      .def_property_readonly("evaluations", &CoarseChain::evaluations)
      .def_property_readonly("accepted", &CoarseChain::accepted)
      .def_property_readonly("simulations",
                             [](const CoarseChain& chain) { return chain.pricing().simulations(); })
      .def_property_readonly("current_s", &CoarseChain::currentSeconds)
      .def_property_readonly("best_s", &CoarseChain::bestSeconds)
      .def_property_readonly(
          "steps_simulated",
          [](const CoarseChain& chain) { return chain.pricing().stepsSimulated(); })
      .def_property_readonly("steps_asked",
                             [](const CoarseChain& chain) { return chain.pricing().stepsAsked(); });
  py::class_<StrategyPrices>(module, "StrategyPrices")
      .def(py::init<std::shared_ptr<Job>, const std::shared_ptr<RoutedNetwork>&>(),
           py::arg("job").none(false), py::arg("network").none(false))
      .def("run", &StrategyPrices::run, py::arg("strategy"))
      .def("propose", &StrategyPrices::propose, py::arg("strategy"), py::arg("keep") = false)
      .def_property_readonly(
          "steps_simulated",
          [](const StrategyPrices& prices) { return prices.simulator().stepsSimulated(); })
      .def_property_readonly("steps_asked", [](const StrategyPrices& prices) {
        return prices.simulator().stepsAsked();
      });
  module.def("acceptance_probability", &acceptanceProbability, py::arg("current_s"),
             py::arg("proposed_s"), py::arg("beta"));
}

}  // namespace topoopt
