#include "plan/member_links.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "plan/cut_bound.h"
#include "plan/group_layout.h"
#include "plan/linear_program.h"

namespace topoopt {
namespace {

// A bound has to be this much better to be worth further plans.
constexpr double kWorthwhile = 0.995;
// Cost of a linear program: it grows with the product of its rows and columns.
constexpr size_t kMostEntries = size_t{1} << 20;
// Price of rates per link: of equal solutions, the one with the shortest routes.
constexpr double kPriceOfLinks = 1e-7;
constexpr double kInexact = 1e-4;
constexpr double kNoRate = 1e-6;  // of the largest: IntegerLinks cannot have less
constexpr int kMostCuts = 64;     // that are added to a linear program

using Pair = std::pair<int, int>;

// A pair of members, by places, and the fraction of its bytes that crosses each link.
struct MemberPair {
  int source;
  int target;
  std::map<size_t, double> uses{};
};

class Splitting {
 public:
  Splitting(const std::vector<int>& members, const std::vector<RatedLink>& links,
            const std::vector<plan::Route>& routes)
      : members_(static_cast<int>(members.size())) {
    for (size_t i = 0; i < members.size(); ++i) place_of_[members[i]] = static_cast<int>(i);
    for (const RatedLink& link : links) {
      const auto [entry, added] = link_of_.try_emplace({link.source, link.target}, rates_.size());
      if (added) rates_.push_back(0);
      rates_[entry->second] += link.rate;
    }
    std::map<Pair, std::vector<const plan::Route*>> whole;
    for (const plan::Route& route : routes) {
      if (isWhole(route)) whole[{route.servers.front(), route.servers.back()}].push_back(&route);
    }
    for (const auto& [ends, link] : link_of_) {
      if (!joinsMembers(ends)) continue;
      direct_.push_back({place_of_[ends.first], place_of_[ends.second], rates_[link]});
      if (whole.contains(ends)) continue;
      pairs_.push_back({place_of_[ends.first], place_of_[ends.second], {{link, 1.0}}});
    }
    for (const auto& [ends, list] : whole) addPair(ends, list);
  }

  const LinkSet& direct() const { return direct_; }
  bool relayed() const {
    return std::any_of(pairs_.begin(), pairs_.end(),
                       [](const MemberPair& pair) { return pair.uses.size() > 1; });
  }

  // The rates of all pairs grow evenly until a link of theirs is full.
  LinkSet fair() const {
    std::vector<double> left = rates_;
    std::vector<double> rates(pairs_.size(), 0.0);
    std::vector<size_t> growing;
    for (size_t i = 0; i < pairs_.size(); ++i) growing.push_back(i);
    while (!growing.empty()) {
      std::vector<double> load(rates_.size(), 0.0);
      for (const size_t i : growing) {
        for (const auto& [link, part] : pairs_[i].uses) load[link] += part;
      }
      double step = std::numeric_limits<double>::infinity();
      for (size_t link = 0; link < load.size(); ++link) {
        if (load[link] > 0) step = std::min(step, left[link] / load[link]);
      }
      for (const size_t i : growing) rates[i] += step;
      for (size_t link = 0; link < load.size(); ++link) left[link] -= step * load[link];
      std::erase_if(growing, [&](size_t i) {
        return std::any_of(pairs_[i].uses.begin(), pairs_[i].uses.end(), [&](const auto& use) {
          return left[use.first] <= 1e-9 * rates_[use.first];
        });
      });
    }
    return linksAt(rates);
  }

  // The rates that maximise the least rate out of a set of members, per member of the set. Most
  // slowest cuts are before or behind one member; others are added as they are found. Empty if
  // nothing joins the members, or if the program would be too large.
  LinkSet best() const {
    LinearProgram program;
    const size_t columns = pairs_.size() + 1;
    if (columns * (rates_.size() + 2 * static_cast<size_t>(members_)) > kMostEntries) return {};
    program.rows.assign(rates_.size(), std::vector<double>(columns, 0.0));
    program.limits = rates_;
    for (size_t i = 0; i < pairs_.size(); ++i) {
      program.objective.push_back(0);
      for (const auto& [link, part] : pairs_[i].uses) {
        program.objective.back() -= kPriceOfLinks * part;
        program.rows[link][i] = part;
      }
    }
    program.objective.push_back(1);
    for (int member = 0; member < members_; ++member) {
      std::vector<bool> alone(static_cast<size_t>(members_), false);
      alone[member] = true;
      addCut(program, alone);
      alone.flip();
      addCut(program, alone);
    }
    for (int cuts = 0;; ++cuts) {
      std::vector<double> rates = maximised(program);
      const double least = rates.back() / members_;
      rates.pop_back();
      LinkSet links = linksAt(rates);
      if (!joinsAll(members_, links)) return {};
      const CutBound bound = boundOf(links);
      if (1 / bound.seconds >= least * (1 - kInexact) || cuts == kMostCuts) return links;
      std::vector<bool> inside(static_cast<size_t>(members_), false);
      for (const int place : bound.servers) inside[place] = true;
      addCut(program, inside);
    }
  }

  double secondsOf(const LinkSet& links) const {
    return joinsAll(members_, links) ? boundOf(links).seconds
                                     : std::numeric_limits<double>::infinity();
  }

 private:
  bool joinsMembers(const Pair& ends) const {
    return place_of_.contains(ends.first) && place_of_.contains(ends.second);
  }

