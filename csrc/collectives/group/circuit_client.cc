#include "collectives/group/circuit_client.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

#include "common/joined.h"

namespace topoopt {
namespace {

constexpr size_t kMostLineBytes = 64 << 20;  // schedules of many servers are long
constexpr std::chrono::milliseconds kQuietLook{2};
// Limited, because other groups may always have data in flight.
constexpr int kMostQuietLooks = 250;

template <typename Number>
std::string listOf(const std::vector<Number>& numbers) {
  return joined(numbers, ",");
}

std::string onOneLine(std::string text) {
  for (char& letter : text) {
    if (letter == '\n') letter = ' ';
  }
  return text;
}

}  // namespace

CircuitClient::CircuitClient(std::shared_ptr<Endpoint> endpoint, int fd, Requested requested,
                             std::vector<int> numbers)
    : endpoint_(std::move(endpoint)),
      requested_(requested),
      numbers_(std::move(numbers)),
      socket_(fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  endpoint_->reactor().run(
      [this] { endpoint_->reactor().watch(socket_.get(), EPOLLIN | EPOLLRDHUP, this); });
}

CircuitClient::~CircuitClient() {
  const auto unwatch = [this] {
    if (socket_) endpoint_->reactor().unwatch(socket_.get());
    endpoint_->reactor().forget(this);
  };
  if (endpoint_->reactor().onLoop()) {
    unwatch();
  } else {
    endpoint_->reactor().run(unwatch);
  }
}

std::string CircuitClient::textOf(const Members& members) const {
  std::vector<int> numbers;
  for (const int rank : members.ranks) numbers.push_back(numbers_.at(rank));
  return listOf(numbers) + " " + listOf(members.servers);
}

void CircuitClient::request(uint32_t channel, uint64_t number, const Members& members,
                            const std::vector<size_t>& bytes, CircuitAnswers call) {
  calls_[channel] = {number, members.ranks.size(), std::move(call)};
  std::ostringstream line;
  line << "ask " << channel << " " << number << " " << textOf(members) << " " << listOf(bytes)
       << " " << takeUsed();
  send(line.str());
}

void CircuitClient::request(uint32_t channel, uint64_t number, const Members& members,
                            const CollectiveTerms& terms, CircuitAnswers call) {
  calls_[channel] = {number, members.ranks.size(), std::move(call)};
  std::ostringstream line;
  line << "collective " << channel << " " << number << " " << textOf(members) << " " << terms.name
       << " " << terms.bytes << " " << terms.hash << " " << terms.seconds << " " << takeUsed();
  send(line.str());
}

// Circuits move only when neither chunks nor acknowledgements are in flight. Otherwise TCP would
// retransmit lost data and stay slow long after the circuits are up.
void CircuitClient::whenQuiet(std::function<bool()> waits, std::function<void()> then, int looks) {
  if (endpoint_->quiet() || looks == 0) return then();
  endpoint_->reactor().after(kQuietLook, [weak = weak_from_this(), waits = std::move(waits),
                                          then = std::move(then), looks] {
    const auto self = weak.lock();
    if (self && waits()) self->whenQuiet(waits, then, looks - 1);
  });
}

void CircuitClient::ready(uint32_t channel, uint64_t number, size_t topology,
                          std::function<bool()> waits) {
  const std::string line = "ready " + std::to_string(channel) + " " + std::to_string(number) + " " +
                           std::to_string(topology);
  whenQuiet(std::move(waits), [this, line] { send(line); }, kMostQuietLooks);
}

void CircuitClient::leave(uint32_t channel, uint64_t number, const std::string& why) {
  if (calls_.erase(channel) == 0) return;
  send("leave " + std::to_string(channel) + " " + std::to_string(number) + " " + onOneLine(why));
}

void CircuitClient::done(uint32_t channel, uint64_t number) {
  const std::string line = "done " + std::to_string(channel) + " " + std::to_string(number);
  whenQuiet([] { return true; }, [this, line] { send(line); }, kMostQuietLooks);
}

void CircuitClient::lost(uint32_t channel, uint64_t number, const std::string& why) {
  send("lost " + std::to_string(channel) + " " + std::to_string(number) + " " + onOneLine(why));
}

// Lines are short and the service always reads, so a blocked send means that it is gone.
void CircuitClient::send(const std::string& line) {
  const std::string text = line + "\n";
  if (!lost_.empty()) return stopAll();
  const ssize_t sent = ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(text.size())) return;
  lose(sent < 0 ? std::strerror(errno) : "it does not read");
}

void CircuitClient::onReady(uint32_t events) {
  char data[65536];
  while (lost_.empty()) {
    const ssize_t count = ::recv(socket_.get(), data, sizeof data, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) return lose(count == 0 ? "it has ended" : std::strerror(errno));
    received_.append(data, static_cast<size_t>(count));
    size_t end;
    while ((end = received_.find('\n')) != std::string::npos) {
      const std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      onLine(line);
    }
    if (received_.size() > kMostLineBytes) return lose("a line of it has no end");
  }
}

