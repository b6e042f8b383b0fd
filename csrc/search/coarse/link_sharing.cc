#include "search/coarse/link_sharing.h"

#include <algorithm>

namespace topoopt {

namespace {

constexpr double kRoundsUp = 1 - 1e-9;  // tolerates rounding in a number of AllReduces

}  // namespace

LinkSharing::LinkSharing(const LinkLoadTable& loads) : loads_(loads), busy_s_(loads.links(), 0) {}

double LinkSharing::transfer(const LinkLoads& loads, double size_bytes, double ready_s,
                             double* transfers, double* all, ReducingLinks& reducing) {
  double done_s = ready_s;
  const auto load = [&](size_t link, double s_per_byte) {
    const double busy_s = s_per_byte * size_bytes;
    if (busy_s == 0) return;
    const double begin_s = std::max(transfers[link], ready_s);
    double end_s = begin_s + busy_s;
    const double behind_s = all[link] - begin_s;
    if (behind_s > 0) {
      const Reducing& of = reducing.links[link];
      const auto count = static_cast<double>(static_cast<int>(behind_s * of.per_s + kRoundsUp));
      const double flows_s = count * loads.largest_flow * size_bytes * loads_.secondsPerByte(link);
      end_s += std::min(behind_s, of.part * flows_s);
      const size_t ring = static_cast<size_t>(of.ring);
      if (ring >= held_s_.size()) held_s_.resize(ring + 1, 0);
      if (held_s_[ring] == 0) held_rings_.push_back(of.ring);
      held_s_[ring] = std::max(held_s_[ring], busy_s - (1 - of.part) * flows_s);
    }
    transfers[link] = end_s;
    all[link] = std::max(all[link], begin_s) + busy_s;
    done_s = std::max(done_s, end_s);
  };
  if (loads.link.empty()) {
    for (size_t link = 0; link < loads_.links(); ++link) load(link, loads.s_per_byte[link]);
  } else {
    for (size_t i = 0; i < loads.link.size(); ++i) load(loads.link[i], loads.s_per_byte[i]);
  }
  if (!held_rings_.empty()) hold(loads, size_bytes, ready_s, transfers, all, reducing);
  return done_s;
}

// On all links of the rings that a transfer delays.
void LinkSharing::hold(const LinkLoads& loads, double size_bytes, double ready_s,
                       const double* transfers, double* all, ReducingLinks& reducing) {
  const double* s_per_byte = loads.s_per_byte.data();
  if (!loads.link.empty()) {
    std::ranges::fill(busy_s_, 0.0);
    for (size_t i = 0; i < loads.link.size(); ++i) busy_s_[loads.link[i]] = loads.s_per_byte[i];
    s_per_byte = busy_s_.data();
  }
  for (size_t link = 0; link < busy_s_.size(); ++link) {
    if (all[link] <= std::max(transfers[link], ready_s)) continue;
    const size_t ring = static_cast<size_t>(reducing.links[link].ring);
    if (ring >= held_s_.size()) continue;
    all[link] += std::max(0.0, held_s_[ring] - s_per_byte[link] * size_bytes);
    reducing.until_s = std::max(reducing.until_s, all[link]);
  }
  for (int ring : held_rings_) held_s_[ring] = 0;
  held_rings_.clear();
}

void LinkSharing::reduce(const LinkLoads& loads, double size_bytes, double ready_s,
                         const double* transfers, const double* all,
                         ReducingLinks& reducing) const {
  reducing.links.resize(loads_.links());
  for (size_t i = 0; i < loads.s_per_byte.size(); ++i) {
    if (loads.s_per_byte[i] == 0) continue;
    const size_t link = loads.link.empty() ? i : loads.link[i];
    Reducing& here = reducing.links[link];
    if (all[link] <= std::max(transfers[link], ready_s)) here = {};
    const double busy_s = loads.s_per_byte[i] * size_bytes;
    ++here.count;
    here.busy_s += busy_s;
    here.per_s = here.count / here.busy_s;
    reducing.until_s = std::max(reducing.until_s, std::max(all[link], ready_s) + busy_s);
    if (static_cast<float>(busy_s) < here.longest_s) continue;
    here.longest_s = static_cast<float>(busy_s);
    here.ring = loads.ring[i];
    here.part = static_cast<float>(loads.part[i]);
  }
}

}  // namespace topoopt
