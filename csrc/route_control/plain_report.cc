#include "route_control/plain_report.h"

#include <charconv>
#include <cmath>
#include <limits>

namespace topoopt {

namespace {

// A reader that remembers its first failure; after that, nothing matches any more.
class PlainReader {
 public:
  explicit PlainReader(std::string_view text) : at_(text.data()), end_(at_ + text.size()) {}

  bool hasFailed() const { return has_failed_; }
  void fail() { has_failed_ = true; }

  bool isAtEnd() {
    skipSpace();
    return at_ == end_;
  }

  // Whether `symbol` is next; if so, skips it.
  bool skips(char symbol) {
    skipSpace();
    if (has_failed_ || at_ == end_ || *at_ != symbol) return false;
    ++at_;
    return true;
  }

  void expect(char symbol) {
    if (!skips(symbol)) fail();
  }

  // Of printable ASCII without escapes.
  std::string_view text() {
    expect('"');
    const char* begin = at_;
    while (!has_failed_ && at_ != end_ && *at_ != '"') {
      if (*at_ < ' ' || *at_ > '~' || *at_ == '\\') fail();
      ++at_;
    }
    const std::string_view found(begin, static_cast<size_t>(at_ - begin));
    expect('"');
    return found;
  }

  // Digits without a leading zero, from 1 to the largest number; fails at all other numbers.
  int64_t positive() {
    const std::string_view digits = number();
    int64_t found = 0;
    const auto [last, error] = std::from_chars(digits.data(), digits.data() + digits.size(), found);
    if (error != std::errc() || last != digits.data() + digits.size() || found <= 0) fail();
    if (!digits.empty() && digits.front() == '0') fail();
    return found;
  }

  // null, or a number above 0 in the form DIGITS.DIGITS or with an exponent.
  std::optional<double> period() {
    if (skips('n')) {
      for (const char symbol : {'u', 'l', 'l'}) {
        if (at_ == end_ || *at_++ != symbol) return fail(), std::nullopt;
      }
      return std::nullopt;
    }
    const std::string_view text = number();
    const size_t whole = text.find_first_not_of("0123456789");
    if (whole == std::string_view::npos || whole == 0) return fail(), std::nullopt;
    if (whole > 1 && text.front() == '0') fail();
    if (text[whole] == '.' && text.find_first_of("0123456789", whole) != whole + 1) fail();
    double found = 0;
    const auto [last, error] = std::from_chars(text.data(), text.data() + text.size(), found);
    if (error != std::errc() || last != text.data() + text.size()) fail();
    if (!(found > 0) || !std::isfinite(found)) fail();
    return found;
  }

 private:
  void skipSpace() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r')) ++at_;
  }

  std::string_view number() {
    skipSpace();
    const char* begin = at_;
    while (at_ != end_ &&
           std::string_view("+-.0123456789Ee").find(*at_) != std::string_view::npos) {
      ++at_;
    }
    if (begin == at_) fail();
    return {begin, static_cast<size_t>(at_ - begin)};
  }

  const char* at_;
  const char* end_;
  bool has_failed_ = false;
};

// Reads an object; `field` reads the value of a name and returns its bit. Fails at a repeated one.
template <typename Field>
unsigned readObject(PlainReader& reader, const Field& field) {
  unsigned found = 0;
  reader.expect('{');
  do {
    const std::string_view name = reader.text();
    reader.expect(':');
    if (reader.hasFailed()) return 0;
    const unsigned bit = field(name);
    if (bit == 0 || (found & bit) != 0) reader.fail();
    found |= bit;
  } while (reader.skips(','));
  reader.expect('}');
  return found;
}

constexpr unsigned kRequired = 1 | 2 | 4 | 8;

PlainFlow readFlow(PlainReader& reader, size_t longest_id) {
  PlainFlow flow;
  const unsigned found = readObject(reader, [&](std::string_view name) -> unsigned {
    if (name == "id") return flow.id = reader.text(), 1;
    if (name == "source") return flow.source = reader.text(), 2;
    if (name == "target") return flow.target = reader.text(), 4;
    if (name == "bytes") return flow.bytes = reader.positive(), 8;
    if (name == "period_s") return flow.period_s = reader.period(), 16;
    return 0;
  });
  if ((found & kRequired) != kRequired) reader.fail();
  if (flow.id.empty() || flow.id.size() > longest_id) reader.fail();
  return flow;
}

}  // namespace

std::optional<PlainReport> readPlainReport(std::string_view body, size_t longest_id) {
  PlainReader reader(body);
  PlainReport report;
  const unsigned found = readObject(reader, [&](std::string_view name) -> unsigned {
    if (name == "request") return report.request = reader.text(), 1;
    if (name == "job") return report.job = reader.text(), 2;
    if (name != "flows") return 0;
    reader.expect('[');
    do {
      report.flows.push_back(readFlow(reader, longest_id));
    } while (!reader.hasFailed() && reader.skips(','));
    reader.expect(']');
    return 4;
  });
  if (found != (1 | 2 | 4) || !reader.isAtEnd() || reader.hasFailed()) return std::nullopt;
  return report;
}

}  // namespace topoopt
