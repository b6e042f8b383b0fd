#include "transport/link.h"

#include <stdexcept>
#include <system_error>
#include <utility>

#include "transport/memory_link.h"
#include "transport/shm_link.h"
#include "transport/socket_link.h"

namespace topoopt {
namespace {

// Per turn, so that one busy link cannot keep the others waiting.
constexpr size_t kReadTurnBytes = 256 << 10;
constexpr size_t kWriteTurnBytes = 512 << 10;

}  // namespace

std::string errorText(int error) { return std::generic_category().message(error); }

const char* kindName(LinkKind kind) {
  switch (kind) {
    case LinkKind::kSocket:
      return "socket";
    case LinkKind::kSharedMemory:
      return "shm";
    case LinkKind::kMemory:
      return "memory";
  }
  return "unknown";
}

LinkKind kindNamed(const std::string& name) {
  if (name == "socket") return LinkKind::kSocket;
  if (name == "shm") return LinkKind::kSharedMemory;
  throw std::invalid_argument("kind of link: " + name + "; it must be socket or shm");
}

std::string textOf(const plan::Link& link) {
  const auto end = [](int rank, int port) {
    return "server " + std::to_string(rank) + " port " + std::to_string(port);
  };
  if (link.source_port < 0) {
    return "rank " + std::to_string(link.source) + " -> rank " + std::to_string(link.target) +
           " of the same server";
  }
  return end(link.source, link.source_port) + " -> " + end(link.target, link.target_port);
}

std::unique_ptr<Link> Link::open(const LinkSpec& spec, const Context& context) {
  switch (spec.kind) {
    case LinkKind::kSocket:
      return std::make_unique<SocketLink>(spec, context);
    case LinkKind::kSharedMemory:
      return std::make_unique<ShmLink>(spec, context);
    case LinkKind::kMemory:
      return std::make_unique<MemoryLink>(spec, context);
  }
  throw std::invalid_argument("kind of link: " + std::to_string(static_cast<int>(spec.kind)));
}

Link::Link(const LinkSpec& spec, const Context& context)
    : name_(spec.link),
      sends_(spec.sends),
      context_(context),
      queue_(context.rank),
      reader_(context.buffers) {}

void Link::close() {
  if (std::exchange(dead_, true)) return;
  reactor().forget(this);
  closeBytes();
  queue_.clear();
}

void Link::lose(const std::string& why) {
  if (dead_) return;
  close();
  context_.observer.onLost(*this, why);
}

void Link::finish() {
  if (!sends_ || dead_) return;  // the sending end decides
  finishing_ = true;
  endIfFinished();
}

void Link::endIfFinished() {
  if (dead_ || !finishing_ || !idle() || std::exchange(write_ended_, true)) return;
  endWriting();
}

LinkCounters Link::counters() const {
  LinkCounters counters = queue_.counters();
  counters.received_bytes = received_bytes_;
  return counters;
}

// ---- turns -------------------------------------------------------------------------------------

void Link::askTurn() {
  if (std::exchange(turn_asked_, true)) return;
  reactor().askTurn(this);
}

void Link::becameReadable() {
  readable_ = true;
  askTurn();
}

void Link::becameWritable() {
  writable_ = true;
  if (!queue_.empty()) askTurn();
}

void Link::onTurn() {
  turn_asked_ = false;
  if (readable_) readFrames();
  if (!dead_) writeFrames();
}

// ---- reading -----------------------------------------------------------------------------------

// False if the link is lost, or closed by a callback.
bool Link::takeFrames() {
  for (;;) {
    switch (reader_.next()) {
      case FrameReader::Step::kRead:
        return true;
      case FrameReader::Step::kPlace:
        reader_.payloadTo(context_.observer.onHeader(*this, reader_.header()));
        break;
      case FrameReader::Step::kFrame: {
        const FrameHeader header = reader_.header();
        if (countsAsPayload(header)) received_bytes_ += header.payload_bytes;
        context_.observer.onFrame(*this, header, reader_.takePayload(), reader_.placed());
        if (dead_) return false;
        break;
      }
      case FrameReader::Step::kBroken:
        lose("received something that is not a frame");
        return false;
    }
  }
}

void Link::readFrames() {
  for (size_t turn_bytes = 0; turn_bytes < kReadTurnBytes;) {
    iovec parts[2];
    const int part_count = reader_.room(parts);
    size_t count = 0;
    const Io io = readBytes(parts, part_count, count);
    turn_bytes += count;
    reader_.filled(count);
    if (count > 0 && !takeFrames()) return;
    switch (io) {
      case Io::kMore:
        break;
      case Io::kBlocked:
        readable_ = false;
        return expect(reader_.left());
      case Io::kEnded:
        return lose("closed by the other end");
      case Io::kBroken:
        return lose(error_);
    }
  }
  askTurn();
}

void Link::redirect(const std::byte* begin, const std::byte* end) { reader_.redirect(begin, end); }

// ---- writing -----------------------------------------------------------------------------------

void Link::send(OutFrame frame) {
  if (dead_ || finishing_ || write_ended_) return;
  queue_.push(std::move(frame));
  if (writable_) askTurn();
}

void Link::sendControl(OutFrame frame) {
  if (dead_ || finishing_ || write_ended_) return;
  queue_.pushControl(std::move(frame));
  if (writable_) askTurn();
}

void Link::writeFrames() {
  for (size_t turn_bytes = 0; writable_ && !queue_.empty();) {
    if (turn_bytes >= kWriteTurnBytes) return askTurn();
    iovec parts[FrameQueue::kMaxParts];
    const int part_count = queue_.gather(parts, batchBytes());
    size_t count = 0;
    const Io io = writeBytes(parts, part_count, count);
    turn_bytes += count;
    queue_.wrote(count);
    if (dead_) return;
    if (io == Io::kBroken) return lose(error_);
    if (io == Io::kEnded) {
      // What the other end sent before it went, such as the reason, can still be read; the link is
      // lost when that ends.
      write_ended_ = true;
      queue_.clear();
    }
    if (io == Io::kBlocked) writable_ = false;
  }
  endIfFinished();
}

void Link::dropOwn(uint32_t channel, const std::function<void(const FrameHeader&)>& dropped) {
  queue_.dropOwn(channel, context_.buffers, dropped);
  endIfFinished();
}

void Link::dropData() {
  queue_.dropData();
  endIfFinished();
}

}  // namespace topoopt
