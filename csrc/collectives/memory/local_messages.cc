#include "collectives/memory/local_messages.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/memory/shared_words.h"
#include "common/errors.h"

namespace topoopt {
namespace {

constexpr int kMostTurns = 4;  // of the reactor per visit, then links get their turn
constexpr int kPauses = 16;

}  // namespace

LocalMessages::LocalMessages(const MessageRings& rings, int member, std::vector<int> ranks,
                             size_t early_bytes, Hooks hooks)
    : rings_(rings),
      member_(member),
      ranks_(std::move(ranks)),
      early_bytes_(early_bytes),
      hooks_(std::move(hooks)),
      out_(ranks_.size()),
      in_(ranks_.size()) {}

// Runs `function` with the mutex, then its callbacks without it.
template <typename Function>
void LocalMessages::step(Function function) {
  std::vector<Over> over;
  std::vector<int> notified;
  std::optional<Failure> failure;
  bool tick = false;
  bool wakes = false;
  {
    std::lock_guard lock(mutex_);
    try {
      function();
    } catch (const Failure& caught) {
      failure = caught;
    } catch (const PeerLostError&) {
      failure = Failure{std::current_exception()};
    }
    if (failure) failing_ = true;
    over.swap(over_);
    notified.swap(notified_);
    tick = std::exchange(wants_tick_, false);
    wakes = !over.empty() && driving_ && driver_ != std::this_thread::get_id();
  }
  for (const int member : notified) hooks_.notify(member);
  if (tick) hooks_.tick_soon();
  if (failure) hooks_.fail(failure->error, failure->tag);
  for (Over& entry : over) {
    Operation& operation = entry.operation;
    if (operation.from && !entry.error) operation.from(operation.member);
    operation.done(entry.error);
  }
  if (wakes) wakeDriver();
}

// ---- calls -------------------------------------------------------------------------------------

void LocalMessages::send(const MessageBuffer& message, int target, int tag, const CallTerms& terms,
                         Done done) {
  add({Kind::kSend, target, tag, static_cast<std::byte*>(message.data), message.bytes,
       static_cast<uint64_t>(message.type), std::move(done)},
      terms);
}

void LocalMessages::receive(const MessageBuffer& message, int source, int tag,
                            const CallTerms& terms, Done done) {
  add({Kind::kReceive, source, tag, static_cast<std::byte*>(message.data), message.bytes,
       static_cast<uint64_t>(message.type), std::move(done)},
      terms);
}

void LocalMessages::receiveAny(const MessageBuffer& message, int tag, const CallTerms& terms,
                               std::function<void(int)> from, Done done) {
  add({Kind::kReceiveAny, -1, tag, static_cast<std::byte*>(message.data), message.bytes,
       static_cast<uint64_t>(message.type), std::move(done), std::move(from)},
      terms);
}

void LocalMessages::add(Operation operation, const CallTerms& terms) {
  // The clock counts nanoseconds, so "for ever" in milliseconds would overflow.
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365 * 100);
  operation.limit = terms.limit;
  if (terms.limit.count() > 0) {
    operation.deadline = Clock::now() + std::min(terms.limit, kLongest);
  }
  step([&] {
    if (ended_) return over_.push_back({std::move(operation), ended_});
    rings_.setCore(member_, static_cast<uint32_t>(sched_getcpu()));
    operation.number = posts_++;
    const Entry entry = operations_.insert(operations_.end(), std::move(operation));
    const int peer = entry->member;
    if (failing_) return;
    if (entry->kind == Kind::kSend) {
      out_[peer].ready.push_back(entry);
      write(peer);
    } else if (entry->kind == Kind::kReceive) {
      if (!takeEarly(peer, entry)) {
        in_[peer].posted[entry->tag].push_back(entry);
        read(peer, false);
      }
      if (!out_[peer].grants.empty()) write(peer);
    } else {
      bool taken = false;
      for (int i = 1; i < rings_.size() && !taken; ++i) taken = takeEarly(others(i), entry);
      if (!taken) any_.push_back(entry);
      progress(false);
    }
    checkLeft();
    settle(terms.synchronous);
  });
}

