// One connected socket to a neighbour: frames in, frames out.
//
// Outgoing frames wait in one queue per flow and leave in turn, so no flow, own or relayed, can
// starve another; control frames go first. Incoming payload is read straight to where the observer
// wants it. Everything runs on the reactor thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/frame.h"
#include "transport/reactor.h"

namespace topoopt {

// The link from this rank's port to a neighbour's, as the plan names it.
struct LinkName {
  int source = -1;
  int source_port = -1;
  int target = -1;
  int target_port = -1;

  std::string text() const;
};

struct LinkCounters {
  uint64_t sent_bytes = 0;        // payload of data frames, own and relayed
  uint64_t relayed_bytes = 0;     // the part of it that came from other ranks
  uint64_t received_bytes = 0;    // payload of data frames from the neighbour
  uint64_t overhead_bytes = 0;    // headers and control frames sent
  uint64_t relay_peak_bytes = 0;  // most payload of other ranks that ever waited here at a time
  double busy_s = 0;              // time with something to send
};

// A frame on its way out. The payload is the caller's memory until `sent` is called, or `owned`.
struct OutFrame {
  FrameHeader header;
  const std::byte* payload = nullptr;
  std::vector<std::byte> owned;
  std::function<void()> sent;
};

class SocketLink final : public Reactor::Handler {
 public:
  class Observer {
   public:
    virtual ~Observer() = default;
    // Where the payload of this frame goes; must stay valid until onFrame or redirect().
    virtual std::byte* onHeader(SocketLink& link, const FrameHeader& header) = 0;
    virtual void onFrame(SocketLink& link, const FrameHeader& header) = 0;
    // The socket is closed or broken; the link is dead from now on.
    virtual void onLost(SocketLink& link, const std::string& why) = 0;
  };

  // Owns `fd`, a connected stream socket, and makes it non-blocking. `sends` is false for the
  // receiving end of a simplex link.
  SocketLink(Reactor& reactor, int fd, LinkName name, bool sends, Observer* observer);
  ~SocketLink() override;

  SocketLink(const SocketLink&) = delete;
  SocketLink& operator=(const SocketLink&) = delete;

  void start();
  void close();   // no further callbacks
  void finish();  // ends this side once all is written; the link is lost when the other one ends

  // Frames for a link that is dead or finishing are dropped.
  void send(OutFrame frame);         // fair among flows
  void sendControl(OutFrame frame);  // before all data

  // Drops the queued frames of this rank's own flows on `channel` and tells `dropped` of each; a
  // frame that is half written is finished from a copy, so the caller's memory is free afterwards.
  void dropOwn(uint32_t channel, const std::function<void(const FrameHeader&)>& dropped);

  // If a payload is being read into [begin, end), the rest of it goes to a private buffer instead.
  void redirect(const std::byte* begin, const std::byte* end);

  bool idle() const { return !current_ && control_.empty() && turn_.empty(); }
  bool dead() const { return fd_ < 0; }
  const LinkName& name() const { return name_; }
  LinkCounters counters() const;

  void onReady(uint32_t events) override;

 private:
  void readReady();
  bool readSome(std::byte* into, size_t wanted, size_t& got);
  bool takeHeader();
  void writeReady();
  bool nextFrame();
  void frameWritten();
  void updateInterest();
  void lose(const std::string& why);
  void stopWriting();

  Reactor& reactor_;
  int fd_;
  const LinkName name_;
  const bool sends_;
  Observer* const observer_;

  std::vector<std::byte> buffer_;  // bytes read ahead of what has been parsed
  size_t buffer_begin_ = 0;
  size_t buffer_end_ = 0;
  bool in_payload_ = false;
  FrameHeader incoming_;
  std::byte* payload_at_ = nullptr;
  size_t payload_left_ = 0;
  std::vector<std::byte> sink_;

  std::deque<OutFrame> control_;
  std::unordered_map<FlowKey, std::deque<OutFrame>, FlowHash> queues_;
  std::deque<FlowKey> turn_;  // flows with something to send
  uint64_t relay_bytes_ = 0;  // payload of other ranks in queues_ and current_
  std::unique_ptr<OutFrame> current_;
  size_t written_ = 0;  // of header and payload of current_
  bool want_write_ = false;
  bool writing_ = false;
  bool finishing_ = false;
  bool write_failed_ = false;
  LinkCounters counters_;
  Reactor::Clock::time_point busy_since_{};
};

}  // namespace topoopt
