// Links without connections: tests of what an endpoint is made of look at the frames that wait in
// them. Use them on the reactor thread, where nothing else takes those frames.

#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/endpoint/cable_graph.h"
#include "transport/endpoint/open_links.h"
#include "transport/links/link.h"
#include "transport/reactor.h"

namespace topoopt {

class FakeLink final : public Link {
 public:
  FakeLink(const LinkSpec& spec, const Context& context)
      : Link(spec, context, {.acknowledgements = &answers_, .replaceable = &connection_}) {}
  ~FakeLink() override { close(); }

  void start() override {}
  void onReady(uint32_t) override {}

  // Writes all that waits.
  void write() {
    writes_ = true;
    becameWritable();
    onTurn();
    writes_ = false;
  }

  Acknowledged answer = Acknowledged::kAdvances;

 protected:
  Io readBytes(const iovec*, int, size_t&) override { return Io::kBlocked; }
  Io writeBytes(const iovec* parts, int part_count, size_t& count) override {
    if (!writes_) return Io::kBlocked;
    for (int i = 0; i < part_count; ++i) count += parts[i].iov_len;
    return Io::kMore;
  }
  void endWriting() override {}
  void closeBytes() override {}

 private:
  struct Answers final : Acknowledgements {
    explicit Answers(const FakeLink& link) : link(link) {}
    Acknowledged acknowledged() override { return link.answer; }
    const FakeLink& link;
  };
  struct Connection final : Replaceable {
    void reopenBytes(const LinkSpec&) override {}
  };

  Answers answers_{*this};
  Connection connection_;
  bool writes_ = false;
};

// What rank `rank` has in place of an endpoint.
class FakeLinks final : public Link::Observer {
 public:
  explicit FakeLinks(int rank) : rank_(rank) {}
  ~FakeLinks() override { reactor.stop(); }

  FakeLink& add(int peer, int cable = kNoCable) {
    LinkSpec spec;
    spec.link = {rank_, static_cast<int>(links.size()), peer, 0};
    spec.peer = peer;
    spec.cable = cable;
    auto link = std::make_unique<FakeLink>(spec, Link::Context{rank_, reactor, buffers, *this});
    FakeLink& added = *link;
    links.push_back({spec, std::move(link)});
    return added;
  }

  // A ring of ranks: cable i joins rank i and the next one.
  static std::vector<CableEnds> ringCables(int size) {
    std::vector<CableEnds> cables;
    for (int rank = 0; rank < size; ++rank) cables.push_back({{}, rank, (rank + 1) % size});
    return cables;
  }

  // The frames that wait in a link, which has them no more: control frames first.
  static std::vector<FrameHeader> take(Link& link) {
    std::vector<FrameHeader> headers;
    for (const OutFrame& frame : link.takeUnwritten()) headers.push_back(frame.header);
    return headers;
  }

  std::byte* onHeader(Link&, const FrameHeader&) override { return nullptr; }
  void onFrame(Link&, const FrameHeader&, PayloadBuffer, bool) override {}
  void onLost(Link&, Loss, const std::string& why) override { lost.push_back(why); }

  Reactor reactor;
  BufferPool buffers;
  OpenLinks links;
  std::vector<std::string> lost;

 private:
  const int rank_;
};

}  // namespace topoopt
