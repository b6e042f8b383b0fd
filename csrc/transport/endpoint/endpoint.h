// This rank's place in the network: messages to and from every other rank, over planned links only.
//
// A message for a rank without a link is cut into frames that the ranks in between relay. Each flow
// may have `window_bytes` in the network that its receiver has not consumed, and all flows of a
// source together what flow_limits.h says, and no more. So a relay never has to refuse a frame. No
// frame ever waits for room at the next hop, hence no cycle of relays can wait for each other,
// whatever the routes and the operations are.
//
// A cable that is lost costs no frame: what its two ends have not passed to each other goes other
// ways, and so does what comes later, until the cable has a new connection (local_cables.h).
//
// A rank that is done says so to all others and goes on relaying until all are done (leave()).
//
// Callbacks run on the reactor thread. Functions marked "loop" may only be called there.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "common/worker_pool.h"
#include "transport/endpoint/cable_graph.h"
#include "transport/endpoint/cable_reports.h"
#include "transport/endpoint/job_end.h"
#include "transport/endpoint/local_cables.h"
#include "transport/endpoint/neighbour_watch.h"
#include "transport/endpoint/open_links.h"
#include "transport/endpoint/routes.h"
#include "transport/frames/flow_limits.h"
#include "transport/frames/frame.h"
#include "transport/links/link.h"
#include "transport/reactor.h"

namespace topoopt {

// Flows to one rank that are forgotten together.
inline constexpr size_t kForgottenFlows = 256;

// A message and the receive that it came to do not fit.
struct MessageMismatch : MismatchError {
  struct Side {
    size_t bytes;
    uint64_t fingerprint;
  };

  MessageMismatch(int sender, int receiver, Side sent, Side expected);

  const int sender;
  const Side sent;
  const Side expected;
};

// What an endpoint calls the owner of a channel for, on the loop.
struct ChannelEvents {
  // Another rank fails the channel, or a link is lost.
  std::function<void(std::exception_ptr)> failed;
  // A frame between members of the group came: of type kCall, kStateAsk, kState, kLook or
  // kRings... .
  std::function<void(const FrameHeader& header, const std::string& payload)> control{};
  // `peer` has sent a message of collective `number`, which is over here and had no receive for it.
  std::function<void(int peer, uint32_t number)> unmatched{};
  // Cables were lost, came back or have another rate, a short time ago; see cables().
  std::function<void()> links_changed{};
  // A rank has left the job in good order, before or since the channel was opened.
  std::function<void(int rank)> left{};
};

struct EndpointConfig {
  int rank = 0;
  int size = 1;
  std::vector<LinkSpec> links = {};
  // Over ranks: of every pair without a link, and of those that have a choice.
  std::vector<plan::Route> routes = {};
  size_t window_bytes = 4 << 20;  // of one flow
  // That each rank keeps for others, about; the same on all ranks. See flow_limits.h.
  size_t memory_bytes = 192 << 20;
  // All connections between servers, the same list on all ranks. If there are none, a link that is
  // lost fails the endpoint; else its frames take other ways.
  std::vector<CableEnds> cables = {};
  std::vector<int> servers = {};  // of each rank; empty if all are different
  // How long a rank may say nothing, or not be reachable, before that fails the endpoint.
  std::chrono::milliseconds silence_limit{20'000};
  // Threads that add up long chunks of collectives; 0: the reactor thread does.
  size_t workers = 0;
  // How often cables are asked what is acknowledged, and whether anything is.
  std::chrono::milliseconds cable_tick{200};
};

// What an endpoint holds for other ranks.
struct HeldMemory {
  HeldBytes relayed{};  // payload on its way to other ranks
  HeldBytes early{};    // messages whose receive is not posted yet, with their headers
  HeldBytes buffers{};  // memory of all payload that waits here
};

class Endpoint final : private Link::Observer, private JobEnd::Host {
 public:
  // Owns the links' descriptors from here on. Throws std::invalid_argument if the configuration is
  // not possible, std::system_error if the system refuses something.
  explicit Endpoint(EndpointConfig config);
  ~Endpoint() override;

  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  int rank() const { return config_.rank; }
  int size() const { return config_.size; }
  Reactor& reactor() { return reactor_; }
  WorkerPool* workers() { return workers_.get(); }  // nullptr if there are none
  const FlowLimits& limits() const { return limits_; }

  // Loop. Hands over `bytes` bytes; `done` follows when the memory may be used again. If the link
  // may be lost, long messages are kept in that memory until they are acknowledged; `prompt` ones
  // are copied as soon as all is written, others when hurry() is called.
  void send(const FlowId& flow, const void* data, size_t bytes, uint64_t fingerprint, Done done,
            bool prompt = true);

