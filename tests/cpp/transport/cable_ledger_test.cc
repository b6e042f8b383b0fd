// A model of a cable: two ends, its connections one after the other, and a way around it. Frames,
// losses, new connections and messages come in every order; every frame must arrive exactly once.

#include "transport/endpoint/cable_ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "support/seed.h"
#include "support/test_limits.h"

namespace topoopt {
namespace {

// An item written to a connection: the counts of a hello, or the number of a frame.
struct Written {
  bool hello = false;
  CableCounts counts{};
  int frame = 0;
};

struct Connection {
  std::deque<Written> under_way[2];  // to each end
};

struct KeptFrame {
  int frame;
  uint64_t place;  // in the connection
};

struct ModelEnd {
  CableLedger ledger{};
  int connection = -1;  // that is open; -1: none
  bool established = false;
  uint64_t written = 0;  // frames, in the connection
  uint64_t received = 0;
  std::vector<KeptFrame> kept{};
  int sent = 0;  // of its frames
};

class Model {
 public:
  explicit Model(int frames) : frames_(frames) {
    for (ModelEnd& end : ends_) {
      end.connection = 0;
      end.established = true;
    }
    connections_.emplace_back();
    arrived_.resize(static_cast<size_t>(2 * frames));
  }

  const std::string& wrong() const { return wrong_; }

  // The next events, as numbers for happen(): at most `connections` are made.
  std::vector<int> possible(size_t connections) const {
    std::vector<int> events;
    for (int e = 0; e < 2; ++e) {
      const ModelEnd& end = ends_[e];
      const bool open = end.connection >= 0;
      if (open && end.established && end.sent < frames_) events.push_back(kSend + e);
      if (open && !connections_[end.connection].under_way[e].empty()) events.push_back(kRead + e);
      if (mayFree(e)) events.push_back(kFree + e);
      if (open) events.push_back(kLose + e);
      if (last_joined_[e] + 1 < static_cast<int>(connections_.size())) events.push_back(kJoin + e);
      for (size_t i = 0; i < around_[e].size(); ++i) {
        events.push_back(kAround + e + 2 * static_cast<int>(i));
      }
    }
    const bool wanted = ends_[0].connection < 0 || ends_[1].connection < 0;
    if (wanted && connections_.size() < connections) events.push_back(kConnect);
    return events;
  }

  static bool loses(int event) { return event == kLose || event == kLose + 1; }

  void happen(int event) {
    const int e = event % 2;
    switch (event >= kAround ? kAround : event - e) {
      case kSend:
        return send(e);
      case kRead:
        return read(e);
      case kFree:
        ends_[e].kept.erase(ends_[e].kept.begin());
        return;
      case kLose:
        return lose(e);
      case kJoin:
        return join(e);
      case kConnect:
        connections_.emplace_back();
        return;
      default:
        return onAround(e, (event - kAround) / 2);
    }
  }

  // All that is under way arrives, and the cable stays lost, or has a last connection.
  void end(bool comes_back) {
    for (int e = 0; e < 2; ++e) {
      if (ends_[e].connection >= 0) lose(e);
    }
    const auto deliverAround = [this] {
      while (!around_[0].empty() || !around_[1].empty()) onAround(around_[0].empty() ? 1 : 0, 0);
    };
    if (!comes_back) deliverAround();
    if (comes_back) {
      connections_.emplace_back();
      for (int e = 0; e < 2; ++e) join(e);
      for (int e = 0; e < 2; ++e) {
        while (ends_[e].connection >= 0 && !connections_.back().under_way[e].empty()) read(e);
      }
      deliverAround();
      if (ends_[0].ledger.lost() || ends_[1].ledger.lost()) wrong_ = "the cable is not back";
      if (ends_[0].ledger.generation() != ends_[1].ledger.generation()) {
        wrong_ = "the ends have numbered the last connection differently";
      }
    }
    for (int e = 0; e < 2; ++e) {
      if (!ends_[e].kept.empty()) wrong_ = "an end keeps frames for ever";
      for (int k = 0; k < ends_[e].sent; ++k) {
        if (arrived_[e * frames_ + k] != 1) wrong_ = "a frame has not arrived once";
      }
    }
  }

  // Everything that determines the possible next events.
  std::string state() const {
    std::string text;
    const auto add = [&text](uint64_t value) { text += static_cast<char>(value); };
    const auto addCounts = [&](const CableCounts& counts) {
      add(counts.generation);
      add(counts.received);
      add(counts.received_before);
    };
    for (const ModelEnd& end : ends_) {
      addCounts(end.ledger.counts());
      add(end.ledger.lost());
      add(end.connection + 1);
      add(end.established);
      add(end.written);
      add(end.received);
      add(end.sent);
      add(end.kept.size());
      for (const KeptFrame& kept : end.kept) add(kept.frame);
    }
    add(connections_.size());
    for (const Connection& connection : connections_) {
      for (const auto& list : connection.under_way) {
        add(list.size());
        for (const Written& written : list) {
          add(written.hello ? 100 : written.frame);
          if (written.hello) addCounts(written.counts);
        }
      }
    }
    for (const auto& list : around_) {
      add(list.size());
      for (const CableCounts& counts : list) addCounts(counts);
    }
    for (const int times : arrived_) add(times);
    return text;
  }

