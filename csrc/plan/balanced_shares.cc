#include "plan/balanced_shares.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace topoopt {
namespace {

constexpr int kMostIterations = 60;
constexpr double kGap = 1e-4;         // of the optimum
constexpr double kToTheEdge = 0.95;   // of the longest step that stays inside
constexpr double kPathCost = 1e-3;    // of the optimum, if all bytes take one more link
constexpr double kLeastShare = 1e-3;  // smaller ones are added to the others

// min t + costs x: the bytes x of the paths of each pair have the sum `bytes`, and the bytes of
// each link plus its slack are t times its rate. Dual variables: the lengths of links with slacks
// `reduced` for paths, and the distance of each pair.
class InteriorPoint {
 public:
  InteriorPoint(const RouteChoices& choices, const BytesByPair& bytes);

  void solve();

  struct Path {
    std::vector<int> links;
    double bytes = 0;
    double reduced = 0;  // length and cost of the path, less the distance of the pair
    double cost = 0;
    double step_bytes = 0;
    double step_reduced = 0;
  };
  struct Pair {
    int source;
    int target;
    double bytes;
    std::vector<Path> paths;
    double distance = 0;
    double step = 0;
  };
  const std::vector<Pair>& pairs() const { return pairs_; }

 private:
  struct Link {
    double rate = 1;
    double slack = 0;
    double length = 0;
    double step_slack = 0;
    double step_length = 0;
  };

  void start();
  double complement() const;
  void factorise();
  void direction(double centre, bool corrected);
  std::vector<double> solved(std::vector<double> right) const;
  std::pair<double, double> longest() const;
  void move(double primal, double dual);
  double lengthOf(const Path& path) const;

  std::vector<Pair> pairs_;
  std::vector<Link> links_;
  std::vector<double> factor_;    // lower triangle of the normal equations' Cholesky factor
  std::vector<double> by_rates_;  // solution for the rates
  double busiest_ = 0;            // t
  double step_busiest_ = 0;
  size_t products_ = 0;  // complementary pairs of variables
};

InteriorPoint::InteriorPoint(const RouteChoices& choices, const BytesByPair& bytes) {
  for (const RatedLink& link : choices.links()) links_.push_back({.rate = link.rate});
  for (int source = 0; source < choices.servers(); ++source) {
    for (int target = 0; target < choices.servers(); ++target) {
      if (source == target || bytes.at(source, target) <= 0) continue;
      Pair pair{source, target, bytes.at(source, target), {}};
      for (const RouteChoices::Path& servers : choices.of(source, target)) {
        Path& path = pair.paths.emplace_back();
        for (size_t i = 1; i < servers.size(); ++i) {
          path.links.push_back(choices.linkBetween(servers[i - 1], servers[i]));
        }
      }
      products_ += pair.paths.size();
      pairs_.push_back(std::move(pair));
    }
  }
  products_ += links_.size();
}

double InteriorPoint::lengthOf(const Path& path) const {
  double length = path.cost;
  for (const int link : path.links) length += links_[link].length;
  return length;
}

// Equal shares and lengths satisfy all equations.
void InteriorPoint::start() {
  std::vector<double> loads(links_.size(), 0.0);
  double carried = 0;  // over shortest paths
  for (Pair& pair : pairs_) {
    carried += pair.bytes * static_cast<double>(pair.paths.front().links.size());
    for (Path& path : pair.paths) {
      path.bytes = pair.bytes / static_cast<double>(pair.paths.size());
      for (const int link : path.links) loads[link] += path.bytes;
    }
  }
  double rates = 0;
  for (const Link& link : links_) rates += link.rate;
  const double least = carried / rates;  // of t, in the mean of all links
  for (size_t i = 0; i < links_.size(); ++i) {
    busiest_ = std::max(busiest_, 1.1 * loads[i] / links_[i].rate);
  }
  for (size_t i = 0; i < links_.size(); ++i) {
    links_[i].slack = busiest_ * links_[i].rate - loads[i];
    links_[i].length = 1 / rates;
  }
  for (Pair& pair : pairs_) {
    double shortest = std::numeric_limits<double>::infinity();
    for (Path& path : pair.paths) {
      path.cost = kPathCost * least / carried * static_cast<double>(path.links.size());
      path.reduced = lengthOf(path);
      shortest = std::min(shortest, path.reduced);
    }
    pair.distance = shortest - 1 / rates;
    for (Path& path : pair.paths) path.reduced -= pair.distance;
  }
}

// The difference between primal and dual objective.
double InteriorPoint::complement() const {
  double sum = 0;
  for (const Link& link : links_) sum += link.slack * link.length;
  for (const Pair& pair : pairs_) {
    for (const Path& path : pair.paths) sum += path.bytes * path.reduced;
  }
  return sum;
}

// Of the normal equations for the links, after the pairs are eliminated.
void InteriorPoint::factorise() {
  const size_t side = links_.size();
  factor_.assign(side * side, 0.0);
  for (size_t i = 0; i < side; ++i) {
    factor_[i * side + i] = links_[i].slack / links_[i].length;
  }
  std::vector<double> sums(side, 0.0);
  std::vector<int> used;
  for (const Pair& pair : pairs_) {
    double whole = 0;
    for (const Path& path : pair.paths) {
      const double weight = path.bytes / path.reduced;
      whole += weight;
      for (const int a : path.links) {
        if (sums[a] == 0) used.push_back(a);
        sums[a] += weight;
        for (const int b : path.links) {
          if (b <= a) factor_[a * side + b] += weight;
        }
      }
    }
    for (const int a : used) {
      for (const int b : used) {
        if (b <= a) factor_[a * side + b] -= sums[a] * sums[b] / whole;
      }
    }
    for (const int a : used) sums[a] = 0;
    used.clear();
  }
  for (size_t i = 0; i < side; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = factor_[i * side + j];
      for (size_t k = 0; k < j; ++k) sum -= factor_[i * side + k] * factor_[j * side + k];
      // Rounding may leave a pivot of a link that hardly matters at 0.
      factor_[i * side + j] = i == j ? std::sqrt(std::max(sum, std::numeric_limits<double>::min()))
                                     : sum / factor_[j * side + j];
    }
  }
  std::vector<double> rates;
  for (const Link& link : links_) rates.push_back(link.rate);
  by_rates_ = solved(std::move(rates));
}