// Makes progress until `over` is true, the time limit, or no operation is left.
void LocalMessages::await(const std::function<bool()>& over,
                          std::optional<Clock::time_point> until) {
  {
    std::lock_guard lock(mutex_);
    if (driving_ || ended_ || operations_.empty()) return;
    driving_ = true;
    driver_ = std::this_thread::get_id();
    rings_.setAttention(member_, MessageRings::Attention::kSoon);
  }
  constexpr Clock::time_point kNotYet{};
  Clock::time_point look_until = kNotYet;
  while (!over()) {
    bool moved = false;
    bool nothing = false;
    step([&] {
      moved = progress(false);
      nothing = operations_.empty();
    });
    if (nothing) break;
    if (moved) {
      look_until = kNotYet;
      continue;
    }
    const auto now = Clock::now();
    if (until && now >= *until) break;
    if (look_until == kNotYet) look_until = now + kSharedLook;
    if (now < look_until) {
      giveWay();
      continue;
    }
    look_until = kNotYet;
    const uint32_t seen = rings_.wakes(member_);
    step([&] {
      rings_.setAttention(member_, MessageRings::Attention::kAsleep);
      moved = progress(true);
      pressOn();
    });
    if (!moved && !over()) rings_.sleep(member_, seen, until);
    rings_.setAttention(member_, MessageRings::Attention::kSoon);
  }
  step([&] {
    driving_ = false;
    settle(true);
  });
}

// Yields: a waited-for member on the same core cannot run while this thread polls.
void LocalMessages::giveWay() {
  const auto here = static_cast<uint32_t>(sched_getcpu());
  rings_.setCore(member_, here);
  bool shared = false;
  {
    std::lock_guard lock(mutex_);
    for (int i = 1; i < rings_.size() && !shared; ++i) {
      const int peer = others(i);
      const bool awaited = !out_[peer].idle() || !in_[peer].idle() || !any_.empty();
      shared = awaited && rings_.core(peer) == here;
    }
  }
  if (shared) {
    sched_yield();
    return;
  }
  for (int i = 0; i < kPauses; ++i) pauseCore();
}

void LocalMessages::wakeDriver() {
  {
    std::lock_guard lock(mutex_);
    if (!driving_ || driver_ == std::this_thread::get_id()) return;
  }
  rings_.wake(member_);
}

// ---- the reactor's part ------------------------------------------------------------------------

void LocalMessages::goOn() {
  using Attention = MessageRings::Attention;
  if (ended_) return;
  if (!driving_) {
    rings_.setAttention(member_, operations_.empty() ? Attention::kNone : Attention::kReactor);
  }
  for (int turn = 0; progress(true); ++turn) {
    if (turn < kMostTurns) continue;
    notified_.push_back(member_);  // the rest follows soon
    break;
  }
  pressOn();
  if (!driving_ && operations_.empty()) rings_.setAttention(member_, Attention::kNone);
}

void LocalMessages::look() {
  step([&] { goOn(); });
}

std::optional<std::chrono::microseconds> LocalMessages::tick() {
  std::optional<std::chrono::microseconds> next;
  {
    std::lock_guard lock(mutex_);
    const uint64_t before = std::exchange(posts_at_tick_, posts_);
    ticking_ = !ended_ && posts_ != before;
    const bool nothing = operations_.empty() || operations_.front().number >= before;
    tick_ = nothing ? std::min(2 * tick_, kLongestTick) : kShortestTick;
    if (ticking_) next = tick_;
    if (nothing) return next;
  }
  step([&] { goOn(); });
  return next;
}

std::optional<LocalMessages::Clock::time_point> LocalMessages::deadline() const {
  std::optional<Clock::time_point> first;
  std::lock_guard lock(mutex_);
  for (const Operation& operation : operations_) {
    if (operation.deadline)
      first = std::min(first.value_or(*operation.deadline), *operation.deadline);
  }
  return first;
}

namespace {

std::string whatIs(bool sends, int rank) {
  if (rank < 0) return "receive from any rank";
  return (sends ? "send to rank " : "receive from rank ") + std::to_string(rank);
}

}  // namespace

