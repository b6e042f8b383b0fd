#include "nccl/own_messages.h"

#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

namespace topoopt::nccl {

void OwnMessages::send(uint32_t channel, int tag, const void* data, size_t bytes, Done done) {
  Lane& lane = lanes_[{channel, tag}];
  lane.sent.push_back({data, bytes, std::move(done)});
  match(lane);
}

void OwnMessages::receive(uint32_t channel, int tag, void* data, size_t capacity, size_t* bytes,
                          Done done) {
  Lane& lane = lanes_[{channel, tag}];
  lane.posted.push_back({data, capacity, bytes, std::move(done)});
  match(lane);
}

void OwnMessages::match(Lane& lane) {
  while (!lane.sent.empty() && !lane.posted.empty()) {
    const Sent sent = std::move(lane.sent.front());
    const Posted posted = std::move(lane.posted.front());
    lane.sent.pop_front();
    lane.posted.pop_front();
    std::exception_ptr error;
    if (sent.bytes > posted.capacity) {
      error = std::make_exception_ptr(
          std::runtime_error("a message of " + std::to_string(sent.bytes) +
                             " bytes came to a receive of " + std::to_string(posted.capacity)));
    } else {
      if (sent.bytes > 0) std::memcpy(posted.data, sent.data, sent.bytes);
      *posted.bytes = sent.bytes;
    }
    sent.done(nullptr);
    posted.done(error);
  }
}

void OwnMessages::forget(uint32_t channel, bool sent) {
  auto lane = lanes_.lower_bound({channel, INT32_MIN});
  while (lane != lanes_.end() && lane->first.first == channel) {
    if (sent) {
      lane->second.sent.clear();
    } else {
      lane->second.posted.clear();
    }
    const bool empty = lane->second.sent.empty() && lane->second.posted.empty();
    lane = empty ? lanes_.erase(lane) : std::next(lane);
  }
}

}  // namespace topoopt::nccl