std::vector<double> InteriorPoint::solved(std::vector<double> right) const {
  const size_t side = right.size();
  for (size_t i = 0; i < side; ++i) {
    for (size_t k = 0; k < i; ++k) right[i] -= factor_[i * side + k] * right[k];
    right[i] /= factor_[i * side + i];
  }
  for (size_t i = side; i-- > 0;) {
    right[i] /= factor_[i * side + i];
    for (size_t k = 0; k < i; ++k) right[k] -= factor_[i * side + k] * right[i];
  }
  return right;
}

// Newton's step to products equal to `centre`; `corrected` by the products of the step before.
void InteriorPoint::direction(double centre, bool corrected) {
  const auto wanted = [&](const Path& path) {
    const double second = corrected ? path.step_bytes * path.step_reduced : 0.0;
    return (centre - second) / path.reduced - path.bytes;
  };
  std::vector<double> wanted_slack;
  std::vector<double> right(links_.size());
  for (size_t i = 0; i < links_.size(); ++i) {
    const Link& link = links_[i];
    const double second = corrected ? link.step_slack * link.step_length : 0.0;
    wanted_slack.push_back((centre - second) / link.length - link.slack);
    right[i] = wanted_slack[i];
  }
  for (Pair& pair : pairs_) {
    double whole = 0;
    double sum = 0;
    for (Path& path : pair.paths) {
      path.step_bytes = wanted(path);  // below: less what the dual step takes
      whole += path.bytes / path.reduced;
      sum += path.step_bytes;
    }
    pair.step = -sum / whole;
    for (const Path& path : pair.paths) {
      const double part = path.step_bytes + path.bytes / path.reduced * pair.step;
      for (const int link : path.links) right[link] += part;
    }
  }
  const std::vector<double> lengths = solved(std::move(right));
  double of_lengths = 0;
  double of_rates = 0;
  for (size_t i = 0; i < links_.size(); ++i) {
    of_lengths += links_[i].rate * lengths[i];
    of_rates += links_[i].rate * by_rates_[i];
  }
  step_busiest_ = of_lengths / of_rates;
  for (size_t i = 0; i < links_.size(); ++i) {
    Link& link = links_[i];
    link.step_length = lengths[i] - step_busiest_ * by_rates_[i];
    link.step_slack = wanted_slack[i] - link.slack / link.length * link.step_length;
  }
  for (Pair& pair : pairs_) {
    double whole = 0;
    double sum = 0;
    for (Path& path : pair.paths) {
      path.step_reduced = 0;
      for (const int link : path.links) path.step_reduced += links_[link].step_length;
      whole += path.bytes / path.reduced;
      sum += path.bytes / path.reduced * path.step_reduced;
    }
    pair.step += sum / whole;
    for (Path& path : pair.paths) {
      path.step_reduced -= pair.step;
      path.step_bytes -= path.bytes / path.reduced * path.step_reduced;
    }
  }
}

