#include "sim/core/flow_program_reader.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <unordered_map>

namespace topoopt {

namespace {

std::string atLine(int64_t line) { return "line " + std::to_string(line); }

// Escapes and shortens a word, which may have any bytes and any length.
std::string printable(const std::string& text) {
  constexpr size_t kMost = 400;
  std::string shown;
  for (const char c : text) {
    if (shown.size() > kMost) return shown + "...";
    if (c >= ' ' && c <= '~') {
      shown += c;
      continue;
    }
    char escaped[5];
    std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned char>(c));
    shown += escaped;
  }
  return shown;
}

// Splits a line into words.
class Words {
 public:
  Words(std::string_view line, int64_t number) : rest_(line), number_(number) {
    rest_ = rest_.substr(0, std::min(rest_.find('#'), rest_.size()));
  }

  std::string_view next() {
    while (!rest_.empty() && isSpace(rest_.front())) rest_.remove_prefix(1);
    size_t end = 0;
    while (end < rest_.size() && !isSpace(rest_[end])) ++end;
    const std::string_view word = rest_.substr(0, end);
    rest_.remove_prefix(end);
    return word;
  }

  template <typename T>
  T number(const char* field) {
    const std::string_view word = next();
    T value{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (word.empty()) fail(std::string(field) + " is missing");
    if (error == std::errc::result_out_of_range) {
      fail(std::string(field) + " '" + std::string(word) + "' is out of range");
    }
    if (error != std::errc() || end != word.data() + word.size()) {
      fail(std::string(field) + " '" + std::string(word) + "' is not a " +
           (std::is_integral_v<T> ? "whole number" : "number"));
    }
    return value;
  }

  int64_t count(const char* field) {
    const int64_t value = number<int64_t>(field);
    if (value < 0) fail(std::string(field) + " " + std::to_string(value) + " is negative");
    return value;
  }

  void expect(const char* word) {
    const std::string_view found = next();
    if (found == word) return;
    fail(std::string("'") + word + "' is missing" +
         (found.empty() ? "" : "; there is '" + std::string(found) + "'"));
  }

  void end() {
    const std::string_view word = next();
    if (!word.empty()) fail("'" + std::string(word) + "' is one word too many");
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument(atLine(number_) + ": " + printable(what));
  }

 private:
  static bool isSpace(char c) { return c == ' ' || c == '\t' || c == '\r'; }

  std::string_view rest_;
  int64_t number_;
};

// Maps the user's ids to indices; usually they are equal.
class Ids {
 public:
  // Returns false for a duplicate.
  bool add(int64_t id) {
    const int64_t index = count_++;
    if (dense_ && id == index) return true;
    if (dense_) {
      dense_ = false;
      for (int64_t i = 0; i < index; ++i) index_.emplace(i, static_cast<int>(i));
    }
    return index_.emplace(id, static_cast<int>(index)).second;
  }

  int find(int64_t id) const {
    if (dense_) return id >= 0 && id < count_ ? static_cast<int>(id) : -1;
    const auto found = index_.find(id);
    return found == index_.end() ? -1 : found->second;
  }

