// Messages between the members of a group on one server, over shared memory. Calling and waiting
// threads copy them; the reactor moves the rest.
//
// A member sends frames to each other member through a ring (message_rings.h), in the order of its
// calls. A data frame goes to the oldest receive posted for its sender and tag, else to the oldest
// one posted for any sender with that tag. Without one, the frame and all later ones stay in the
// ring. A message is kept aside ("early") only if an operation waits for a frame behind it, or the
// sender is idle and has no room.
//
// A long message, or any while the receiver keeps much aside, is announced without data and sent
// when the receiver grants it. So at most 1.5 times `early_bytes` of a sender are kept aside. Every
// ring can be drained at any time without a receive, so members cannot deadlock on rings.
//
// The holder of the mutex makes progress on all pending messages (progress()), in bounded steps:
//   - a call: at once, as far as there is room or data;
//   - a waiting thread (await()): until its message is complete. One such thread is the driver: it
//     polls for a short time, yields its core, and sleeps until another member has news. Before it
//     sleeps, it keeps messages aside whose senders have no room;
//   - the reactor: on a notification (look()), and a short time after a call that is still pending
//     (tick()). A tick takes over, or helps a driver that was preempted, but leaves newer messages
//     to others. Ticks become rarer while idle, because each costs a context switch. The reactor
//     also enforces time limits.
// Each member publishes its reaction to news (MessageRings::Attention), so the others wake or
// notify it only if needed. Invariants, each with the mutex held:
//   - operations_ holds the pending operations; the thread that removes one calls its callback,
//     without the mutex;
//   - memory of a caller is touched only while its operation is in operations_;
//   - for every member and tag, receives are posted or messages are early, never both;
//   - an operation without a driver has a tick to come, or the attention is kReactor;
//   - a ring whose writer has pending frames has writer_waits set.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/group/call.h"
#include "collectives/group/group.h"
#include "collectives/memory/message_rings.h"

namespace topoopt {

class LocalMessages {
 public:
  using Clock = std::chrono::steady_clock;

  // Initial interval of tick().
  static constexpr std::chrono::microseconds kShortestTick{500};
  static constexpr std::chrono::microseconds kLongestTick{4000};

  // Called without the mutex, on any thread.
  struct Hooks {
    std::function<void(int member)> notify;  // makes the member's reactor call look()
    std::function<void()> tick_soon;         // schedules tick() on the reactor thread
    // Fails the group on all members because of a message with `tag`.
    std::function<void(std::exception_ptr, int tag)> fail;
  };

  // `rings` must outlive this object; `ranks` maps members to ranks in messages.
  LocalMessages(const MessageRings& rings, int member, std::vector<int> ranks, size_t early_bytes,
                Hooks hooks);

  // Any thread. See the functions of Group with the same names.
  void send(const MessageBuffer& message, int target, int tag, const CallTerms& terms, Done done);
  void receive(const MessageBuffer& message, int source, int tag, const CallTerms& terms,
               Done done);
  void receiveAny(const MessageBuffer& message, int tag, const CallTerms& terms,
                  std::function<void(int)> from, Done done);
  void await(const std::function<bool()>& over, std::optional<Clock::time_point> until);
  void wakeDriver();

  struct Late {
    uint64_t number;  // among the operations of this member
    std::string what;
    int member;  // -1: any
    std::chrono::milliseconds limit;
  };
  // Reactor thread.
  void look();
  std::optional<std::chrono::microseconds> tick();    // returns the delay until its next call
  std::optional<Clock::time_point> deadline() const;  // of the next late()
  std::vector<Late> late(Clock::time_point now);
  bool pending(uint64_t number) const;
  std::vector<std::string> texts(size_t most) const;  // of pending messages
  void left(int member);                              // the member has left the job
  // Ends all operations with `error` and frees their memory before returning. `in_order`: without a
  // failure, so later messages to this member count as received.
  void end(std::exception_ptr error, bool in_order);

