#include "backend/supervision/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/log.h"
#include "common/thread.h"

namespace topoopt {
namespace {

using Clock = std::chrono::steady_clock;

// Limit for the reactor thread to report link counters.
constexpr std::chrono::milliseconds kReadingLimit{200};

// Limit for Python to write its stacks, because another thread may hold the GIL.
constexpr std::chrono::milliseconds kStacksLimit{1000};

constexpr size_t kLongestRequest = 1024;

// ---- SIGUSR1 -----------------------------------------------------------------------------------

std::atomic<int> signal_fd{-1};

void raise(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof one);
}

std::atomic<bool> signal_came{false};

void onSignal(int) {
  const int before = errno;
  signal_came = true;
  if (const int fd = signal_fd; fd >= 0) raise(fd);
  errno = before;
}

// A forked process has no supervisor, so the signal has its default effect there.
void letGoInChild() {
  if (signal_fd.exchange(-1) >= 0) ::signal(SIGUSR1, SIG_DFL);
}

bool takeSignal(int fd) {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, letGoInChild);
  struct sigaction now{};
  if (sigaction(SIGUSR1, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return false;
  int free = -1;
  if (!signal_fd.compare_exchange_strong(free, fd)) return false;
  struct sigaction ours{};
  ours.sa_handler = onSignal;
  ours.sa_flags = SA_RESTART;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGUSR1, &ours, nullptr);
  return true;
}

void letGoOfSignal() {
  struct sigaction now{};
  if (sigaction(SIGUSR1, nullptr, &now) == 0 && now.sa_handler == onSignal) {
    ::signal(SIGUSR1, SIG_DFL);
  }
  signal_fd = -1;
}

// ---- files -------------------------------------------------------------------------------------

// Replaces the file atomically and creates its folder. Throws std::system_error.
void replaceFile(const std::string& path, const std::string& text) {
  const size_t slash = path.rfind('/');
  const std::string partial = path.substr(0, slash == std::string::npos ? 0 : slash + 1) + "." +
                              std::to_string(getpid()) + "-" + std::to_string(gettid()) +
                              ".partial";
  const auto check = [&](bool good) {
    if (good) return;
    const int error = errno;
    ::unlink(partial.c_str());
    throw std::system_error(error, std::generic_category(), path);
  };
  if (slash != std::string::npos) {
    std::filesystem::create_directories(path.substr(0, slash));
  }
  ::unlink(partial.c_str());
  const int fd =
      ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  check(fd >= 0);
  size_t written = 0;
  ssize_t count = 0;
  while (written < text.size()) {
    count = ::write(fd, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    written += static_cast<size_t>(count);
  }
  const int error = errno;
  const bool closed = ::close(fd) == 0;
  if (count < 0) errno = error;
  check(count >= 0 && closed);
  check(::rename(partial.c_str(), path.c_str()) == 0);
}

// Modification time in ns since the epoch; 0: no file.
int64_t changedAt(const std::string& path) {
  struct stat found{};
  if (path.empty() || ::stat(path.c_str(), &found) != 0) return 0;
  return int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec;
}

// The first line of a short file; "" if it is unreadable.
std::string firstLineOf(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  std::string text(kLongestRequest, '\0');
  const ssize_t count = ::read(fd, text.data(), text.size());
  ::close(fd);
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return text.substr(0, text.find('\n'));
}

int openEvent() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  return fd;
}

}  // namespace

Supervisor::Supervisor(SupervisorConfig config, std::shared_ptr<FlightRecorder> recorder,
                       std::shared_ptr<Endpoint> endpoint)
    : config_(std::move(config)),
      recorder_(std::move(recorder)),
      endpoint_(std::move(endpoint)),
      wake_fd_(openEvent()),
      takes_signal_(recorder_ && !config_.dump_path.empty() && takeSignal(wake_fd_)),
      request_changed_ns_(changedAt(config_.request_path)) {
  thread_ = quietThread([this] { loop(); });
}

Supervisor::~Supervisor() {
  stop();
  ::close(wake_fd_);
}

void Supervisor::failed(const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(failure_seen_, true)) return;
    failure_ = why;
  }
  raise(wake_fd_);
}

void Supervisor::awaitDump() {
  if (whereDumpsAre().empty()) return;
  std::unique_lock lock(mutex_);
  dumped_.wait_for(lock, config_.dump_limit,
                   [this] { return !failure_seen_ || failure_dumped_ || stopping_; });
}

std::string Supervisor::whereDumpsAre() const {
  if (!recorder_ || !config_.dumps_failures || config_.dump_path.empty()) return "";
  const size_t slash = config_.dump_path.rfind('/');
  return slash == std::string::npos ? "." : config_.dump_path.substr(0, slash);
}