// The longest primal and dual steps that keep all variables positive, at most 1.
std::pair<double, double> InteriorPoint::longest() const {
  double primal = 1 / kToTheEdge;
  double dual = primal;
  const auto limit = [](double& step, double value, double change) {
    if (change < 0) step = std::min(step, -value / change);
  };
  for (const Link& link : links_) {
    limit(primal, link.slack, link.step_slack);
    limit(dual, link.length, link.step_length);
  }
  for (const Pair& pair : pairs_) {
    for (const Path& path : pair.paths) {
      limit(primal, path.bytes, path.step_bytes);
      limit(dual, path.reduced, path.step_reduced);
    }
  }
  return {kToTheEdge * primal, kToTheEdge * dual};
}

void InteriorPoint::move(double primal, double dual) {
  busiest_ += primal * step_busiest_;
  for (Link& link : links_) {
    link.slack += primal * link.step_slack;
    link.length += dual * link.step_length;
  }
  for (Pair& pair : pairs_) {
    pair.distance += dual * pair.step;
    for (Path& path : pair.paths) {
      path.bytes += primal * path.step_bytes;
      path.reduced += dual * path.step_reduced;
    }
  }
}

// Mehrotra's predictor and corrector.
void InteriorPoint::solve() {
  if (pairs_.empty()) return;
  start();
  for (int i = 0; i < kMostIterations; ++i) {
    const double gap = complement();
    if (gap <= kGap * busiest_) return;
    factorise();
    direction(0, false);
    const auto [primal, dual] = longest();
    double predicted = 0;
    for (const Link& link : links_) {
      predicted +=
          (link.slack + primal * link.step_slack) * (link.length + dual * link.step_length);
    }
    for (const Pair& pair : pairs_) {
      for (const Path& path : pair.paths) {
        predicted +=
            (path.bytes + primal * path.step_bytes) * (path.reduced + dual * path.step_reduced);
      }
    }
    const double centring = std::pow(predicted / gap, 3);
    direction(centring * gap / static_cast<double>(products_), true);
    const auto [primal_step, dual_step] = longest();
    move(primal_step, dual_step);
  }
}

// Without the smallest shares, which would only make more frames.
std::vector<double> sharesOf(const InteriorPoint::Pair& pair) {
  std::vector<double> shares;
  double sum = 0;
  for (const InteriorPoint::Path& path : pair.paths) {
    const double share = path.bytes / pair.bytes;
    shares.push_back(share < kLeastShare ? 0.0 : share);
    sum += shares.back();
  }
  for (double& share : shares) share /= sum;
  return shares;
}

}  // namespace

BalancedShares::BalancedShares(const RouteChoices& choices, const BytesByPair& bytes)
    : choices_(choices) {
  const auto side = static_cast<size_t>(choices.servers());
  shares_.resize(side * side);
  InteriorPoint point(choices, bytes);
  point.solve();
  for (const InteriorPoint::Pair& pair : point.pairs()) {
    shares_[static_cast<size_t>(pair.source) * side + static_cast<size_t>(pair.target)] =
        sharesOf(pair);
  }
}

double BalancedShares::busiest(const BytesByPair& bytes) const {
  std::vector<double> loads(choices_.links().size(), 0.0);
  for (int source = 0; source < choices_.servers(); ++source) {
    for (int target = 0; target < choices_.servers(); ++target) {
      const std::vector<double>& shares = of(source, target);
      for (size_t i = 0; i < shares.size(); ++i) {
        const RouteChoices::Path& path = choices_.of(source, target)[i];
        for (size_t hop = 1; hop < path.size(); ++hop) {
          loads[choices_.linkBetween(path[hop - 1], path[hop])] +=
              shares[i] * bytes.at(source, target);
        }
      }
    }
  }
  double most = 0;
  for (size_t i = 0; i < loads.size(); ++i) {
    most = std::max(most, loads[i] / choices_.links()[i].rate);
  }
  return most;
}

}  // namespace topoopt
