#include "plan/integer_links.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace topoopt {
namespace {

constexpr int64_t kLargestRate = int64_t{1} << 20;
constexpr double kRateRounding = 1e-8;  // relative to the largest rate

using RateOfPair = std::map<std::pair<int, int>, double>;  // by target and source

RateOfPair addedUp(int servers, const std::vector<RatedLink>& links) {
  checkLinks(servers, links);
  RateOfPair rates;
  for (const RatedLink& link : links) {
    rates[{link.target, link.source}] += link.rate;
  }
  return rates;
}

// The greatest common divisor, up to rounding. All divisors divide the largest rate, which undoes
// the errors of each step of Euclid's algorithm.
double divisorOf(const RateOfPair& rates, double largest) {
  double divisor = largest;
  for (const auto& [pair, rate] : rates) {
    double a = rate;
    double b = divisor;
    while (b > largest * kRateRounding) {
      const double rest = std::abs(std::remainder(a, b));
      a = b;
      b = rest;
    }
    divisor = largest / std::round(largest / a);
  }
  return divisor;
}

}  // namespace

IntegerLinks::IntegerLinks(int servers_, const std::vector<RatedLink>& links) : servers(servers_) {
  if (servers < 1) {
    throw std::invalid_argument("servers: " + std::to_string(servers) + " is not positive");
  }
  const RateOfPair rates = addedUp(servers, links);
  double largest = 0;
  for (const auto& [pair, rate] : rates) largest = std::max(largest, rate);
  if (!rates.empty()) {
    unit = std::max(divisorOf(rates, largest), largest / static_cast<double>(kLargestRate));
  }
  first_in.assign(servers + 1, 0);
  first_out.assign(servers + 1, 0);
  for (const auto& [pair, value] : rates) {
    target.push_back(pair.first);
    source.push_back(pair.second);
    rate.push_back(std::max<int64_t>(std::llround(value / unit), 1));
    ++first_in[pair.first + 1];
    ++first_out[pair.second + 1];
  }
  std::partial_sum(first_in.begin(), first_in.end(), first_in.begin());
  std::partial_sum(first_out.begin(), first_out.end(), first_out.begin());
  std::vector<int> next(first_out.begin(), first_out.end() - 1);
  out.resize(count());
  for (size_t e = 0; e < count(); ++e) out[next[source[e]]++] = static_cast<int>(e);
}

}  // namespace topoopt
