// What a group tells about itself: the choices that it logs, and its counters.

#include <bit>
#include <cstdio>

#include "collectives/group.h"
#include "common/log.h"

namespace topoopt {
namespace {

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g ms", seconds * 1e3);
  return text;
}

}  // namespace

// At level info, the first of each size class on the group's first member; at debug, every call.
void Group::logChoice(const std::string& name, const ScheduleKey& key,
                      const PreparedSchedule& prepared) {
  const Request request = ScheduleCache::requestOf(key);
  const int size_class = static_cast<int>(std::bit_width(request.bytes));
  const bool first =
      config_.rank == 0 && logged_.insert({name, prepared.algorithm, size_class}).second;
  if (!first && !logs(LogLevel::kDebug)) return;
  std::string text = "group " + config_.name + ": " + name + " of " +
                     std::to_string(request.bytes) + " bytes: " + nameOf(prepared.algorithm);
  const CostEstimate& estimate = schedules_.estimate();
  std::string others;
  for (const Algorithm algorithm : estimate.candidates(request)) {
    if (algorithm == Algorithm::kDirect) continue;
    others += (others.empty() ? " (estimates: " : ", ") + std::string(nameOf(algorithm)) + " " +
              milliseconds(estimate.seconds(request, algorithm));
  }
  logLine(first ? LogLevel::kInfo : LogLevel::kDebug, text + others + (others.empty() ? "" : ")"));
}

std::vector<RingCounters> Group::counters() {
  std::vector<PartCounters> parts;
  endpoint_->reactor().run([&] { parts = operation_.counters(); });
  const GroupLayout& layout = schedules_.layout();
  const Parts numbers = partsOf(layout);
  parts.resize(static_cast<size_t>(numbers.count));
  std::vector<RingCounters> list;
  for (int part = 0; part < numbers.count; ++part) {
    RingCounters entry;
    entry.kind = part < numbers.trees ? "ring" : part < numbers.direct ? "tree" : "direct";
    entry.index = part < numbers.trees    ? part
                  : part < numbers.direct ? part - numbers.trees
                                          : part - numbers.direct;
    if (part < numbers.trees) {
      for (const int member : layout.rings()[part].order) {
        entry.ranks.push_back(config_.ranks[member]);
      }
    }
    entry.counters = parts[part];
    list.push_back(std::move(entry));
  }
  return list;
}

size_t Group::scratchBytes() {
  size_t bytes = 0;
  endpoint_->reactor().run([&] { bytes = scratch_.bytes(); });
  return bytes;
}

}  // namespace topoopt
