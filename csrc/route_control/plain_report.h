// Reads the common form of a host's report of flows, which is JSON.

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace topoopt {

// The views are into the body.
struct PlainFlow {
  std::string_view id, source, target;
  int64_t bytes = 0;
  std::optional<double> period_s;
};

struct PlainReport {
  std::string_view request, job;
  std::vector<PlainFlow> flows;
};

// Reads an object of exactly `request`, `job` and `flows`, each once, whose flows have `id`,
// `source`, `target`, `bytes` and, at most, `period_s`. Texts are printable ASCII without escapes,
// ids have 1 to `longest_id` characters, bytes are 1 to 2^63 - 1, and a period is null or a number
// above 0 with a fraction or an exponent. Returns nothing for any other body, valid or not.
std::optional<PlainReport> readPlainReport(std::string_view body, size_t longest_id);

}  // namespace topoopt