 private:
  enum { kSend = 0, kRead = 2, kFree = 4, kLose = 6, kJoin = 8, kConnect = 10, kAround = 12 };

  // The other end's transport has acknowledged the first frame that is kept.
  bool mayFree(int e) const {
    const ModelEnd& end = ends_[e];
    const ModelEnd& other = ends_[1 - e];
    return end.connection >= 0 && end.established && !end.kept.empty() &&
           last_joined_[1 - e] == end.connection && end.kept.front().place < other.received;
  }

  void arrive(int frame) {
    if (++arrived_[frame] > 1) wrong_ = "a frame has come twice";
  }

  void send(int e) {
    ModelEnd& end = ends_[e];
    const int frame = e * frames_ + end.sent++;
    end.kept.push_back({frame, end.written++});
    connections_[end.connection].under_way[1 - e].push_back({.frame = frame});
  }

  void read(int e) {
    ModelEnd& end = ends_[e];
    auto& list = connections_[end.connection].under_way[e];
    const Written first = list.front();
    list.pop_front();
    if (!first.hello) {
      if (!end.established) wrong_ = "a frame before the hello";
      ++end.received;
      return arrive(first.frame);
    }
    settle(e, end.ledger.onHello(first.counts));
    end.established = true;
  }

  void lose(int e) {
    ModelEnd& end = ends_[e];
    connections_[end.connection].under_way[e].clear();
    end.connection = -1;
    if (!std::exchange(end.established, false)) return;
    end.ledger.lose(end.received);
    around_[1 - e].push_back(end.ledger.counts());
  }

  void join(int e) {
    ModelEnd& end = ends_[e];
    if (end.connection >= 0) lose(e);
    end.connection = last_joined_[e] = static_cast<int>(connections_.size()) - 1;
    end.written = end.received = 0;
    connections_.back().under_way[1 - e].push_back({.hello = true, .counts = end.ledger.counts()});
  }

  void onAround(int e, int index) {
    const CableCounts theirs = around_[e][index];
    const CableLedger::Reaction reaction = ends_[e].ledger.onLinkLost(theirs);
    const bool again = reaction.drop && !ends_[e].ledger.lost();
    settle(e, reaction.arrived);
    if (reaction.drop && ends_[e].connection >= 0) lose(e);
    if (again) return;  // once more, now that the connection is lost
    around_[e].erase(around_[e].begin() + index);
    if (reaction.answer) around_[1 - e].push_back(ends_[e].ledger.counts());
  }

  // Frames that the other end does not have go around the cable.
  void settle(int e, std::optional<uint64_t> arrived) {
    if (!arrived) return;
    const auto& first = ends_[e].kept;
    if (!first.empty() && *arrived < first.front().place) wrong_ = "less than was acknowledged";
    for (const KeptFrame& kept : std::exchange(ends_[e].kept, {})) {
      if (kept.place >= *arrived) arrive(kept.frame);
    }
  }

  int frames_;
  ModelEnd ends_[2];
  std::vector<Connection> connections_;
  std::vector<CableCounts> around_[2];  // messages to each end, which overtake each other
  int last_joined_[2] = {0, 0};
  std::vector<int> arrived_;
  std::string wrong_;
};

// The error if the cable stays lost from here on, or comes back; "" if there is none.
std::string wrongAtTheEnd(const Model& model) {
  if (!model.wrong().empty()) return model.wrong();
  for (const bool comes_back : {false, true}) {
    Model last = model;
    last.end(comes_back);
    if (!last.wrong().empty()) return last.wrong() + (comes_back ? " (back)" : " (lost)");
  }
  return "";
}

TEST(CableLedger, EveryFrameArrivesOnceInEveryOrderOfEvents) {
  std::unordered_set<std::string> seen;
  std::vector<Model> open{Model(1)};
  while (!open.empty()) {
    const Model model = std::move(open.back());
    open.pop_back();
    for (const int event : model.possible(3)) {
      Model next = model;
      next.happen(event);
      if (!seen.insert(next.state()).second) continue;
      ASSERT_EQ(wrongAtTheEnd(next), "") << "after " << seen.size() << " states";
      open.push_back(std::move(next));
    }
  }
  EXPECT_GT(seen.size(), 10'000u);
}

TEST(CableLedger, EveryFrameArrivesOnceInLongRandomOrders) {
  TestRandom random(620);
  for (size_t round = 0; round < partOf(2000); ++round) {
    Model model(12);
    for (size_t step = 0; step < 200; ++step) {
      const std::vector<int> events = model.possible(12);
      if (events.empty()) break;
      const int event = events[random.between(0, events.size() - 1)];
      // Connections live for some events, so that frames pass.
      if (Model::loses(event) && random.chance(0.8)) continue;
      model.happen(event);
      ASSERT_EQ(model.wrong(), "") << "round " << round << ", step " << step;
    }
    ASSERT_EQ(wrongAtTheEnd(model), "") << "round " << round;
  }
}

}  // namespace
}  // namespace topoopt
