#include "topology/hop_counts.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

namespace topoopt {

namespace {

// next[v] = reached[v] | the sets of v's in-neighbours; returns the number of bits in all of them.
// `kWords` is the words per set if known at compile time, else 0.
template <int kWords>
[[gnu::always_inline]] inline int64_t advanceSets(const InLinks& links, int words,
                                                  const uint64_t* __restrict reached,
                                                  uint64_t* __restrict next) {
  const size_t width = kWords ? kWords : words;
  const int degree = links.degree();
  int64_t bits = 0;
  for (int v = 0; v < links.servers(); ++v) {
    const int* row = links.row(v);
    uint64_t* out = next + v * width;
    const uint64_t* own = reached + v * width;
    for (size_t w = 0; w < width; ++w) out[w] = own[w];
    for (int j = 0; j < degree; ++j) {
      const uint64_t* in = reached + row[j] * width;
      for (size_t w = 0; w < width; ++w) out[w] |= in[w];
    }
    for (size_t w = 0; w < width; ++w) bits += std::popcount(out[w]);
  }
  return bits;
}

[[gnu::always_inline]] inline int64_t advanceAnyWidth(const InLinks& links, int words,
                                                      const uint64_t* reached, uint64_t* next) {
  switch (words) {
    case 1:
      return advanceSets<1>(links, words, reached, next);
    case 2:
      return advanceSets<2>(links, words, reached, next);
    case 4:
      return advanceSets<4>(links, words, reached, next);
    default:
      return advanceSets<0>(links, words, reached, next);
  }
}

// Compiled twice on x86, because nearly all time is OR and popcount, for which the baseline has no
// wide instructions.
#if defined(__x86_64__)
[[gnu::target("avx2,popcnt")]] int64_t advanceWide(const InLinks& links, int words,
                                                   const uint64_t* reached, uint64_t* next) {
  return advanceAnyWidth(links, words, reached, next);
}
const bool kIsWide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
#endif

}  // namespace

InLinks::InLinks(int servers, int degree)
    : servers_(servers), degree_(degree), sources_(static_cast<size_t>(servers) * degree) {
  for (int v = 0; v < servers; ++v) std::fill_n(row(v), degree, v);
}

InLinks::InLinks(int servers, const std::vector<std::pair<int, int>>& links)
    : servers_(servers), degree_(0) {
  if (servers < 1) {
    throw std::invalid_argument("servers: " + std::to_string(servers) + " is not at least 1");
  }
  std::vector<int> used(servers, 0);
  for (size_t i = 0; i < links.size(); ++i) {
    const auto [source, target] = links[i];
    for (const int server : {source, target}) {
      if (server < 0 || server >= servers) {
        throw std::invalid_argument("links[" + std::to_string(i) + "]: server " +
                                    std::to_string(server) + " is not in 0.." +
                                    std::to_string(servers - 1));
      }
    }
    if (source == target) {
      throw std::invalid_argument("links[" + std::to_string(i) + "]: connects server " +
                                  std::to_string(source) + " to itself");
    }
    degree_ = std::max(degree_, ++used[target]);
  }
  sources_.resize(static_cast<size_t>(servers) * degree_);
  for (int v = 0; v < servers; ++v) std::fill_n(row(v), degree_, v);
  for (const auto& [source, target] : links) row(target)[--used[target]] = source;
}

void HopCounter::start(const InLinks& links, const std::vector<int>& sources) {
  words_ = static_cast<int>((sources.size() + 63) / 64);
  const size_t size = static_cast<size_t>(links.servers()) * words_;
  reached_.assign(size, 0);
  next_.resize(size);
  for (size_t i = 0; i < sources.size(); ++i) {
    reached_[static_cast<size_t>(sources[i]) * words_ + i / 64] |= uint64_t{1} << (i % 64);
  }
}

int64_t HopCounter::advance(const InLinks& links) {
  operations_ += static_cast<int64_t>(links.servers()) * ((links.degree() + 4) * words_ + 4);
#if defined(__x86_64__)
  if (kIsWide) return advanceWide(links, words_, reached_.data(), next_.data());
#endif
  return advanceAnyWidth(links, words_, reached_.data(), next_.data());
}

HopSummary HopCounter::summary(const InLinks& links, const std::vector<int>& sources) {
  start(links, sources);
  const int64_t all = static_cast<int64_t>(sources.size()) * links.servers();
  int64_t bits = static_cast<int64_t>(sources.size());
  HopSummary result;
  int64_t missing_rounds = 0;  // sum over rounds of unreached pairs
  while (bits < all) {
    const int64_t now = advance(links);
    if (now == bits) break;
    ++result.diameter;
    missing_rounds += all - bits;
    bits = now;
    std::swap(reached_, next_);
  }
  result.unreachable = all - bits;
  result.sum = missing_rounds - result.unreachable * result.diameter;
  return result;
}

template <typename Visit>
void HopCounter::search(const InLinks& links, const std::vector<int>& sources, Visit visit) {
  start(links, sources);
  const int64_t all = static_cast<int64_t>(sources.size()) * links.servers();
  int64_t bits = static_cast<int64_t>(sources.size());
  for (int hops = 1; bits < all; ++hops) {
    const int64_t now = advance(links);
    if (now == bits) break;
    bits = now;
    for (int v = 0; v < links.servers(); ++v) {
      for (int w = 0; w < words_; ++w) {
        const size_t at = static_cast<size_t>(v) * words_ + w;
        for (uint64_t fresh = next_[at] & ~reached_[at]; fresh; fresh &= fresh - 1) {
          visit(w * 64 + std::countr_zero(fresh), v, hops);
        }
      }
    }
    std::swap(reached_, next_);
  }
  operations_ += 4 * bits;  // every pair is visited once
}

int64_t HopCounter::weightedSum(const InLinks& links, const std::vector<int>& sources,
                                const std::vector<int64_t>& weights) {
  const int servers = links.servers();
  int64_t sum = 0;
  int64_t all = 0;
  for (const int64_t weight : weights) all += weight;
  for (size_t i = 0; i < sources.size(); ++i) all -= weights[i * servers + sources[i]];
  int64_t unreached = static_cast<int64_t>(sources.size()) * (servers - 1);
  search(links, sources, [&](int i, int v, int hops) {
    sum += weights[static_cast<size_t>(i) * servers + v] * hops;
    --unreached;
  });
  return sum + unreached * all;
}

std::vector<int16_t> HopCounter::matrix(const InLinks& links) {
  const int servers = links.servers();
  std::vector<int> sources(servers);
  for (int s = 0; s < servers; ++s) sources[s] = s;
  std::vector<int16_t> hops_of(static_cast<size_t>(servers) * servers, -1);
  for (int s = 0; s < servers; ++s) hops_of[static_cast<size_t>(s) * servers + s] = 0;
  search(links, sources, [&](int i, int v, int hops) {
    hops_of[static_cast<size_t>(i) * servers + v] = static_cast<int16_t>(hops);
  });
  return hops_of;
}

}  // namespace topoopt