void CircuitClient::onLine(const std::string& line) {
  std::istringstream words(line);
  std::string what;
  words >> what;
  if (what == "schedule") {
    onSchedule(words);
  } else if (what == "blocks") {
    onBlocks(words);
  } else if (what == "free") {
    onReached(std::nullopt);
  } else if (what == "hold" || what == "wait") {
    std::set<int> servers;
    for (int server; words >> server; words.ignore(1)) servers.insert(server);
    onReached(std::move(servers), what == "wait");
  } else {
    onAnswer(what, words);
  }
}

void CircuitClient::onSchedule(std::istream& words) {
  uint64_t id = 0;
  size_t count = 0;
  auto program = std::make_shared<CircuitProgram>();
  words >> id;
  while (words >> count && count * 5 <= kMostLineBytes) {
    for (CircuitHop& hop : program->emplace_back(count)) {
      words >> hop.sender >> hop.receiver >> hop.source >> hop.target >> hop.part;
    }
  }
  programs_[id] = std::move(program);
}

void CircuitClient::onBlocks(std::istream& words) {
  uint64_t id = 0;
  size_t count = 0;
  auto program = std::make_shared<BlockProgram>();
  words >> id >> program->parts >> program->blocks;
  while (words >> count && count * 5 <= kMostLineBytes) {
    for (BlockHop& hop : program->topologies.emplace_back(count)) {
      words >> hop.sender >> hop.receiver >> hop.block >> hop.part >> hop.reduces;
    }
  }
  block_programs_[id] = std::move(program);
}

void CircuitClient::onAnswer(const std::string& what, std::istream& words) {
  uint32_t channel = 0;
  uint64_t number = 0;
  words >> channel >> number;
  const auto found = calls_.find(channel);
  // The group has left in the meantime.
  if (!words || found == calls_.end() || found->second.number != number) return;
  const Open open = found->second;  // a copy: the callback may erase the call
  const CircuitAnswers& call = open.call;
  if (what == "stay") {
    calls_.erase(found);
    return call.stay();
  }
  if (what == "move") return onMove(open, words);
  if (what == "moved") {
    size_t topology = 0;
    words >> topology;
    return call.moved(topology);
  }
  if (what != "stop") return lose("its answer cannot be read");
  std::string why;
  std::getline(words >> std::ws, why);
  calls_.erase(found);
  call.stopped(why);
}

void CircuitClient::onMove(const Open& open, std::istream& words) {
  uint64_t id = 0;
  MoveAnswer move{};
  words >> id >> move.channel;
  if (const auto program = programs_.find(id); program != programs_.end()) {
    move.program = program->second;
    move.bytes.assign(open.members, std::vector<size_t>(open.members));
    for (auto& row : move.bytes) {
      for (size_t& count : row) words >> count;
    }
  }
  if (const auto blocks = block_programs_.find(id); blocks != block_programs_.end()) {
    move.blocks = blocks->second;
  }
  const bool known = move.program || move.blocks;
  const bool free = move.channel >= kFirstCircuitChannel && move.channel < kFirstProbeChannel;
  if (!words || !known || !free) return lose("its answer cannot be read");
  open.call.move(move);
}

uint64_t CircuitClient::begin(std::set<int> servers) {
  used_.insert(servers.begin(), servers.end());
  messages_[next_messages_] = {std::move(servers)};
  return next_messages_++;
}

void CircuitClient::start(uint64_t messages, std::function<void()> start) {
  if (reaches(messages_.at(messages).servers)) return start();
  messages_.at(messages).start = std::move(start);
  if (!changes_) send("restore");
}

void CircuitClient::end(uint64_t messages) { messages_.erase(messages); }

bool CircuitClient::reaches(const std::set<int>& servers) const {
  return !reached_ ||
         std::includes(reached_->begin(), reached_->end(), servers.begin(), servers.end());
}

// Messages that have started before circuits moved may be lost until these are restored.
void CircuitClient::onReached(std::optional<std::set<int>> servers, bool changes) {
  const bool moved = reached_.has_value();
  reached_ = std::move(servers);
  changes_ = changes;
  if (reached_.has_value() != moved) moved ? endpoint_->letCablesGo() : endpoint_->holdCables();
  bool restore = false;
  std::vector<uint64_t> waiting;
  for (const auto& [number, messages] : messages_) {
    if (!reaches(messages.servers)) {
      restore = true;
    } else if (messages.start) {
      waiting.push_back(number);
    }
  }
  if (restore && !changes_) send("restore");
  for (const uint64_t number : waiting) {
    const auto found = messages_.find(number);
    if (found == messages_.end()) continue;  // the start of another one has cancelled it
    const auto start = std::exchange(found->second.start, {});
    if (start) start();
  }
}

// The servers for a request, in its text.
std::string CircuitClient::takeUsed() {
  const std::vector<int> servers(used_.begin(), used_.end());
  used_.clear();
  return servers.empty() ? "-" : listOf(servers);
}

// Without the service, the state of the circuits is unknown.
void CircuitClient::lose(const std::string& why) {
  lost_ = why;
  endpoint_->reactor().unwatch(socket_.get());
  socket_.reset();
  onReached(std::nullopt);
  stopAll();
}

// Deferred, because the caller may still be setting up its call.
void CircuitClient::stopAll() {
  endpoint_->reactor().post([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    for (auto& [channel, open] : std::exchange(self->calls_, {})) {
      open.call.stopped("the connection to what moves circuits is lost: " + self->lost_);
    }
  });
}

}  // namespace topoopt