 private:
  bool dense_ = true;
  int64_t count_ = 0;
  std::unordered_map<int64_t, int> index_;
};

struct LinkRecord {
  int64_t line;
  ProgramLink link;
};

struct FlowRecord {
  int64_t line;
  ProgramFlow flow;
  size_t path_end, deps_end;  // into the reader's lists
};

// Records may be in any order after the header, so they are resolved at the end.
class ProgramReader {
 public:
  FlowProgram read(std::string_view text) {
    for (int64_t line = 1; !text.empty(); ++line) {
      const size_t end = std::min(text.find('\n'), text.size());
      readLine(text.substr(0, end), line);
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    if (!program_) throw std::invalid_argument("line 1: there is no header 'nodes N hosts H'");
    addLinks();
    addFlows();
    addDependencies();
    return std::move(*program_);
  }

 private:
  void readLine(std::string_view line, int64_t number) {
    Words words(line, number);
    const std::string_view kind = words.next();
    if (kind.empty()) return;
    if (kind == "nodes") {
      readHeader(words);
    } else if (!program_) {
      words.fail("the header 'nodes N hosts H' must come before '" + std::string(kind) + "'");
    } else if (kind == "link") {
      readLink(words, number);
    } else if (kind == "flow") {
      readFlow(words, number);
    } else {
      words.fail("'" + std::string(kind) + "' is not a record; they are nodes, link, flow");
    }
    words.end();
  }

  void readHeader(Words& words) {
    if (program_) words.fail("a second header");
    const int64_t nodes = words.number<int64_t>("nodes");
    words.expect("hosts");
    const int64_t hosts = words.number<int64_t>("hosts");
    try {
      program_.emplace(nodes, hosts);
    } catch (const std::invalid_argument& error) {
      words.fail(error.what());
    }
  }

  void readLink(Words& words, int64_t line) {
    LinkRecord record{line, {}};
    record.link.id = words.count("ID");
    record.link.source = words.number<int>("SRC");
    record.link.target = words.number<int>("DST");
    record.link.bits_per_s = words.number<double>("BITS_PER_S");
    record.link.latency_ns = words.number<double>("LATENCY_NS");
    if (!link_ids_.add(record.link.id)) {
      words.fail("link " + std::to_string(record.link.id) + " is there already");
    }
    links_.push_back(record);
  }

  void readFlow(Words& words, int64_t line) {
    FlowRecord record{line, {}, 0, 0};
    record.flow.id = words.count("ID");
    record.flow.source = words.number<int>("SRC");
    record.flow.target = words.number<int>("DST");
    record.flow.size_bytes = words.number<double>("BYTES");
    words.expect("path");
    readList(words, "a link of the path", path_);
    words.expect("deps");
    readList(words, "a flow of the deps", deps_);
    record.path_end = path_.size();
    record.deps_end = deps_.size();
    if (!flow_ids_.add(record.flow.id)) {
      words.fail("flow " + std::to_string(record.flow.id) + " is there already");
    }
    flows_.push_back(record);
  }

  static void readList(Words& words, const char* item, std::vector<int64_t>& list) {
    const int64_t count = words.count("their number");
    for (int64_t i = 0; i < count; ++i) list.push_back(words.number<int64_t>(item));
  }

  void addLinks() {
    for (const LinkRecord& record : links_) {
      program_->addLink(record.link, [&record] {
        return atLine(record.line) + ": link " + std::to_string(record.link.id);
      });
    }
  }

  void addFlows() {
    std::vector<int> links;
    size_t next = 0;
    for (const FlowRecord& record : flows_) {
      links.clear();
      for (; next < record.path_end; ++next) {
        const int link = link_ids_.find(path_[next]);
        if (link < 0) fail(record, "path: there is no link " + std::to_string(path_[next]));
        links.push_back(link);
      }
      program_->addFlow(record.flow, links, [&record] { return name(record); });
    }
  }

  void addDependencies() {
    size_t next = 0;
    for (size_t i = 0; i < flows_.size(); ++i) {
      for (; next < flows_[i].deps_end; ++next) {
        const int before = flow_ids_.find(deps_[next]);
        if (before < 0) fail(flows_[i], "deps: there is no flow " + std::to_string(deps_[next]));
        program_->addDependency(before, static_cast<int>(i));
      }
    }
    const std::vector<int> cycle = findCycle(program_->graph());
    if (cycle.empty()) return;
    const auto id = [this](int flow) { return flows_[flow].flow.id; };
    fail(flows_[cycle.back()], "deps: they form a cycle: " + cycleText(cycle, id));
  }

  static std::string name(const FlowRecord& record) {
    return atLine(record.line) + ": flow " + std::to_string(record.flow.id);
  }

  [[noreturn]] static void fail(const FlowRecord& record, const std::string& what) {
    throw std::invalid_argument(name(record) + ": " + what);
  }

  std::optional<FlowProgram> program_;
  Ids link_ids_, flow_ids_;
  std::vector<LinkRecord> links_;
  std::vector<FlowRecord> flows_;
  std::vector<int64_t> path_, deps_;  // of all flows, in the user's ids
};

std::string contents(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  std::string text;
  if (file) {
    char buffer[1 << 16];
    for (size_t got; (got = std::fread(buffer, 1, sizeof buffer, file.get())) > 0;) {
      text.append(buffer, got);
    }
  }
  if (!file || std::ferror(file.get())) {
    throw std::invalid_argument("cannot be read: " + std::string(std::strerror(errno)));
  }
  return text;
}

}  // namespace

FlowProgram parseFlowProgram(std::string_view text) { return ProgramReader().read(text); }

FlowProgram readFlowProgram(const std::string& path) {
  try {
    return parseFlowProgram(contents(path));
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(path + ": " + error.what());
  }
}

}  // namespace topoopt
