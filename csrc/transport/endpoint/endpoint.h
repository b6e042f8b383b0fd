// This rank's place in the network: messages to and from every other rank, over planned links only.
//
// A message for a rank without a link is cut into frames that the ranks in between relay. The state
// belongs to classes that know nothing of each other but what their constructors take: the flows
// that this rank sends and receives (out_flows.h, in_flows.h), the channels that they belong to
// (channels.h), the ways of frames (routes.h), cables that are lost, slow or moved
// (local_cables.h, cable_rates.h, cable_reports.h), neighbours that fall silent
// (neighbour_watch.h), and the end of the job (job_end.h). The endpoint hands each frame to the one
// that it is about, and does what concerns several of them.
//
// Callbacks run on the reactor thread. Functions marked "loop" may only be called there.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/worker_pool.h"
#include "transport/endpoint/cable_graph.h"
#include "transport/endpoint/cable_reports.h"
#include "transport/endpoint/channels.h"
#include "transport/endpoint/in_flows.h"
#include "transport/endpoint/job_end.h"
#include "transport/endpoint/local_cables.h"
#include "transport/endpoint/neighbour_watch.h"
#include "transport/endpoint/open_links.h"
#include "transport/endpoint/out_flows.h"
#include "transport/endpoint/routes.h"
#include "transport/frames/flow_limits.h"
#include "transport/frames/frame.h"
#include "transport/links/link.h"
#include "transport/reactor.h"

namespace topoopt {

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
  // How often cables are checked for acknowledgements.
  std::chrono::milliseconds cable_tick{200};
};

// The bytes that an endpoint holds for other ranks.
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
  // are copied as soon as all is written, others when hurry() is called. With
  // `ways`, it takes these instead of those to the peer.
  void send(const FlowId& flow, const void* data, size_t bytes, uint64_t fingerprint, Done done,
            bool prompt = true, std::shared_ptr<Routes::Ways> ways = nullptr);

  // Loop. Makes all messages sent on the channel so far prompt.
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

  // Loop. The known state of all cables; nullptr if links are not cables.
  const CableGraph* cables() const { return graph_.get(); }

  // Loop.
  Routes& routes() { return routes_; }

  // Loop.
  void openChannel(uint32_t channel, ChannelEvents events);

  // Loop. Collective `number` of the channel has made all its receives. At once or later,
  // `unmatched` is called for messages of it that nothing has received.
  void finishCall(uint32_t channel, uint64_t number);

  // Loop. Of the flow from its peer: the cost of what has come to its receives so far.
  uint64_t consumedOf(const FlowId& flow) const { return in_.consumedOf(flow); }

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

  // Any thread. Starts the next iteration for all later sends; returns its number. The
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
  std::byte* onHeader(Link& link, const FrameHeader& header) override;
  void onFrame(Link& link, const FrameHeader& header, PayloadBuffer payload, bool placed) override;
  void onLost(Link& link, Loss loss, const std::string& why) override;
  void onWritten(uint32_t channel) override { hurry(channel); }

  bool allConsumed() const override { return out_.allConsumed(); }
  void requestAcknowledgements() override { out_.requestAcknowledgements(status_); }
  void onRankLeft(int rank) override;
  void onJobFailed(const std::string& why) override;
  void onChannelFailed(uint32_t channel, const std::string& why) override;

  std::string wrongEnds(const FrameHeader& header) const;
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
  const FailJob fail_job_ = [this](const std::string& why) { end_.failAll(why); };
  Routes routes_;
  JobEnd end_;
  const JobStatus& status_;
  Channels channels_;
  OutFlows out_;
  InFlows in_;
  std::unique_ptr<CableReports> reports_;  // if there are cables
  std::unique_ptr<LocalCables> cables_;    // likewise
  NeighbourWatch neighbours_;
  int cables_held_ = 0;  // by so many, while circuits move
  std::atomic<uint64_t> iteration_{0};
  IterationBytes own_iterations_;
  bool stopped_ = false;
};

}  // namespace topoopt