std::string Supervisor::recorded() const {
  return recorder_ ? dumpDocument(config_.of, *recorder_, {}, "requested") : "";
}

void Supervisor::stop() {
  std::lock_guard once(stop_mutex_);
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  if (takes_signal_) letGoOfSignal();
  raise(wake_fd_);
  thread_.join();
  dumped_.notify_all();
  if (!config_.status_path.empty()) ::unlink(config_.status_path.c_str());
}

// Returns false when the thread must end.
bool Supervisor::waitUntil(Clock::time_point when) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(when - Clock::now());
  pollfd wake{wake_fd_, POLLIN, 0};
  if (left.count() > 0 && ::poll(&wake, 1, static_cast<int>(left.count())) > 0) {
    uint64_t raised = 0;
    [[maybe_unused]] const ssize_t count = ::read(wake_fd_, &raised, sizeof raised);
  }
  std::string why;
  bool dumps = false;
  {
    std::lock_guard lock(mutex_);
    dumps = failure_seen_ && !failure_dumped_;
    why = failure_;
  }
  if (dumps) {
    if (config_.dumps_failures) writeDump(why);
    {
      std::lock_guard lock(mutex_);
      failure_dumped_ = true;
      dumped_.notify_all();
    }
    writeStatus();  // at once, because the launcher ends this rank after its dump
  }
  if (takes_signal_ && signal_came.exchange(false)) writeDump("SIGUSR1");
  std::lock_guard lock(mutex_);
  return !stopping_;
}

void Supervisor::loop() {
  Clock::time_point next = Clock::now();
  while (waitUntil(next)) {
    if (Clock::now() < next) continue;
    checkRequest();
    writeStatus();
    next = Clock::now() + config_.interval;
  }
}

void Supervisor::checkRequest() {
  const int64_t changed_ns = changedAt(config_.request_path);
  if (std::exchange(request_changed_ns_, changed_ns) == changed_ns || changed_ns == 0) return;
  const std::string why = firstLineOf(config_.request_path);
  writeDump(why.empty() ? "requested" : why);
}

void Supervisor::writeDump(const std::string& why) {
  if (!recorder_ || config_.dump_path.empty()) return;
  try {
    readLinks();
    const std::string document = dumpDocument(config_.of, *recorder_, links_, why);
    awaitStacks();  // first, because readers of a dump look for the stacks
    replaceFile(config_.dump_path, document);
  } catch (const std::system_error& error) {
    logLine(LogLevel::kWarning,
            "the flight recorder cannot be dumped: " + std::string(error.what()));
  }
}

// The thread that raises the error waits for the dump, so its stack still shows the failed call.
void Supervisor::awaitStacks() {
  if (config_.stacks_fd < 0) return;
  uint64_t raised = 0;
  [[maybe_unused]] ssize_t count = ::read(config_.stacks_done_fd, &raised, sizeof raised);
  raise(config_.stacks_fd);
  pollfd done{config_.stacks_done_fd, POLLIN, 0};
  ::poll(&done, 1, static_cast<int>(kStacksLimit.count()));
}

void Supervisor::writeStatus() {
  if (config_.status_path.empty()) return;
  try {
    readLinks();
    std::string why;
    {
      std::lock_guard lock(mutex_);
      why = failure_;
    }
    replaceFile(config_.status_path,
                statusDocument(config_.of, recorder_.get(), links_, endpoint_->iteration(), why));
  } catch (const std::system_error& error) {
    if (std::exchange(status_failed_, true)) return;
    logLine(config_.warns_of_status ? LogLevel::kWarning : LogLevel::kInfo,
            "the status cannot be written: " + std::string(error.what()));
  }
}

// Limited, because a dump must be written even if the reactor thread hangs.
void Supervisor::readLinks() {
  if (!reading_) {
    reading_ = std::make_shared<Reading>();
    // Posted functions run before the endpoint ends, which outlives this object.
    endpoint_->reactor().post([reading = reading_, endpoint = endpoint_.get()] {
      std::lock_guard lock(reading->mutex);
      reading->links = endpoint->trafficOnLoop();
      reading->at = Clock::now();
      reading->done = true;
      reading->changed.notify_all();
    });
  }
  std::unique_lock lock(reading_->mutex);
  if (!reading_->changed.wait_for(lock, kReadingLimit, [this] { return reading_->done; })) return;
  links_.before = std::exchange(links_.now, std::move(reading_->links));
  links_.seconds = std::chrono::duration<double>(reading_->at - links_at_).count();
  links_at_ = reading_->at;
  lock.unlock();
  reading_.reset();
}

}  // namespace topoopt
