// The flows that this rank sends: messages are cut into frames and leave as their windows allow.
//
// A message is pending until all its frames are handed to links; its bytes are in the network until
// the receiver has consumed them. Bytes whose receive is known to be posted (before `granted`)
// count against the window and, if ranks relay them, against FlowLimits::relayed; all others count
// against FlowLimits::early. A flow that finds no room waits in a list and goes on by itself.
//
// Invariant: no flow has more than its window in the network, and all flows together no more than
// their limits. So no relay ever has to refuse a frame, and no frame waits for room at the next
// hop: no cycle of relays can wait for each other.
//
// Tags come and go, and so do their flows: each end remembers those of which something is on its
// way, and a limited number of others. The sender decides: it forgets flows of which nothing is on
// its way in either direction, notifies the receiver, and begins anew at message 0 when one of them
// is used again. The two ends need not do so at the same time, for the frames of a flow say which
// one they mean: they carry the number of times that the sender had forgotten flows to this
// receiver when the flow began, its generation. A receiver that finds a newer one than it knows has
// everything of the older one.
//
// Everything runs on the reactor thread.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "transport/endpoint/job_end.h"
#include "transport/endpoint/routes.h"
#include "transport/frames/flow_limits.h"
#include "transport/frames/frame.h"
#include "transport/frames/frame_queue.h"

namespace topoopt {

// Flows to one rank that are forgotten together.
inline constexpr size_t kForgottenFlows = 256;

class OutFlows {
 public:
  struct OutgoingMessage {
    const void* data;
    size_t bytes;
    uint64_t fingerprint;
    uint16_t iteration;
    std::shared_ptr<SendProgress> progress;
    // Of this message; nullptr: those to the peer.
    std::shared_ptr<Routes::Ways> ways{};
  };

  OutFlows(int rank, int size, size_t window_bytes, const FlowLimits& limits, Routes& routes);

  // `ways` lead to the peer.
  void send(const FlowId& id, Routes::Ways& ways, OutgoingMessage message);
  // Makes all waiting messages of the channel prompt.
  void hurry(uint32_t channel);

  // A kAck. `closed`: the channel is, so the flow is of no use once all is consumed.
  void onAck(const FrameHeader& header, bool closed);
  // A frame of this rank that will not be consumed; nothing may wait for that.
  void onDropped(const FrameHeader& header);
  // A flow with waiting messages goes on when a kAck arrives: its receiver has consumed bytes or
  // posted receives. No frame is lost with a cable (cable_ledger.h). If one is lost all the same,
  // this makes the receiver send its last kAck again. If the receiver is only late, nothing
  // changes.
  void remindReceivers();

  // Drops the waiting messages of the channel. leave() still waits for sent ones.
  void closeChannel(uint32_t channel);
  // The same, but nothing is waited for.
  void failChannel(uint32_t channel);
  // Nothing is waited for that was sent to this rank. Returns the channels on which something still
  // waits to be sent to it.
  std::set<uint32_t> giveUp(int rank);

  bool allConsumed() const;
  // Receivers shall acknowledge every byte at once.
  void requestAcknowledgements(const JobStatus& status);
  size_t rememberedEntries() const;

 private:
  struct Pending : OutgoingMessage {
    uint64_t number;
    size_t framed = 0;
  };
  struct Flow {
    std::deque<Pending> pending;  // not yet cut into frames completely
    uint64_t next_number = 0;
    uint64_t sent = 0;       // cost of all frames handed to links
    uint64_t acked = 0;      // cost of all frames consumed
    uint64_t granted = 0;    // the receives of all messages before this number are posted
    uint64_t requested = 0;  // the receives of all messages before this number were requested
    uint64_t early = 0;    // cost of what is on its way, or there, and not known to have a receive
    uint64_t charged = 0;  // to relayed_
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
  struct Receiver {              // another rank
    uint64_t early = 0;          // cost of what it may be keeping for its application
    uint32_t generation = 0;     // of flows that begin now
    std::vector<FlowId> idle{};  // flows that may be forgotten
  };

  void pump(const FlowId& id, Flow& flow);
  void pump(const FlowId& id, Flow& flow, Routes::Ways& ways);
  std::optional<size_t> allowance(const FlowId& id, Flow& flow);
  void requestReceive(const FlowId& id, Flow& flow, const Pending& message);
  void addEarly(const FlowId& id, Flow& flow, size_t cost);
  void settle(const FlowId& id, Flow& flow);
  void release(const FlowId& id, Flow& flow);
  void resumeWaiting();
  void noteIdle(const FlowId& id, Flow& flow);
  void forgetIdle(int peer);

  const int rank_;
  const size_t window_bytes_;
  const FlowLimits& limits_;
  Routes& routes_;
  std::unordered_map<FlowId, Flow, FlowHash> flows_;
  std::vector<Receiver> receivers_;
  uint64_t early_ = 0;    // of all flows
  uint64_t relayed_ = 0;  // likewise
  // Flows that found no room; one that is forgotten, or has gone on, may still stand here.
  std::deque<FlowId> waiting_early_;
  std::deque<FlowId> waiting_relayed_;
  std::chrono::steady_clock::time_point next_reminder_{};
};

}  // namespace topoopt
