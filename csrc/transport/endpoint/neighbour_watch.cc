#include "transport/endpoint/neighbour_watch.h"

#include <utility>

namespace topoopt {
namespace {

constexpr int kMostQuietLooks = 8;  // in the silence limit

}  // namespace

FrameHeader heartbeat() {
  FrameHeader header;
  header.type = FrameType::kHeartbeat;
  return header;
}

std::string stoppedText(int rank, std::chrono::milliseconds silence_limit) {
  return "rank " + std::to_string(rank) +
         " is stopped: its host acknowledges, but the process has sent nothing for " +
         std::to_string(silence_limit.count() / 1000) + " s";
}

NeighbourWatch::NeighbourWatch(std::chrono::milliseconds silence_limit, Reactor& reactor,
                               const OpenLinks& links, const JobStatus& status, FailJob fail)
    : silence_limit_(silence_limit), reactor_(reactor), status_(status), fail_(std::move(fail)) {
  for (const auto& [spec, link] : links) {
    if (spec.cable == kNoCable) neighbours_.push_back({link.get(), spec.peerRank()});
  }
}

void NeighbourWatch::start() {
  if (!neighbours_.empty()) look();
}

void NeighbourWatch::letGo() {
  held_ = false;
  for (Neighbour& neighbour : neighbours_) neighbour.quiet_looks = 0;
}

void NeighbourWatch::look() {
  if (status_.failed()) return;
  for (Neighbour& of : neighbours_) {
    if (of.link->dead() || held_) continue;
    of.quiet_looks = of.link->takeReceived() ? 0 : of.quiet_looks + 1;
    if (of.quiet_looks > kMostQuietLooks) {
      return fail_(of.link->acknowledged() != Acknowledged::kNothing
                       ? stoppedText(of.rank, silence_limit_)
                       : "rank " + std::to_string(of.rank) + " is unreachable: " + kNoAnswer);
    }
    if (!of.link->takeWrote()) of.link->sendHeader(heartbeat());
  }
  reactor_.after(silence_limit_ / kMostQuietLooks, [this] { look(); });
}

}  // namespace topoopt
