#include "search/coarse/step_order.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace topoopt {

std::vector<int> depths(const Job& job) {
  std::vector<int> depth(job.operators.size(), 0);
  for (size_t op = 0; op < job.operators.size(); ++op) {  // producers precede consumers
    for (const Operand& operand : job.operators[op].operands) {
      depth[op] = std::max(depth[op], depth[operand.producer] + 1);
    }
  }
  return depth;
}

std::vector<int> byDepth(const std::vector<int>& depth) {
  std::vector<int> order(depth.size());
  for (size_t op = 0; op < depth.size(); ++op) order[op] = static_cast<int>(op);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return depth[a] < depth[b]; });
  return order;
}

// Time slots of a pipeline with equal stages. Stage d from the end (counted from 1) of D runs its
// first d forward passes from slot D - d on. After that it alternates forward and backward passes.
std::shared_ptr<const StepOrder> stepOrder(std::vector<int> in_flight,
                                           const std::vector<int>& by_depth, int micro_batches) {
  const int operators = static_cast<int>(by_depth.size());
  const int stages = *std::max_element(in_flight.begin(), in_flight.end());
  std::vector<std::tuple<int, int, OperatorStep>> slots;  // slot, order within it
  for (int batch = 0; batch < micro_batches; ++batch) {
    for (int i = 0; i < operators; ++i) {
      const int op = by_depth[i];
      const int stage = stages - in_flight[op];
      const int forward = batch < in_flight[op] ? stage + batch : stage + 2 * batch;
      slots.push_back({forward, i, {op, batch, true}});
      slots.push_back({2 * stages - 1 - stage + 2 * batch, operators - i, {op, batch, false}});
    }
  }
  std::sort(slots.begin(), slots.end());
  auto made = std::make_shared<StepOrder>();
  made->in_flight = std::move(in_flight);
  made->at.resize(slots.size());
  for (const auto& [slot, place, step] : slots) {
    made->at[2 * (step.batch * operators + step.op) + (step.forward ? 0 : 1)] =
        static_cast<int>(made->steps.size());
    made->steps.push_back(step);
  }
  return made;
}

}  // namespace topoopt
