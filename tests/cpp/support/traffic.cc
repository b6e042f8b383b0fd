#include "support/traffic.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

namespace topoopt {
namespace {

constexpr uint32_t kFingerprint = 77;

}  // namespace

std::vector<std::byte> randomBytes(size_t count, TestRandom& random) {
  std::vector<std::byte> bytes(count);
  uint64_t word = random.word() | 1;
  for (size_t i = 0; i < count; i += sizeof(word)) {
    word *= 0x9e3779b97f4a7c15;  // odd, so that no word comes twice before 2^62 have come
    std::memcpy(bytes.data() + i, &word, std::min(sizeof(word), count - i));
  }
  return bytes;
}

bool sameBytes(const std::vector<std::byte>& some, const std::vector<std::byte>& others) {
  return some.size() == others.size() &&
         (some.empty() || std::memcmp(some.data(), others.data(), some.size()) == 0);
}

std::string Traffic::Message::text() const {
  return std::to_string(data.size()) + " bytes from rank " + std::to_string(source) + " to rank " +
         std::to_string(flow.peer) + " on channel " + std::to_string(flow.channel) + " stream " +
         std::to_string(flow.stream);
}

Done Traffic::Message::sentDone() {
  return [this, done = sent.done()](std::exception_ptr error) {
    std::ranges::fill(sent_from, std::byte{0xdd});
    done(error);
  };
}

void Traffic::add(int source, int target, uint32_t channel, uint64_t stream, size_t bytes,
                  TestRandom& random) {
  messages_.push_back({{target, channel, stream},
                       source,
                       randomBytes(bytes, random),
                       std::vector<std::byte>(bytes, std::byte{0xee})});
}

void Traffic::addRandom(int size, size_t count, size_t max_bytes, TestRandom& random) {
  for (size_t i = 0; i < count; ++i) {
    const size_t last = static_cast<size_t>(size) - 1;
    const size_t source = random.between(0, last);
    const size_t target = (source + random.between(1, last)) % static_cast<size_t>(size);
    add(static_cast<int>(source), static_cast<int>(target),
        static_cast<uint32_t>(random.between(0, 1)), random.between(0, 2), random.size(max_bytes),
        random);
  }
}

void Traffic::start(Network& network, TestRandom& random, bool sends, bool receives) {
  // One queue per end of a flow; the order of the queues' turns is random.
  using Key = std::tuple<bool, int, int, uint32_t, uint64_t>;
  std::map<Key, std::deque<Message*>> queues;
  std::vector<Key> turns;
  for (Message& message : messages_) {
    for (const bool send : {true, false}) {
      if (send ? !sends : !receives) continue;
      const Key key{send, message.source, message.flow.peer, message.flow.channel,
                    message.flow.stream};
      queues[key].push_back(&message);
      turns.push_back(key);
    }
  }
  std::shuffle(turns.begin(), turns.end(), random.engine());
  for (const Key& key : turns) {
    Message* message = queues[key].front();
    queues[key].pop_front();
    const bool send = std::get<0>(key);
    const int rank = send ? message->source : message->flow.peer;
    Endpoint* endpoint = network.at(rank).get();
    endpoint->reactor().post([=] {
      if (send) {
        return endpoint->send(message->flow, message->sent_from.data(), message->sent_from.size(),
                              kFingerprint, message->sentDone());
      }
      FlowId flow = message->flow;
      flow.peer = message->source;
      endpoint->receive(flow, message->arrived.data(), message->arrived.size(), kFingerprint,
                        message->received.done());
    });
  }
}

void Traffic::waitForSends(int rank) {
  for (Message& message : messages_) {
    if (message.source != rank) continue;
    EXPECT_EQ(message.sent.wait("sending " + message.text()), "");
  }
}

void Traffic::waitFor(int rank) {
  waitForSends(rank);
  for (Message& message : messages_) {
    if (message.flow.peer != rank) continue;
    EXPECT_EQ(message.received.wait("receiving " + message.text()), "");
    EXPECT_TRUE(sameBytes(message.arrived, message.data)) << "wrong bytes in " << message.text();
  }
}

void Traffic::check() {
  for (Message& message : messages_) {
    ASSERT_EQ(message.sent.wait("sending " + message.text()), "");
    ASSERT_EQ(message.received.wait("receiving " + message.text()), "");
    ASSERT_TRUE(sameBytes(message.arrived, message.data)) << "wrong bytes in " << message.text();
  }
}

}  // namespace topoopt
