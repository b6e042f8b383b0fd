// The flows that this rank receives: the k-th message of a flow goes to its k-th receive.
//
// A message is announced while its sender waits for the receive, early once bytes of it are here
// without one, posted once its receive is known. A posted one takes its bytes where they belong; it
// is complete when it has all of them, and its receive is done when those before it are.
//
// Invariant: consumed bytes are acknowledged before they stop their sender: at once if the sender
// waits, else when FlowLimits::ack bytes of that sender are not. A sender has at most twice
// FlowLimits::early_peer bytes here without a receive, else it fails the job. All frames of a flow
// belong to its generation or begin a newer one (out_flows.h).
//
// Everything runs on the reactor thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "transport/endpoint/job_end.h"
#include "transport/endpoint/open_links.h"
#include "transport/endpoint/routes.h"
#include "transport/frames/flow_limits.h"
#include "transport/frames/frame.h"
#include "transport/frames/frame_queue.h"
#include "transport/frames/payload_buffer.h"

namespace topoopt {

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

class InFlows {
 public:
  // Where a message goes.
  struct ReceiveBuffer {
    void* data;
    size_t bytes;
    uint64_t fingerprint;
    Done done;
    // The message may have fewer bytes; here is how many, before `done` follows.
    size_t* actual = nullptr;
  };
  // The same of one of several ranks.
  struct AnyReceive {
    std::vector<int> peers;
    uint32_t channel;
    uint64_t stream;
    std::function<void(int)> from;  // called with the peer as soon as it is known
    ReceiveBuffer receive;
  };

  // All references outlive this.
  InFlows(int rank, int size, const FlowLimits& limits, const OpenLinks& links, Routes& routes,
          const JobStatus& status, FailJob fail);

  void post(const FlowId& id, ReceiveBuffer receive);
  void postAny(AnyReceive any);

  // Of a data frame for this rank: where its payload goes; nullptr if its receive is not known.
  std::byte* placeFor(const FrameHeader& header);
  // Of channels that are open. True if reportIfOver() of the owner of channels should follow: the
  // frame begins, or announces, a lane's message that has no receive.
  bool onData(const FrameHeader& header, PayloadBuffer payload, bool placed);
  bool onRequestToSend(const FrameHeader& header);
  void onAckRequest(const FrameHeader& header);
  void onForget(const FrameHeader& header, const PayloadBuffer& payload);
  // A frame of a channel that is closed here.
  void refuse(const FrameHeader& header);

  void closeChannel(uint32_t channel);
  // Channels on which a receive waits for this rank, which has left.
  std::set<uint32_t> waitingFor(int rank) const;
  // A rank that has sent a message of this collective which no receive was posted for.
  std::optional<int> senderWithoutReceive(uint32_t channel, uint32_t call) const;

  // The cost of what has come to the receives of a flow.
  uint64_t consumedOf(const FlowId& id) const;
  const HeldBytes& early() const { return kept_early_; }
  size_t rememberedEntries() const { return flows_.size() + early_calls_.size(); }

 private:
  struct Posted : ReceiveBuffer {
    size_t received = 0;
    bool complete = false;

    void learnSize(size_t message_bytes) {
      if (actual == nullptr || message_bytes > bytes) return;
      bytes = *std::exchange(actual, nullptr) = message_bytes;
    }
    std::byte* at(uint64_t offset) const { return static_cast<std::byte*>(data) + offset; }
  };
  struct Early {  // frames that came before their receive
    size_t message_bytes = 0;
    uint64_t fingerprint = 0;
    size_t cost = 0;
    std::vector<std::pair<size_t, PayloadBuffer>> frames{};  // offset, payload
  };
  struct Flow {
    std::deque<Posted> posted;
    uint64_t base = 0;  // number of the message that the first posted receive takes
    std::map<uint64_t, Early> early;
    uint64_t consumed = 0;
    uint64_t acked = 0;
    uint64_t requested = 0;  // the sender has requested the receives before this number
    bool ack_at_once = false;
    bool listed = false;      // in Sender::unacked
    bool begun = false;       // something has come, so `generation` is known
    uint32_t generation = 0;  // as its sender has it
    uint32_t requests = 0;    // kRequestToSend received

    // A message is here, or on its way, that no receive is posted for.
    bool hasNext() const {
      const uint64_t next = base + posted.size();
      return requested > next || early.contains(next);
    }
    Posted* postedFor(uint64_t message) {
      if (message < base || message - base >= posted.size()) return nullptr;
      return &posted[message - base];
    }
    bool isCurrent(uint32_t frame_generation);
    void beginAnew();
  };
  struct Sender {                // another rank
    uint64_t early = 0;          // cost of what is kept here without a receive
    uint64_t unacked_bytes = 0;  // consumed since it was notified last
    std::vector<FlowId> unacked{};
  };

  bool matches(const FlowId& id, const Posted& posted, size_t message_bytes, uint64_t fingerprint,
               const Done& done) const;
  void takeEarly(const FlowId& id, Flow& flow, uint64_t number);
  void bindAnyReceives(const FlowId& id);
  void completeFront(const FlowId& id);
  bool keepEarly(const FlowId& id, Flow& flow, const FrameHeader& header, PayloadBuffer payload);
  void forgetEarly(int source, size_t cost);
  void uncountEarly(const FlowId& id, uint64_t fingerprint);
  void consumed(const FlowId& id, Flow& flow, size_t cost);
  void acknowledge(const FlowId& id, Flow& flow);
  void acknowledgeEverything(const FlowId& id, uint32_t generation);
  bool allLeft(const std::vector<int>& peers) const;

  const int rank_;
  const FlowLimits& limits_;
  const OpenLinks& links_;
  Routes& routes_;
  const JobStatus& status_;
  const FailJob fail_;
  std::unordered_map<FlowId, Flow, FlowHash> flows_;
  std::vector<Sender> senders_;
  std::deque<AnyReceive> any_;
  // Messages of lanes that are here before their receive, by channel and number of the collective.
  std::unordered_map<uint64_t, uint32_t> early_calls_;
  HeldBytes kept_early_;
};

// Of the data of a message.
bool fitsItsMessage(const FrameHeader& header);

}  // namespace topoopt
