#include "collectives/links/size_exchange.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

namespace topoopt {
namespace {

// The time of the linear program grows with the third power.
constexpr int kMostServers = 32;
constexpr double kSolveSeconds = 2e-6;  // per path; 12 servers have 2000, 32 have 15000
// Sizes are exchanged if this fraction of the all-to-all takes longer than the exchange.
constexpr double kLikelyGain = 0.1;
constexpr double kMostWait = 0.2;  // of the all-to-all
constexpr int kLongestSkip = 64;
// Otherwise the plan's routes are as good.
constexpr double kLeastGain = 1.03;
constexpr double kShapeSteps = 32;  // of the mean size of a pair
constexpr size_t kMostSolutions = 32;
constexpr size_t kBegunKept = 8;
constexpr uint64_t kMostAhead = 64;  // of other members

}  // namespace

int SizeExchange::serverOf(int member) const {
  return endpoint_.cables()->serverOf(ranks_[member]);
}

const RouteChoices* SizeExchange::choices() {
  if (!choices_) {
    const RouteChoices* const all = endpoint_.routes().choices();
    choices_ = all != nullptr && serves(*all) ? all : nullptr;
  }
  return *choices_;
}

// Members on all servers: links of other servers may be busy with the data of other groups.
bool SizeExchange::serves(const RouteChoices& choices) const {
  const int servers = choices.servers();
  if (servers < 3 || servers > kMostServers) return false;
  std::set<int> with_members;
  for (size_t member = 0; member < ranks_.size(); ++member) {
    with_members.insert(serverOf(static_cast<int>(member)));
  }
  if (static_cast<int>(with_members.size()) != servers) return false;
  bool any_choice = false;
  for (int source = 0; source < servers; ++source) {
    for (int target = 0; target < servers; ++target) {
      const size_t paths = choices.of(source, target).size();
      if (source != target && paths == 0) return false;
      any_choice = any_choice || paths > 1;
    }
  }
  return any_choice;
}

// A member knows the sizes of its own messages only.
double SizeExchange::seconds(const RouteChoices& choices, const std::vector<size_t>& sent,
                             const std::vector<size_t>& received) const {
  const int here = serverOf(rank_);
  double out = 0;
  double in = 0;
  double members = 0;
  for (size_t member = 0; member < ranks_.size(); ++member) {
    if (serverOf(static_cast<int>(member)) == here) {
      ++members;
      continue;
    }
    out += static_cast<double>(sent[member]);
    in += static_cast<double>(received[member]);
  }
  const auto links = std::count_if(choices.links().begin(), choices.links().end(),
                                   [here](const RatedLink& link) { return link.source == here; });
  return std::max(out, in) * members * cost_.beta_s_per_byte /
         static_cast<double>(std::max<ptrdiff_t>(links, 1));
}

double SizeExchange::costOfExchange(const RouteChoices& choices) const {
  size_t hops = 0;
  size_t paths = 0;
  for (int source = 0; source < choices.servers(); ++source) {
    for (int target = 0; target < choices.servers(); ++target) {
      if (source == target) continue;
      hops = std::max(hops, choices.of(source, target).front().size() - 1);
      paths += choices.of(source, target).size();
    }
  }
  return cost_.alpha_s * static_cast<double>(ranks_.size()) +
         cost_.per_hop_latency_s * static_cast<double>(hops) +
         kSolveSeconds * static_cast<double>(paths);
}

SizeExchange::Row SizeExchange::rowOf(const RouteChoices& choices,
                                      const std::vector<size_t>& sent) const {
  const auto servers = static_cast<size_t>(choices.servers());
  Row row(servers + choices.links().size(), 0.0);
  const int here = serverOf(rank_);
  for (size_t member = 0; member < ranks_.size(); ++member) {
    const int there = serverOf(static_cast<int>(member));
    if (there == here || sent[member] == 0) continue;
    const auto bytes = static_cast<double>(sent[member]);
    row[static_cast<size_t>(there)] += bytes;
    const Routes::Ways* const ways = endpoint_.routes().waysTo(ranks_[member]);
    if (ways == nullptr) continue;
    double weights = 0;
    for (const Routes::Hop& hop : ways->hops()) weights += hop.weight;
    for (const Routes::Hop& hop : ways->hops()) {
      const std::vector<int> direct{ranks_[rank_], ranks_[member]};
      const std::vector<int>& path = hop.route != nullptr ? hop.route->servers : direct;
      for (size_t i = 1; i < path.size(); ++i) {
        const int link = choices.linkBetween(endpoint_.cables()->serverOf(path[i - 1]),
                                             endpoint_.cables()->serverOf(path[i]));
        if (link >= 0) row[servers + static_cast<size_t>(link)] += hop.weight / weights * bytes;
      }
    }
  }
  return row;
}

void SizeExchange::begin(uint64_t number, const std::vector<size_t>& sent,
                         const std::vector<size_t>& received, Ready ready) {
  const RouteChoices* const choices = this->choices();
  if (choices == nullptr) return ready({});
  rows_.erase(rows_.begin(), rows_.lower_bound(number));
  next_ = number + 1;
  const double whole = seconds(*choices, sent, received);
  const bool pays = endpoint_.routes().intact() && kLikelyGain * whole > costOfExchange(*choices);
  const bool waits = pays && pause_ == 0;
  if (pays && !waits) --pause_;
  begun_.push_back({number, sent, waits});
  if (begun_.size() > kBegunKept) begun_.pop_front();
  const std::set<int> requests = std::move(requests_[number]);
  requests_.erase(requests_.begin(), requests_.upper_bound(number));
  if (!waits) {
    for (const int rank : requests) send(rank, number, rowOf(*choices, sent), false);
    return ready({});
  }
  const Row row = rowOf(*choices, sent);
  for (const int rank : ranks_) {
    if (rank != ranks_[rank_]) send(rank, number, row, true);
  }
  rows_[number][ranks_[rank_]] = row;
  number_ = number;
  ready_ = std::move(ready);
  const auto limit = std::chrono::duration<double>(kMostWait * whole);
  timer_ = endpoint_.reactor().after(std::chrono::duration_cast<std::chrono::milliseconds>(limit),
                                     [this] {
                                       timer_.reset();
                                       pause_ = next_pause_;
                                       next_pause_ = std::min(2 * next_pause_, kLongestSkip);
                                       end({});
                                     });
  useIfComplete();
}

void SizeExchange::send(int rank, uint64_t number, const Row& row, bool requests) {
  FrameHeader header;
  header.type = FrameType::kSizes;
  header.channel = channel_;
  header.message = number;
  header.offset = requests ? 1 : 0;
  endpoint_.sendControl(rank, header,
                        {reinterpret_cast<const char*>(row.data()), row.size() * sizeof(double)});
}

void SizeExchange::onSizes(const FrameHeader& header, const std::string& payload) {
  const RouteChoices* const choices = this->choices();
  if (choices == nullptr) return;
  Row row(static_cast<size_t>(choices->servers()) + choices->links().size());
  if (payload.size() != row.size() * sizeof(double)) return;
  std::memcpy(row.data(), payload.data(), payload.size());
  if (!std::all_of(row.begin(), row.end(), [](double b) { return std::isfinite(b) && b >= 0; })) {
    return;
  }
  const uint64_t number = header.message;
  if (number > next_ + kMostAhead) return;
  const int rank = header.source;
  if (number + 1 >= next_) rows_[number][rank] = std::move(row);
  if (header.offset == 1) {
    const auto begun = std::find_if(begun_.begin(), begun_.end(),
                                    [=](const Begun& one) { return one.number == number; });
    if (begun == begun_.end()) {
      if (number >= next_) requests_[number].insert(rank);
    } else if (!begun->broadcast) {
      send(rank, number, rowOf(*choices, begun->sent), false);
    }
  }
  if (ready_ && number == number_) useIfComplete();
}

void SizeExchange::useIfComplete() {
  const std::map<int, Row>& rows = rows_[number_];
  if (rows.size() < ranks_.size()) return;
  next_pause_ = 1;
  end(divided(**choices_, rows));
}

SizeExchange::Ways SizeExchange::divided(const RouteChoices& choices,
                                         const std::map<int, Row>& rows) {
  BytesByPair bytes(choices.servers());
  std::vector<double> loads(choices.links().size(), 0.0);
  for (const auto& [rank, row] : rows) {
    const int source = endpoint_.cables()->serverOf(rank);
    for (int target = 0; target < choices.servers(); ++target) {
      if (target != source) bytes.at(source, target) += row[static_cast<size_t>(target)];
    }
    for (size_t i = 0; i < loads.size(); ++i) {
      loads[i] += row[static_cast<size_t>(choices.servers()) + i];
    }
  }
  double planned = 0;
  for (size_t i = 0; i < loads.size(); ++i) {
    planned = std::max(planned, loads[i] / choices.links()[i].rate);
  }
  if (planned == 0) return {};
  const BalancedShares& shares = solved(choices, bytes);
  const double gain = planned / shares.busiest(bytes);
  if (gain < kLeastGain) return {};
  gain_ = gain;
  Ways ways(ranks_.size());
  const int here = serverOf(rank_);
  const std::vector<size_t>& sent = begun_.back().sent;
  const double total = std::accumulate(bytes.all().begin(), bytes.all().end(), 0.0);
  const auto pairs = static_cast<double>(ranks_.size() * (ranks_.size() - 1));
  for (size_t member = 0; member < ranks_.size(); ++member) {
    const int there = serverOf(static_cast<int>(member));
    // Empty for few bytes, which have been rounded to 0: they take the plan's routes.
    if (there == here || shares.of(here, there).empty()) continue;
    ways[member] = endpoint_.routes().divided(ranks_[member], shares.of(here, there), sent[member],
                                              total / pairs);
  }
  return ways;
}

// Of the rounded sizes, so that all members have the same solution, whatever they have solved
// before.
const BalancedShares& SizeExchange::solved(const RouteChoices& choices, const BytesByPair& bytes) {
  const double total = std::accumulate(bytes.all().begin(), bytes.all().end(), 0.0);
  const double pairs = choices.servers() * (choices.servers() - 1.0);
  const double step = total / pairs / kShapeSteps;
  std::vector<uint32_t> shape;
  for (const double size : bytes.all()) {
    shape.push_back(static_cast<uint32_t>(std::lround(size / step)));
  }
  const auto found = std::find_if(solutions_.begin(), solutions_.end(),
                                  [&](const Solution& one) { return one.shape == shape; });
  if (found != solutions_.end()) {
    solutions_.splice(solutions_.begin(), solutions_, found);
    return solutions_.front().shares;
  }
  BytesByPair rounded(choices.servers());
  for (int source = 0; source < choices.servers(); ++source) {
    for (int target = 0; target < choices.servers(); ++target) {
      rounded.at(source, target) =
          shape[static_cast<size_t>(source) * static_cast<size_t>(choices.servers()) +
                static_cast<size_t>(target)];
    }
  }
  solutions_.push_front({std::move(shape), BalancedShares(choices, rounded)});
  if (solutions_.size() > kMostSolutions) solutions_.pop_back();
  return solutions_.front().shares;
}

void SizeExchange::end(Ways ways) {
  if (timer_) endpoint_.reactor().cancel(*std::exchange(timer_, std::nullopt));
  const Ready ready = std::exchange(ready_, nullptr);
  ready(std::move(ways));
}

void SizeExchange::cancel() {
  if (timer_) endpoint_.reactor().cancel(*std::exchange(timer_, std::nullopt));
  ready_ = nullptr;
}

}  // namespace topoopt