  // Loop. What has been sent on the channel so far is prompt.
  void hurry(uint32_t channel);

  // Loop. Takes the next message of the flow, which must have exactly this size and fingerprint.
  void receive(const FlowId& flow, void* data, size_t bytes, uint64_t fingerprint, Done done);

  // Loop. The same of a message of `capacity` bytes at most; `bytes` has how many it is before
  // `done` follows, and is valid until then or until closeChannel().
  void receiveUpTo(const FlowId& flow, void* data, size_t capacity, uint64_t fingerprint,
                   size_t* bytes, Done done);

  // Loop. Takes the next message of the first of the flows (peer, channel, stream) that has one;
  // `from` is called with the peer as soon as it is known.
  void receiveAny(const std::vector<int>& peers, uint32_t channel, uint64_t stream, void* data,
                  size_t bytes, uint64_t fingerprint, std::function<void(int)> from, Done done);

  // Loop. What all cables are known to be; nullptr if links are not cables.
  const CableGraph* cables() const { return graph_.get(); }

  // Loop.
  void openChannel(uint32_t channel, ChannelEvents events);

  // Loop. Collective `number` of the channel has made all its receives. At once or later,
  // `unmatched` is called for messages of it that nothing has received.
  void finishCall(uint32_t channel, uint64_t number);

  // Loop. Of the flow from its peer: the cost of what has come to its receives so far.
  uint64_t consumedOf(const FlowId& flow) const;

  // Loop. To one rank: a frame without place in a flow, over the first route. The source is set
  // here.
  void sendControl(int target, const FrameHeader& header, const std::string& payload) {
    routes_.sendControl(target, header, payload);
  }

  // Loop. Forgets every send and receive on `channel`: their memory is free when this returns, and
  // their callbacks are not called. Not from a callback of send or receive: post it.
  void closeChannel(uint32_t channel, const std::string& why = "the group was shut down");

  // Loop. Closes the channel; with `broadcast`, all ranks fail it for the same reason.
  void failChannel(uint32_t channel, const std::string& why, bool broadcast);

  // Not on the loop. Waits until all that was sent has been consumed, notifies all ranks, and
  // relays until all ranks have left, something fails, or the time is up. Returns why it gave up,
  // or "".
  std::string leave(std::chrono::milliseconds limit) { return end_.leave(limit); }

  // Not on the loop. Fails everything, here and on all other ranks. Returns when the neighbours
  // have the reason, or after a short limit.
  void fail(const std::string& why) { end_.fail(why); }

  // Not on the loop. Closes the links and ends the thread; open channels fail.
  void stop();

  // Loop. While circuits move, cables are neither judged by what passes them nor greeted: from
  // here until the last one that holds them lets go.
  void holdCables();
  void letCablesGo();
  // Loop. Whether the system of a neighbour has acknowledged something since the last call, or has
  // nothing to acknowledge. For ranks that hold cables, which nobody else asks meanwhile.
  bool answers(int neighbour);
  // Loop. Whether the neighbours' systems have all that was sent to them, and have said so. What
  // has come from them is acknowledged at once.
  bool quiet();

  // Not on the loop: one entry per link, in the order of the configuration.
  std::vector<LinkTraffic> traffic();
  // Loop. The same.
  std::vector<LinkTraffic> trafficOnLoop() const;

  // Any thread: readable while lostCables() may have changed; the reader empties it.
  int cablesEvent() const { return cables_ ? cables_->event() : -1; }
  // Not on the loop: this rank's cables that need a new connection.
  std::vector<int> lostCables();
  // Not on the loop: gives a cable a new, verified connection, which belongs to the endpoint from
  // here on. The old one counts as lost, if it is not yet. With a `tls_key` if the first one had
  // one, else throws std::invalid_argument.
  void replaceCable(int cable, int fd, std::string tls_key = {});
  // Not on the loop: the end that is going to dial a cable that is in use, to move it, says so. The
  // other end gets the new connection first. False if the cable is not in use.
  bool beginMove(int cable);
  // Not on the loop: the new connection has failed.
  void endMove(int cable);
  // Not on the loop: this rank's cables that are slow.
  std::vector<int> slowCables();
  // Not on the loop: what the connection of a cable may send, until it has another one; nullopt: as
  // much as it can.
  void limitCable(int cable, std::optional<uint64_t> bytes_per_s);

  // Any thread. What is sent from now on belongs to the next iteration; returns its number. The
  // first one is 0.
  uint64_t beginIteration() { return ++iteration_; }
  uint64_t iteration() const { return iteration_; }