 private:
  enum class Kind { kSend, kReceive, kReceiveAny };
  enum class Way { kUndecided, kData, kAnnounced, kGranted };  // of a send

  struct Operation {
    Kind kind;
    int member;  // -1: any
    int tag;
    std::byte* data;
    size_t bytes;
    uint64_t fingerprint;
    Done done;
    std::function<void(int)> from{};
    std::chrono::milliseconds limit{0};
    std::optional<Clock::time_point> deadline{};
    uint64_t number = 0;
    size_t moved = 0;
    bool begun = false;  // of a send: a frame of data has been written
    Way way = Way::kUndecided;
    uint64_t message = 0;  // of a send: its number among those to its member
  };
  using Entry = std::list<Operation>::iterator;

  // An unreceived message: its bytes, or none if it is announced.
  struct Early {
    RingFrame frame;
    std::unique_ptr<std::byte[]> data{};
    size_t moved = 0;
  };
  // Outgoing state of a member pair.
  struct Out {
    std::deque<Entry> ready;  // the first may be partly written
    std::map<uint64_t, Entry> announced;
    std::deque<uint64_t> grants;  // of its messages
    uint64_t messages = 0;
    bool notified = false;  // the member knows that this one has no room

    bool idle() const { return ready.empty() && announced.empty() && grants.empty(); }
  };
  // Incoming state of a member pair.
  struct In {
    std::map<int, std::deque<Entry>> posted;                  // by tag
    std::map<int, std::deque<std::shared_ptr<Early>>> early;  // by tag
    std::map<uint64_t, Entry> granted;
    // The partly received message.
    std::optional<Entry> landing;
    std::shared_ptr<Early> keeping;
    size_t early_bytes = 0;
    bool left = false;

    bool idle() const { return posted.empty() && granted.empty() && !landing && !keeping; }
  };
  // Ends a step and fails the group.
  struct Failure {
    std::exception_ptr error;
    int tag = 0;
  };
  struct Over {
    Operation operation;
    std::exception_ptr error;
  };

  template <typename Function>
  void step(Function function);
  void add(Operation operation, const CallTerms& terms);
  bool progress(bool keep);
  bool write(int member);
  size_t writeGrants(int member, MessageRing& ring);
  size_t writeNext(int member, MessageRing& ring);
  bool read(int member, bool keep);
  bool readFrame(int member, MessageRing& ring, const RingFrame& frame, bool keep);
  bool beginMessage(int member, MessageRing& ring, const RingFrame& frame, bool keep);
  std::optional<Entry> match(int member, int tag);
  bool waitsBehind(int member) const;
  bool takeEarly(int member, Entry entry);
  void grant(int member, uint64_t number, Entry entry);
  void check(int member, const RingFrame& frame, Entry entry) const;
  void land(int member, MessageRing& ring, const RingFrame& frame);
  void finish(Entry entry);
  void notify(int member);
  void pressOn();
  void settle(bool synchronous);
  void checkLeft();
  void giveWay();
  void goOn();
  int others(int index) const { return (member_ + index) % rings_.size(); }

  const MessageRings rings_;
  const int member_;
  const std::vector<int> ranks_;
  const size_t early_bytes_;
  const Hooks hooks_;

  mutable std::mutex mutex_;
  std::exception_ptr ended_;
  bool failing_ = false;  // Hooks::fail was called
  std::list<Operation> operations_;
  std::vector<Out> out_;
  std::vector<In> in_;
  std::list<Entry> any_;
  bool any_left_ = false;
  uint64_t posts_ = 0;
  uint64_t posts_at_tick_ = 0;
  bool ticking_ = false;
  std::chrono::microseconds tick_ = kShortestTick;  // interval
  bool driving_ = false;
  std::thread::id driver_;
  // Completions to report at the end of a step.
  std::vector<Over> over_;
  std::vector<int> notified_;
  bool wants_tick_ = false;
};

}  // namespace topoopt
