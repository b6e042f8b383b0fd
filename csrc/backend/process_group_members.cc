// Members of the process group: who has joined, and groups of some members.

#include <algorithm>
#include <utility>

#include "backend/process_group.h"
#include "common/joined.h"

namespace topoopt {
namespace {

constexpr char kPassed[] = "passed";

std::vector<uint8_t> bytesOfText(const std::string& text) { return {text.begin(), text.end()}; }

// Returns whether all keys appear before the time limit.
bool waitFor(c10d::Store& store, const std::vector<std::string>& keys,
             std::chrono::milliseconds limit) {
  // Some stores treat a limit of zero as infinite.
  if (limit <= std::chrono::milliseconds::zero()) return store.check(keys);
  try {
    store.wait(keys, limit);
    return true;
  } catch (const std::exception&) {
    return store.check(keys);  // raises if the store itself has failed
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupTopoopt::getBackendOptions() {
  auto options = c10::make_intrusive<Options>(*options_);
  options->timeout = std::chrono::milliseconds(timeout_ms_.load());
  return options;
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupTopoopt::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  checkNotInherited();
  for (const int rank : ranks) checkRank(rank, "split");
  if (std::find(ranks.begin(), ranks.end(), getRank()) == ranks.end()) return nullptr;
  return splitter_(store, ranks, options);
}

void ProcessGroupTopoopt::monitoredBarrier(const c10d::BarrierOptions& options,
                                           bool wait_all_ranks) {
  checkNotInherited();
  c10::intrusive_ptr<c10d::Store> store;
  std::string prefix;
  {
    std::lock_guard lock(store_mutex_);
    store = store_;
    prefix = "monitored_barrier/" + std::to_string(monitored_barriers_++) + "/";
  }
  TORCH_CHECK(store, "topoopt: monitored_barrier: the process group was shut down");
  const auto limit = options.timeout == c10d::kUnsetTimeout
                         ? std::chrono::milliseconds(timeout_ms_.load())
                         : options.timeout;
  if (getRank() == 0) {
    awaitMembers(*store, prefix, limit, wait_all_ranks);
  } else {
    store->set(prefix + std::to_string(getRank()), bytesOfText("here"));
    awaitVerdict(*store, prefix, limit);
  }
}

void ProcessGroupTopoopt::awaitMembers(c10d::Store& store, const std::string& prefix,
                                       std::chrono::milliseconds limit, bool wait_all_ranks) const {
  std::vector<std::string> keys;
  for (int rank = 1; rank < getSize(); ++rank) keys.push_back(prefix + std::to_string(rank));
  std::string verdict = kPassed;
  if (limit <= std::chrono::milliseconds::zero()) {
    verdict = "Rank 0 timed out in monitoredBarrier after " + std::to_string(limit.count()) + " ms";
  } else if (!keys.empty() && !waitFor(store, keys, limit)) {
    std::vector<int> missing;
    for (int rank = 1; rank < getSize(); ++rank) {
      if (!store.check({keys[rank - 1]})) missing.push_back(rank);
    }
    const bool all = wait_all_ranks && missing.size() > 1;
    if (!all) missing.resize(std::min<size_t>(missing.size(), 1));
    if (!missing.empty()) {
      verdict = (all ? "Ranks " : "Rank ") + joined(missing) +
                " failed to pass monitoredBarrier in " + std::to_string(limit.count()) + " ms";
    }
  }
  store.set(prefix + "verdict", bytesOfText(verdict));
  TORCH_CHECK(verdict == kPassed, "topoopt: monitored_barrier: ", verdict);
}

void ProcessGroupTopoopt::awaitVerdict(c10d::Store& store, const std::string& prefix,
                                       std::chrono::milliseconds limit) const {
  const std::string key = prefix + "verdict";
  const std::string reached = "topoopt: monitored_barrier: Rank " + std::to_string(getRank()) +
                              " successfully reached monitoredBarrier, but received errors while "
                              "waiting for send/recv from rank 0: ";
  TORCH_CHECK(waitFor(store, {key}, limit), reached, "no answer within ", limit.count(), " ms");
  const std::vector<uint8_t> answer = store.get(key);
  const std::string verdict(answer.begin(), answer.end());
  TORCH_CHECK(verdict == kPassed, reached, verdict);
}

}  // namespace topoopt