  bool isWhole(const plan::Route& route) const {
    const std::vector<int>& servers = route.servers;
    if (!joinsMembers({servers.front(), servers.back()}) || route.weight <= 0) return false;
    for (size_t i = 1; i < servers.size(); ++i) {
      if (!link_of_.contains({servers[i - 1], servers[i]})) return false;
    }
    return true;
  }

  // Pairs that other members join are not needed.
  void addPair(const Pair& ends, const std::vector<const plan::Route*>& routes) {
    const auto avoids_members = [&](const plan::Route* route) {
      return std::none_of(route->servers.begin() + 1, route->servers.end() - 1,
                          [&](int server) { return place_of_.contains(server); });
    };
    if (std::none_of(routes.begin(), routes.end(), avoids_members)) return;
    double weights = 0;
    for (const plan::Route* route : routes) weights += route->weight;
    MemberPair pair{place_of_.at(ends.first), place_of_.at(ends.second)};
    for (const plan::Route* route : routes) {
      for (size_t i = 1; i < route->servers.size(); ++i) {
        pair.uses[link_of_.at({route->servers[i - 1], route->servers[i]})] +=
            route->weight / weights;
      }
    }
    pairs_.push_back(std::move(pair));
  }

  // The rate of the program is that of a set of all members.
  void addCut(LinearProgram& program, const std::vector<bool>& inside) const {
    std::vector<double>& row = program.rows.emplace_back();
    for (const MemberPair& pair : pairs_) {
      row.push_back(inside[pair.source] && !inside[pair.target] ? -1.0 : 0.0);
    }
    const auto shards = std::count(inside.begin(), inside.end(), true);
    row.push_back(static_cast<double>(shards) / members_);
    program.limits.push_back(0);
  }

  CutBound boundOf(const LinkSet& links) const {
    return cutBound(members_, links, std::vector<int>(static_cast<size_t>(members_), 1));
  }

  LinkSet linksAt(const std::vector<double>& rates) const {
    const double largest = rates.empty() ? 0 : *std::max_element(rates.begin(), rates.end());
    LinkSet links;
    for (size_t i = 0; i < pairs_.size(); ++i) {
      if (rates[i] <= kNoRate * largest) continue;
      links.push_back({pairs_[i].source, pairs_[i].target, rates[i]});
    }
    return links;
  }

  const int members_;
  std::map<int, int> place_of_;     // by server
  std::map<Pair, size_t> link_of_;  // by servers
  std::vector<double> rates_;       // by link
  std::vector<MemberPair> pairs_;
  LinkSet direct_;
};

// Of bytes sent between pairs.
double busiestOf(const std::map<Pair, double>& sent, const std::vector<RatedLink>& links,
                 const std::vector<plan::Route>& routes) {
  std::map<Pair, double> loads;
  for (const plan::Route& route : routes) {
    const auto bytes = sent.find({route.servers.front(), route.servers.back()});
    if (bytes == sent.end()) continue;
    for (size_t k = 1; k < route.servers.size(); ++k) {
      loads[{route.servers[k - 1], route.servers[k]}] += bytes->second * route.weight;
    }
  }
  std::set<Pair> routed;
  for (const plan::Route& route : routes) {
    routed.emplace(route.servers.front(), route.servers.back());
  }
  for (const auto& [ends, bytes] : sent) {
    if (!routed.contains(ends)) loads[ends] += bytes;
  }
  std::map<Pair, double> rates;
  for (const RatedLink& link : links) rates[{link.source, link.target}] += link.rate;
  double busiest = 0;
  for (const auto& [ends, load] : loads) {
    const auto rate = rates.find(ends);
    if (rate != rates.end()) busiest = std::max(busiest, load / rate->second);
  }
  return busiest;
}

}  // namespace

std::vector<LinkSet> memberLinks(const std::vector<int>& members,
                                 const std::vector<RatedLink>& links,
                                 const std::vector<plan::Route>& routes) {
  const Splitting splitting(members, links, routes);
  const int places = static_cast<int>(members.size());
  std::vector<LinkSet> sets{splitting.direct()};
  if (splitting.relayed()) {
    sets.push_back(splitting.fair());
    const double least = std::min(splitting.secondsOf(sets[0]), splitting.secondsOf(sets[1]));
    LinkSet best = splitting.best();
    if (splitting.secondsOf(best) < kWorthwhile * least) sets.push_back(std::move(best));
  }
  std::erase_if(sets, [&](const LinkSet& set) { return !joinsAll(places, set); });
  return sets;
}

double busiestLink(const std::vector<plan::Ring>& rings, const std::vector<RatedLink>& links,
                   const std::vector<plan::Route>& routes) {
  std::map<Pair, double> sent;
  for (const plan::Ring& ring : rings) {
    for (size_t i = 0; i < ring.servers.size(); ++i) {
      sent[{ring.servers[i], ring.servers[(i + 1) % ring.servers.size()]}] += ring.share;
    }
  }
  return busiestOf(sent, links, routes);
}

double busiestLinkOfPairs(const std::vector<int>& members, const std::vector<RatedLink>& links,
                          const std::vector<plan::Route>& routes) {
  std::map<Pair, double> sent;
  for (const int source : members) {
    for (const int target : members) {
      if (source != target) sent[{source, target}] = 1;
    }
  }
  return busiestOf(sent, links, routes);
}

}  // namespace topoopt
