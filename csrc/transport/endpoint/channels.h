// The channels of this rank, with the callbacks of their owners.
//
// A channel is unknown, open or closed; it never opens again. The last closed ones are remembered,
// so that frames which come late are recognised; of older ones nothing is on its way any more.
//
// Invariant: an owner may close channels in every call, so each call goes over a copy of what it
// was found in.
//
// Everything runs on the reactor thread.

#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "transport/endpoint/routes.h"
#include "transport/frames/frame.h"
#include "transport/reactor.h"

namespace topoopt {

// Callbacks of the owner of a channel, on the loop.
struct ChannelEvents {
  // Another rank fails the channel, or a link is lost.
  std::function<void(std::exception_ptr)> failed;
  // A frame between members of the group came: of type kCall, kStateRequest, kState, kLook or
  // kRings... or kSizes.
  std::function<void(const FrameHeader& header, const std::string& payload)> control{};
  // `peer` has sent a message of collective `number`, which is over here and had no receive for it.
  std::function<void(int peer, uint32_t number)> unmatched{};
  // Cables were lost, came back or have another rate, a short time ago; see cables().
  std::function<void()> links_changed{};
  // A rank has left the job in good order, before or since the channel was opened.
  std::function<void(int rank)> left{};
};

class Channels {
 public:
  Channels(Reactor& reactor, Routes& routes) : reactor_(reactor), routes_(routes) {}

  bool isClosed(uint32_t channel) const { return closed_.contains(channel); }
  const std::string& whyClosed(uint32_t channel) const { return closed_.at(channel).why; }
  // Of an open channel, else empty.
  std::function<void(std::exception_ptr)> failureHandler(uint32_t channel) const;

  void open(uint32_t channel, ChannelEvents events);
  // False if it was closed before.
  bool close(uint32_t channel, const std::string& why);
  // Forgets the channel that was closed first, if there are too many, and returns it.
  std::optional<uint32_t> forgetOldest();

  // Each calls the owners of all open channels.
  void failAll(const std::string& why) const;
  void linksChanged() const;
  void left(int rank) const;
  // Calls the owner of one channel, if it is open.
  void left(uint32_t channel, int rank) const;

  // Collective `number` has made all its receives. False if the channel is not open.
  bool finishCall(uint32_t channel, uint64_t number);
  // A message for a lane has come, or is announced, that no receive is posted for. If its
  // collective is over, the owner is called, later.
  void reportIfOver(const FrameHeader& header);
  void reportUnmatched(uint32_t channel, int peer, uint32_t number);

  // A frame between members of a group. If the channel is not open, it is answered, kept for the
  // owner, or dropped.
  void onControl(const FrameHeader& header, const std::string& payload);

  size_t rememberedEntries() const { return open_.size() + closed_.size() + closed_order_.size(); }

 private:
  struct Open {
    ChannelEvents events;
    uint64_t next_call = 0;  // collectives before this number have made all their receives
  };
  struct Closed {
    std::string why;
    uint64_t next_call = 0;  // number of the first collective that has not been made here
  };

  Reactor& reactor_;
  Routes& routes_;
  std::map<uint32_t, Open> open_;
  std::map<uint32_t, Closed> closed_;  // the last ones, as closed_order_ has them
  std::deque<uint32_t> closed_order_;
  // For channels that are not open yet.
  std::deque<std::pair<FrameHeader, std::string>> early_controls_;
};

}  // namespace topoopt
