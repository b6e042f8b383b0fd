// Messages between the members of a group on one server, in memory that they share: the threads
// that call and wait copy them, and the reactor does what they leave undone.
//
// A member sends each other member frames through a ring (message_rings.h), its messages in the
// order of their calls. A frame of data goes to the receive that has the sender and the tag of its
// message, and else to the oldest receive from any member with that tag. Of both the first one
// takes the first message, whether it or the message was there first. If there is none, the frame
// stays in the ring, and all that comes behind it, until one is posted. Only where something would
// wait for what is behind it, or the sender has no room and nothing else to do, is the message kept
// aside ("early").
//
// A long message, and any while the receiver keeps much aside, is announced by a frame without
// data, and sent when the receiver grants it: so no more is kept aside of a sender than
// `early_bytes` and half of it, and every ring can be emptied at any time without a receive, hence
// no two members wait for each other's rings.
//
// The holder of the mutex makes progress on all pending messages (progress()), in bounded steps:
//   - a call: at once, as far as there is room or data;
//   - a thread that waits (await()): until its message is over. One such thread at a time is the
//     driver: it polls for a short time, yields its core, and sleeps until another member has news.
//     Before it sleeps, it keeps messages aside whose senders have no room;
//   - the reactor: when another member has notified it (look()), and a short time after a call that
//     is not over by then (tick()). A tick takes over, or helps the driver, whose processor the
//     kernel may have taken. It leaves news since the last tick to others. Ticks become rarer while
//     nothing happens: each costs a switch on a processor that a member may need. The reactor also
//     watches time limits.
// Each member publishes its reaction to news (MessageRings::Attention), so the others wake or
// notify it only if needed. Invariants, each with the mutex held:
//   - operations_ holds the operations that are not over; the thread that removes one calls its
//     callback, without the mutex;
//   - memory of a caller is touched only while its operation is in operations_;
//   - for every member and tag, receives are posted or messages are early, never both;
//   - an operation that nobody drives has a tick to come, or the attention is kReactor;
//   - a ring whose writer has something left has writer_waits set.

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

  // Between calls of tick().
  static constexpr std::chrono::microseconds kShortestTick{500};
  static constexpr std::chrono::microseconds kLongestTick{4000};

  // Called without the mutex, on any thread.
  struct Hooks {
    std::function<void(int member)> notify;  // so that its reactor calls look()
    std::function<void()> tick_soon;         // tick() shall be called, on the reactor thread, later
    // The group fails on all members; `tag` is that of the message.
    std::function<void(std::exception_ptr, int tag)> fail;
  };

  // `rings` outlive this; `ranks` are the members as they are called in messages.
  LocalMessages(const MessageRings& rings, int member, std::vector<int> ranks, size_t early_bytes,
                Hooks hooks);

  // Any thread. As Group's functions of the same names.
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
  std::optional<std::chrono::microseconds> tick();    // after which it shall be called again
  std::optional<Clock::time_point> deadline() const;  // when late() has the next one
  std::vector<Late> late(Clock::time_point now);
  bool pending(uint64_t number) const;
  std::vector<std::string> texts(size_t most) const;  // of what is pending
  void left(int member);                              // it has left the job: nothing more comes
  // The memory of all operations is free when this returns; they end with `error`. `in_order`:
  // nothing has failed, and what others still send to this member counts as received.
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

  // A message that nothing has received yet: its bytes, or none if it is announced.
  struct Early {
    RingFrame frame;
    std::unique_ptr<std::byte[]> data{};
    size_t moved = 0;
  };
  // What goes to a member, ...
  struct Out {
    std::deque<Entry> ready;  // the first one may be written in part
    std::map<uint64_t, Entry> announced;
    std::deque<uint64_t> grants;  // of its messages
    uint64_t messages = 0;
    bool notified = false;  // it knows that this one has no room

    bool idle() const { return ready.empty() && announced.empty() && grants.empty(); }
  };
  // ... and what comes from it.
  struct In {
    std::map<int, std::deque<Entry>> posted;                  // by tag
    std::map<int, std::deque<std::shared_ptr<Early>>> early;  // by tag
    std::map<uint64_t, Entry> granted;
    // Of the message that is in the middle, if one is.
    std::optional<Entry> landing;
    std::shared_ptr<Early> keeping;
    size_t early_bytes = 0;
    bool left = false;

    bool idle() const { return posted.empty() && granted.empty() && !landing && !keeping; }
  };
  // Ends a step, and the group.
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
  bool failing_ = false;  // the group is going to end this
  std::list<Operation> operations_;
  std::vector<Out> out_;
  std::vector<In> in_;
  std::list<Entry> any_;
  bool any_left_ = false;
  uint64_t posts_ = 0;
  uint64_t posts_at_tick_ = 0;
  bool ticking_ = false;
  std::chrono::microseconds tick_ = kShortestTick;  // until the next one
  bool driving_ = false;
  std::thread::id driver_;
  // For the end of a step.
  std::vector<Over> over_;
  std::vector<int> notified_;
  bool wants_tick_ = false;
};

}  // namespace topoopt