  // Not on the loop.
  HeldMemory heldMemory();
  // Not on the loop: flows and channels of which something is remembered.
  size_t rememberedEntries();

  // Not on the loop: what each link has sent of each iteration from `first` on, own and relayed.
  std::vector<std::vector<uint64_t>> iterationBytes(uint64_t first, size_t count);
  // The same of what this rank has sent by itself, over whatever link.
  std::vector<uint64_t> ownIterationBytes(uint64_t first, size_t count);

 private:
  struct OutMessage {
    const std::byte* data;
    size_t bytes;
    size_t framed = 0;
    uint64_t number;
    uint64_t fingerprint;
    uint16_t iteration;
    std::shared_ptr<SendProgress> progress;
  };
  struct OutFlow {
    std::deque<OutMessage> pending;  // not yet cut into frames completely
    uint64_t next_number = 0;
    uint64_t sent = 0;     // cost of all frames handed to links
    uint64_t acked = 0;    // cost of all frames consumed
    uint64_t granted = 0;  // the receives of all messages before this number are posted
    uint64_t asked = 0;    // the receiver has been asked for those before this number
    uint64_t early = 0;    // cost of what is on its way, or there, and not known to have a receive
    uint64_t charged = 0;  // to out_relayed_
    bool relayed = false;  // over relays, on some route at least
    bool waits_early = false;
    bool waits_relayed = false;
    bool listed = false;      // in Peer::idle
    uint32_t generation = 0;  // Peer::generation when it began
    uint32_t requests = 0;    // kRequestToSend sent
    uint32_t answered = 0;    // of which the receiver has answered so many
    // Progress at the last look of remindReceivers(), and the number of looks without any.
    uint64_t progress_seen = 0;
    uint32_t looks_without_progress = 0;

    // Nothing of it is on its way, in either direction.
    bool idle() const { return pending.empty() && sent == acked && requests == answered; }
  };
  struct Posted {
    std::byte* data;
    size_t bytes;
    uint64_t fingerprint;
    Done done;
    size_t received = 0;
    bool complete = false;
    size_t* actual = nullptr;  // of receiveUpTo, until the size of its message is known

    void learnSize(size_t message_bytes) {
      if (actual == nullptr || message_bytes > bytes) return;
      bytes = *std::exchange(actual, nullptr) = message_bytes;
    }
  };
  struct Channel {
    ChannelEvents events;
    uint64_t next_call = 0;  // collectives before this number have made all their receives
  };
  struct ClosedChannel {
    std::string why;
    uint64_t next_call = 0;  // number of the first collective that has not been made here
  };
  struct Early {  // frames that came before their receive
    size_t message_bytes = 0;
    uint64_t fingerprint = 0;
    size_t cost = 0;
    std::vector<std::pair<size_t, PayloadBuffer>> frames{};  // offset, payload
  };
  struct InFlow {
    std::deque<Posted> posted;
    uint64_t base = 0;  // number of the message that the first posted receive takes
    std::map<uint64_t, Early> early;
    uint64_t consumed = 0;
    uint64_t acked = 0;
    uint64_t requested = 0;  // the sender has asked for the receives before this number
    bool ack_at_once = false;
    bool listed = false;      // in Peer::unacked
    bool begun = false;       // something has come, so `generation` is known
    uint32_t generation = 0;  // as its sender has it
    uint32_t requests = 0;    // kRequestToSend received

    // A message is here, or on its way, that no receive is posted for.
    bool hasNext() const {
      const uint64_t next = base + posted.size();
      return requested > next || early.contains(next);
    }
  };
  struct Peer {                  // another rank, as a receiver and as a source
    uint64_t out_early = 0;      // cost of what it may be keeping for its application
    uint64_t in_early = 0;       // the same of what is kept here
    uint64_t unacked_bytes = 0;  // consumed since it was notified last
    std::vector<FlowId> unacked{};
    uint32_t generation = 0;     // of flows to it that begin now
    std::vector<FlowId> idle{};  // flows to it that may be forgotten
  };
  struct AnyReceive {
    std::vector<int> peers;
    uint32_t channel;
    uint64_t stream;
    std::byte* data;
    size_t bytes;
    uint64_t fingerprint;
    std::function<void(int)> from;
    Done done;
  };
  std::byte* onHeader(Link& link, const FrameHeader& header) override;
  void onFrame(Link& link, const FrameHeader& header, PayloadBuffer payload, bool placed) override;
  void onLost(Link& link, Loss loss, const std::string& why) override;
  void onWritten(uint32_t channel) override { hurry(channel); }