std::vector<LocalMessages::Late> LocalMessages::late(Clock::time_point now) {
  std::vector<Late> list;
  std::lock_guard lock(mutex_);
  for (Operation& operation : operations_) {
    if (!operation.deadline || *operation.deadline > now) continue;
    operation.deadline.reset();
    const int rank = operation.member < 0 ? -1 : ranks_[operation.member];
    list.push_back({operation.number, whatIs(operation.kind == Kind::kSend, rank), operation.member,
                    operation.limit});
  }
  return list;
}

bool LocalMessages::pending(uint64_t number) const {
  std::lock_guard lock(mutex_);
  return std::any_of(operations_.begin(), operations_.end(),
                     [&](const Operation& operation) { return operation.number == number; });
}

std::vector<std::string> LocalMessages::texts(size_t most) const {
  std::vector<std::string> list;
  std::lock_guard lock(mutex_);
  for (const Operation& operation : operations_) {
    if (list.size() == most) break;
    const int rank = operation.member < 0 ? -1 : ranks_[operation.member];
    list.push_back(whatIs(operation.kind == Kind::kSend, rank));
  }
  return list;
}

void LocalMessages::left(int member) {
  step([&] {
    in_[member].left = any_left_ = true;
    if (ended_) return;
    while (progress(false)) {
    }
    checkLeft();
  });
}

// An operation that waits for a departed rank never ends, once that rank's ring is read.
void LocalMessages::checkLeft() {
  if (!any_left_) return;
  const auto gone = [this](int member) { return in_[member].left; };
  for (const Operation& operation : operations_) {
    int member = operation.member;
    if (member < 0) {
      bool all = true;
      for (int i = 1; i < rings_.size(); ++i) all = all && gone(others(i));
      if (all) member = others(rings_.size() - 1);
    }
    if (member < 0 || !gone(member)) continue;
    throw Failure{peerLost("rank " + std::to_string(ranks_[member]) + " has left the job"),
                  operation.tag};
  }
}

void LocalMessages::end(std::exception_ptr error, bool in_order) {
  step([&] {
    if (ended_) return;
    ended_ = error;
    for (Operation& operation : operations_) over_.push_back({std::move(operation), error});
    operations_.clear();
    any_.clear();
    out_.assign(out_.size(), {});
    in_.assign(in_.size(), {});
    if (in_order) rings_.close(member_);
    rings_.setAttention(member_, MessageRings::Attention::kNone);
    for (int i = 1; in_order && i < rings_.size(); ++i) notify(others(i));
  });
}

// ---- notifications -----------------------------------------------------------------------------

// Notifies `member` of a frame or of room.
void LocalMessages::notify(int member) {
  using Attention = MessageRings::Attention;
  const Attention attention = rings_.attention(member);
  if (attention == Attention::kAsleep) {
    if (rings_.claim(member, attention)) rings_.wake(member);
  } else if (attention == Attention::kReactor) {
    if (rings_.claim(member, attention)) notified_.push_back(member);
  }
}

// Before this member stops polling: notifies receivers without room, which then keep messages
// aside.
void LocalMessages::pressOn() {
  using Attention = MessageRings::Attention;
  if (ended_ || failing_) return;
  for (int i = 1; i < rings_.size(); ++i) {
    const int peer = others(i);
    Out& out = out_[peer];
    if ((out.ready.empty() && out.grants.empty()) || std::exchange(out.notified, true)) continue;
    if (rings_.attention(peer) == Attention::kAsleep) {
      notify(peer);
    } else {
      rings_.claim(peer, Attention::kReactor);
      notified_.push_back(peer);
    }
  }
}

// At the end of a call. A synchronous caller is about to wait, and then drives.
void LocalMessages::settle(bool synchronous) {
  using Attention = MessageRings::Attention;
  if (ended_) return;
  if (!operations_.empty() && !std::exchange(ticking_, true)) {
    posts_at_tick_ = posts_;  // the first tick covers all of them
    tick_ = kShortestTick;
    wants_tick_ = true;
  }
  if (driving_) return;
  if (operations_.empty() || synchronous) {
    const Attention wanted = operations_.empty() ? Attention::kNone : Attention::kSoon;
    if (rings_.attention(member_) != wanted) rings_.setAttention(member_, wanted);
    return;
  }
  rings_.setAttention(member_, Attention::kReactor);
  progress(false);
  pressOn();
}

}  // namespace topoopt
