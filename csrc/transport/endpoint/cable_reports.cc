#include "transport/endpoint/cable_reports.h"

#include <string>
#include <utility>
#include <vector>

#include "common/joined.h"
#include "common/log.h"

namespace topoopt {
namespace {

// In which a report reaches all ranks that it can reach.
constexpr std::chrono::milliseconds kReportTime{100};
// From the first report of a change until groups are notified of it.
constexpr std::chrono::milliseconds kSettlingTime{50};
constexpr uint32_t kSpeedUnits = 1'000'000;  // that are 1

FrameHeader headerOf(const CableReport& report) {
  FrameHeader header;
  header.type = FrameType::kCableState;
  header.source = static_cast<uint16_t>(report.end);
  header.stream = static_cast<uint64_t>(report.cable);
  header.message = report.number();
  header.offset = static_cast<uint64_t>(report.loss);
  return header;
}

FrameHeader headerOf(const CableSpeed& report) {
  FrameHeader header;
  header.type = FrameType::kCableSpeed;
  header.source = static_cast<uint16_t>(report.end);
  header.stream = static_cast<uint64_t>(report.cable);
  header.message = report.number;
  header.offset = static_cast<uint64_t>(report.speed * kSpeedUnits);
  return header;
}

std::string listOf(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + joined(ranks);
}

std::string lostText(const std::string& cables) {
  return cables.empty() ? "links between other ranks" : "the link " + cables;
}

}  // namespace

CableReports::CableReports(int rank, std::chrono::milliseconds silence_limit, Reactor& reactor,
                           CableGraph& graph, Routes& routes, const JobStatus& status, FailJob fail,
                           std::function<void()> changed)
    : rank_(rank),
      silence_limit_(silence_limit),
      reactor_(reactor),
      graph_(graph),
      routes_(routes),
      status_(status),
      fail_(std::move(fail)),
      changed_(std::move(changed)) {}

// ---- reports -----------------------------------------------------------------------------------

// Passes on what is new.
void CableReports::take(const CableReport& report, const Link* except) {
  if (graph_.take(report)) routes_.flood(headerOf(report), "", except);
}

void CableReports::takeSpeed(const CableSpeed& report, const Link* except) {
  if (!graph_.takeSpeed(report)) return;
  routes_.flood(headerOf(report), "", except);
  react();
}

void CableReports::reportUp(int cable, uint64_t generation) {
  take({cable, rank_, generation, true, Loss::kClosed}, nullptr);
}

void CableReports::reportLost(int cable, uint64_t generation, Loss loss) {
  take({cable, rank_, generation, false, loss}, nullptr);
}

void CableReports::reportSpeed(int cable, double speed) {
  takeSpeed({cable, rank_, ++own_speeds_[cable], speed}, nullptr);
}

bool CableReports::onState(const Link& link, const FrameHeader& header) {
  if (header.stream >= graph_.cables().size() || header.offset > uint64_t{UINT8_MAX}) return false;
  take({static_cast<int>(header.stream), header.source, header.message / 2, header.message % 2 == 0,
        static_cast<Loss>(header.offset)},
       &link);
  return true;
}

void CableReports::onSpeed(const Link& link, const FrameHeader& header) {
  if (header.stream >= graph_.cables().size() || header.offset > uint64_t{kSpeedUnits}) return;
  takeSpeed({static_cast<int>(header.stream), header.source, header.message,
             static_cast<double>(header.offset) / kSpeedUnits},
            &link);
}

void CableReports::greet(Link& link) const {
  for (const CableReport& report : graph_.reports()) link.sendHeader(headerOf(report));
  for (const CableSpeed& report : graph_.speeds()) link.sendHeader(headerOf(report));
}

// ---- reactions ---------------------------------------------------------------------------------

void CableReports::react() {
  routes_.findWays();
  announce();
  judgeReach();
}

// Both ends report, and a switch may lose many cables.
void CableReports::announce() {
  if (std::exchange(announced_, true)) return;
  reactor_.after(kSettlingTime, [this] {
    announced_ = false;
    if (!status_.failed()) changed_();
  });
}

// Where no lost cable leads from the ranks on this side to the others, as in a ring that sends one
// way, it is ranks nearer to the gap that judge.
void CableReports::judgeReach() {
  if (cut_timer_) reactor_.cancel(*std::exchange(cut_timer_, std::nullopt));
  if (graph_.unreachable().empty() || status_.failed()) {
    cut_since_.reset();
    return;
  }
  const CableGraph::Cut cut = graph_.cut();
  const auto now = Reactor::Clock::now();
  if (!cut_since_) {
    cut_since_ = now;
    logLine(LogLevel::kWarning,
            listOf(graph_.unreachable()) + " cannot be reached: lost " + lostText(cut.cables));
  }
  const auto limit = *cut_since_ + (cut.isDeath() ? kReportTime : silence_limit_);
  if (now >= limit) return failUnreachable(cut);
  cut_timer_ = reactor_.at(limit, [this] {
    cut_timer_.reset();
    judgeReach();
  });
}

void CableReports::failUnreachable(const CableGraph::Cut& cut) {
  const std::vector<int>& ranks = cut.isDeath() ? cut.gone : graph_.unreachable();
  fail_(listOf(ranks) + (ranks.size() == 1 ? " is " : " are ") +
        (cut.isDeath() ? "gone" : "unreachable") + ": lost " + lostText(cut.cables));
}

}  // namespace topoopt