  bool allConsumed() const override;
  void requestAcknowledgements() override;
  void onRankLeft(int rank) override;
  void onJobFailed(const std::string& why) override;
  void onChannelFailed(uint32_t channel, const std::string& why) override;

  // The flow of a frame for this rank, from its source; an acknowledgement is about the flow of the
  // same name in the other direction.
  static FlowId flowOf(const FrameHeader& header) {
    return {header.source, header.channel, header.stream};
  }
  void pump(const FlowId& id, OutFlow& flow);
  std::string wrongEnds(const FrameHeader& header) const;
  void onData(const FrameHeader& header, PayloadBuffer payload, bool placed);
  void onAck(const FrameHeader& header);
  void onAckRequest(const FrameHeader& header);
  void onControl(const FrameHeader& header, const std::string& payload);
  void countEarly(const FrameHeader& header);
  void reportIfOver(const FrameHeader& header);
  void uncountEarly(const FlowId& id, uint64_t fingerprint);
  void reportUnmatched(uint32_t channel, int peer, uint32_t number);
  void post(const FlowId& id, Posted posted);
  Posted* postedFor(InFlow& flow, uint64_t message);
  void bindAnyReceives(const FlowId& id);
  std::optional<size_t> allowance(const FlowId& id, OutFlow& flow);
  void addEarly(const FlowId& id, OutFlow& flow, size_t cost);
  void settle(const FlowId& id, OutFlow& flow);
  void release(const FlowId& id, OutFlow& flow);
  void resumeWaiting();
  void onRequestToSend(const FrameHeader& header);
  void remindReceivers();
  void noteIdle(const FlowId& id, OutFlow& flow);
  void forgetIdle(int peer);
  void onForget(const FrameHeader& header, const PayloadBuffer& payload);
  static void beginAnew(InFlow& flow);
  static bool isCurrent(InFlow& flow, uint32_t generation);
  bool keepEarly(const FlowId& id, InFlow& flow, const FrameHeader& header, PayloadBuffer payload);
  void forgetEarly(int source, size_t cost);
  void consumed(const FlowId& id, InFlow& flow, size_t cost);
  void acknowledge(const FlowId& id, InFlow& flow);
  void acknowledgeEverything(const FlowId& id, uint32_t generation);
  void completeFront(const FlowId& id);
  bool matches(const FlowId& id, size_t bytes, uint64_t fingerprint, size_t message_bytes,
               uint64_t message_fingerprint, const Done& done);
  bool allLeft(const std::vector<int>& peers) const;
  void forgetChannel(uint32_t channel);
  void startCables();
  void tick();
  void onCables(const std::function<void(LocalCables&)>& function);

  const EndpointConfig config_;
  const FlowLimits limits_;
  const std::unique_ptr<WorkerPool> workers_;
  Reactor reactor_;
  BufferPool buffers_;
  const OpenLinks links_;
  // The thread ends before the links go, also where the constructor throws.
  struct ReactorEnd {
    Reactor& reactor;
    ~ReactorEnd() { reactor.stop(); }
  };
  const ReactorEnd reactor_end_{reactor_};
  const std::unique_ptr<CableGraph> graph_;  // if there are cables
  Routes routes_;
  JobEnd end_;
  const JobStatus& status_;
  std::unordered_map<FlowId, OutFlow, FlowHash> out_;
  std::unordered_map<FlowId, InFlow, FlowHash> in_;
  std::vector<Peer> peers_;
  uint64_t out_early_ = 0;    // of all flows
  uint64_t out_relayed_ = 0;  // of all flows
  // Flows that found no room; one that is forgotten, or has gone on, may still stand here.
  std::deque<FlowId> waiting_early_;
  std::deque<FlowId> waiting_relayed_;
  HeldBytes kept_early_;
  std::deque<AnyReceive> any_;
  std::map<uint32_t, Channel> channels_;
  // Messages of lanes that are here before their receive, by channel and number of the collective.
  std::unordered_map<uint64_t, uint32_t> early_calls_;
  std::map<uint32_t, ClosedChannel> closed_channels_;  // the last ones, as closed_order_ has them
  std::deque<uint32_t> closed_order_;
  // For channels that are not open yet.
  std::deque<std::pair<FrameHeader, std::string>> early_controls_;
  std::unique_ptr<CableReports> reports_;  // if there are cables
  std::unique_ptr<LocalCables> cables_;    // likewise
  NeighbourWatch neighbours_;
  int cables_held_ = 0;  // by so many, while circuits move
  Reactor::Clock::time_point next_reminder_{};
  std::atomic<uint64_t> iteration_{0};
  IterationBytes own_iterations_;
  bool stopped_ = false;
};

}  // namespace topoopt
