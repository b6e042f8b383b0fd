// A link over libfabric: RDMA where the interface can (provider `verbs`), or its `tcp` and `shm`.
//
// It starts on a connected socket, over which the ends exchange their libfabric names. Later the
// socket carries only wake-ups and liveness: the system closes it when the process dies, and
// acknowledges for a stopped process.
//
// The bytes of frames form one stream per direction. Short pieces are copied into messages, which
// fill posted receives of the other end; the sender counts them. For a long payload, the receiver
// reads the header and advertises the destination. The sender's interface writes the payload there
// with a number that notifies the receiver. Every message acknowledges the consumed part of the
// stream, so that a cable's link can release kept frames.
//
// Several payloads are in flight at a time to hide the round trips. The sender continues with later
// headers, whose frames can then no longer be dropped. The receiver reads headers early to
// advertise the places, but delivers frames in order.
//
// Memory is registered only while it is advertised or written from, so no registration outlives its
// memory. Where registering is expensive, `verbs` has a cache that watches the process's memory; a
// second one here would miss unmapped memory.

#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <vector>

#include "transport/descriptor.h"
#include "transport/libfabric/port.h"
#include "transport/links/link.h"

namespace topoopt {

class FabricLink final : public Link,
                         private Acknowledgements,
                         private LentMemory,
                         private Replaceable,
                         private Reactor::Poller {
 public:
  static constexpr size_t kSlots = 56;    // for messages, per direction
  static constexpr size_t kPayloads = 8;  // in flight, per direction

  // Throws FabricError or std::invalid_argument.
  FabricLink(const LinkSpec& spec, const Context& context);
  ~FabricLink() override { close(); }

  void start() override;
  void onReady(uint32_t events) override;

 private:
  enum class Kind : uint32_t { kBytes = 1, kAdvert = 2, kEnd = 3, kCounts = 4 };
  struct MessageHeader {
    Kind kind;
    uint32_t bytes;     // of the following payload
    uint64_t position;  // its offset in the stream
    uint64_t consumed;  // bytes of the reverse stream
    uint64_t posted;    // receives posted again, in total
  };
  // A received message that is not fully read.
  struct Arrived {
    size_t slot;
    size_t begin;
    size_t end;
    uint64_t position;
  };
  struct Posted {
    size_t slot;
    size_t bytes;
  };
  using Clock = Reactor::Clock;
  // A long payload that was announced to the other end.
  struct Writing {
    enum class State : uint8_t { kAnnounced, kInFlight, kDone };
    uint64_t position;
    size_t bytes;
    size_t index;  // at the port
    State state = State::kAnnounced;
    std::optional<FabricPort::Advert> target{};
    Clock::time_point begun{};  // when the interface got it
  };
  // A payload whose place was advertised.
  struct Awaited {
    uint64_t position;
    size_t bytes;
    size_t index;
    const std::byte* place;
    bool placed = false;
  };

  Io readBytes(const iovec* parts, int part_count, size_t& count) override;
  Io writeBytes(const iovec* parts, int part_count, size_t& count) override;
  size_t begunBytes() const override { return static_cast<size_t>(begun_ - written_); }
  void endWriting() override;
  void closeBytes() override;
  Acknowledged acknowledged() override;
  bool allDelivered() const override { return acknowledged_ >= written_ && in_flight_ == 0; }
  size_t unacknowledgedBytes() override { return written_ - std::min(written_, acknowledged_); }
  void endReading() override { reading_ended_ = true; }
  void reopenBytes(const LinkSpec& spec) override;
  void settleReading(const std::byte* begin, const std::byte* end) override;
  void settleWriting() override;
  void poll() override;
  bool prepareToSleep() override;

  void take(const LinkSpec& spec);
  void sendHello();
  // Reads control bytes from the socket.
  void readSocket();
  void takeControl();
  bool takeHello();
  void say(char what);
  void socketEnded();

  bool progress();
  void handle(const FabricPort::Completion& done);
  void received(size_t slot, size_t bytes);
  void failed(const FabricPort::Completion& failure);
  void broken(const std::string& why);
  void closePort();
  void active();
  bool drained();
  template <typename Function>
  void guarded(Function function) {
    try {
      function();
    } catch (const FabricError& error) {
      broken(error.what());
    }
  }

  bool mayFill(size_t most_outstanding) const;
  std::byte* begin(Kind kind, uint64_t position);
  void finish(size_t bytes);
  void post();
  void sendCounts(bool at_once);
  size_t copyOut(const iovec* parts, int part_count);
  void takeSlot(const Arrived& front);
  void postReceive(size_t slot);
  bool peek(uint64_t position, FrameHeader& header) const;
  void lookAhead();
  void advertise(const FrameHeader& header, uint64_t position);
  void takeAdvert(uint64_t position, const FabricPort::Advert& advert);
  void placed(uint32_t position);
  bool beginShort(const iovec& part, size_t skip);
  void flush();
  void beginLong(const iovec& part);
  bool write(Writing& writing, const std::byte* from);
  void payloadWritten(size_t index);
  size_t countWritten();
  template <typename Condition>
  bool waitUntil(Condition met);

  const std::string provider_;
  const size_t slot_bytes_;
  const std::optional<std::chrono::duration<double>> memory_wait_;  // see LinkSpec
  Descriptor socket_;
  std::vector<std::byte> control_;  // received over the socket, not yet parsed
  std::unique_ptr<FabricPort> port_;
  std::unique_ptr<FabricPort> given_up_;      // without a descriptor; until the link is closed
  std::vector<FabricPort::Completion> done_;  // by the last progress()
  int waits_on_ = -1;
  bool attached_ = false;
  bool broken_ = false;
  bool reading_ended_ = false;
  bool end_wanted_ = false;

  // Sending.
  std::vector<size_t> free_slots_;
  std::deque<Posted> unposted_;  // waiting for room in the provider
  size_t filling_ = 0;           // current slot
  std::byte* into_ = nullptr;    // its memory, if it holds bytes of frames
  size_t filled_ = 0;            // its used bytes
  uint64_t sent_messages_ = 0;
  uint64_t taken_messages_ = 0;  // messages whose receives the other end has posted again
  size_t in_flight_ = 0;
  uint64_t written_ = 0;       // offset in the stream
  uint64_t begun_ = 0;         // offset: in messages or announced
  uint64_t acknowledged_ = 0;  // offset
  uint64_t looked_ = 0;        // acknowledged_ at the last acknowledged()
  std::deque<Writing> writing_;
  size_t begun_payloads_ = 0;
  bool refused_ = false;                          // the provider had no room for a payload
  std::chrono::duration<double> payload_time_{};  // estimate per payload

  // Receiving.
  std::deque<Arrived> arrived_;
  std::deque<size_t> unreceived_;  // slots to post once the provider has room
  uint64_t received_messages_ = 0;
  uint64_t posted_again_ = 0;
  uint64_t said_posted_ = 0;
  uint64_t consumed_ = 0;
  uint64_t said_consumed_ = 0;
  std::deque<Awaited> awaited_;
  size_t advertised_payloads_ = 0;
  uint64_t looked_ahead_ = 0;  // headers up to this offset are known
  uint64_t pause_at_ = 0;      // later frames depend on the one that ends here
  bool room_wanted_ = false;   // for an advertisement
  bool end_seen_ = false;
  bool socket_ended_ = false;
  std::optional<uint64_t> last_words_;  // number of messages that the other end sent before closing
  Reactor::Clock::time_point ended_at_{};

  // If the provider has no descriptor to sleep on.
  bool noted_ = false;  // the other end knows that this one sleeps
  bool peer_asleep_ = false;
  bool active_ = false;  // since the other end began to sleep
};

}  // namespace topoopt
