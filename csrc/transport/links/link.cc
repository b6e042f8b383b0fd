#include "transport/links/link.h"

#include <stdexcept>
#include <system_error>
#include <utility>

namespace topoopt {
namespace {

// Read limit per turn, so that a busy link cannot starve the others.
constexpr size_t kReadTurnBytes = 512 << 10;
constexpr size_t kWriteTurnBytes = 512 << 10;
// Acknowledgement time of a running host. A silent cable is dropped only after a longer time.
constexpr std::chrono::milliseconds kAnswerTime{250};

}  // namespace

void Replaceable::reopenBytes(const LinkSpec& spec) {
  throw std::logic_error("a link of kind " + std::string(kindName(spec.kind)) +
                         " cannot be replaced");
}

std::string errorText(int error) { return std::generic_category().message(error); }

const char* kindName(LinkKind kind) {
  switch (kind) {
    case LinkKind::kSocket:
      return "socket";
    case LinkKind::kSharedMemory:
      return "shm";
    case LinkKind::kFabric:
      return "fabric";
  }
  return "unknown";
}

LinkKind kindNamed(const std::string& name) {
  if (name == "socket") return LinkKind::kSocket;
  if (name == "shm") return LinkKind::kSharedMemory;
  if (name == "fabric") return LinkKind::kFabric;
  throw std::invalid_argument("kind of link: " + name + "; it must be socket, shm or fabric");
}

ZeroCopy zeroCopyNamed(const std::string& name) {
  if (name == "off") return ZeroCopy::kOff;
  if (name == "on") return ZeroCopy::kOn;
  if (name == "always") return ZeroCopy::kAlways;
  throw std::invalid_argument("zero_copy: " + name + "; it must be off, on or always");
}

std::string textOf(const plan::LinkPorts& link) {
  const auto end = [](int rank, int port) {
    return "server " + std::to_string(rank) + " port " + std::to_string(port);
  };
  if (link.source_port < 0) {
    return "rank " + std::to_string(link.source) + " -> rank " + std::to_string(link.target);
  }
  return end(link.source, link.source_port) + " -> " + end(link.target, link.target_port);
}

Link::Link(const LinkSpec& spec, const Context& context, const Capabilities& capabilities)
    : name_(spec.link),
      sends_(spec.sends),
      cable_(spec.cable),
      context_(context),
      can_(capabilities),
      queue_(context.rank, context.buffers, spec.cable != kNoCable),
      reader_(context.buffers) {}

void Link::close() {
  if (std::exchange(dead_, true)) return;
  reactor().forget(this);
  closeBytes();
  queue_.lend(FrameQueue::kNothingLent);
  queue_.clear();
}

// Returns whether acknowledgements have stalled. If the other end closes such a link, it has found
// the cable silent, because the host of an ending process still acknowledges.
bool Link::isUnanswered() {
  const uint64_t written = queue_.writtenBytes();
  const size_t in_flight = can_.acknowledgements->unacknowledgedBytes();
  return in_flight > 0 && in_flight <= written && written - in_flight == last_acknowledged_ &&
         Reactor::Clock::now() - answered_at_ > kAnswerTime;
}

void Link::lose(Loss loss, const std::string& why) {
  if (dead_) return;
  if (cable_ != kNoCable && loss == Loss::kClosed && isUnanswered()) loss = Loss::kSilent;
  if (cable_ == kNoCable) {
    close();
    queue_.unacknowledged(0);  // what was written counts as sent
  } else {
    dead_ = true;
    reactor().forget(this);
    turn_requested_ = false;
    parks_ = loss != Loss::kClosed && loss != Loss::kGivenUp;
    held_ = loss != Loss::kClosed && established_ && can_.replaceable->holdBytes();
    if (!held_) closeBytes();
    queue_.lend(FrameQueue::kNothingLent);
    if (!held_) reader_.reset();
  }
  context_.observer.onLost(*this, loss, why);
}

// After a write error. First reads the bytes that a cable's transport has acknowledged.
void Link::giveUp() {
  const Loss loss = loss_;
  const std::string why = error_;
  if (cable_ == kNoCable) return lose(loss, why);
  drop(loss, why);
}

void Link::drop(Loss loss, const std::string& why) {
  if (dead_) return;
  can_.replaceable->endReading();
  leaves_nothing_ = true;
  readable_ = true;
  readFrames(SIZE_MAX);
  lose(loss, why);
}

void Link::finishReading() {
  if (!held_) return;
  readFrames(SIZE_MAX);
  held_ = false;
  if (parks_) {
    can_.replaceable->parkBytes();
  } else {
    closeBytes();
  }
  reader_.reset();
}

void Link::reopen(const LinkSpec& spec) {
  dead_ = false;
  established_ = false;
  leaves_nothing_ = false;
  readable_ = false;
  writable_ = true;
  write_ended_ = false;
  received_frames_ = 0;
  last_acknowledged_ = queue_.writtenBytes();
  answered_at_ = Reactor::Clock::now();
  can_.replaceable->reopenBytes(spec);
  start();
}

// The other end's first frame proves that it no longer uses the old connection.
void Link::establish() {
  established_ = true;
  can_.replaceable->closeParked();
}

void Link::hurry(uint32_t channel) {
  if (queue_.keepsMessages()) lookForAcknowledgements();
  queue_.hurry(channel);
  report();
}

void Link::lookForAcknowledgements() {
  if (dead_) return;
  if (cable_ == kNoCable) {
    queue_.unacknowledged(0);
    return report();
  }
  const uint64_t written = queue_.writtenBytes();
  const size_t in_flight = can_.acknowledgements->unacknowledgedBytes();
  const uint64_t acknowledged = written - std::min<uint64_t>(in_flight, written);
  if (in_flight == 0 || std::exchange(last_acknowledged_, acknowledged) != acknowledged) {
    answered_at_ = Reactor::Clock::now();
  }
  queue_.unacknowledged(in_flight);
  report();
}

void Link::report() {
  for (const uint32_t channel : queue_.takeWritten()) context_.observer.onWritten(channel);
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
  can_.lent_memory->addTo(counters);
  return counters;
}

// ---- turns -------------------------------------------------------------------------------------

void Link::askTurn() {
  if (dead_ || std::exchange(turn_requested_, true)) return;
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

void Link::gaveBack() {
  gave_back_ = true;
  askTurn();
}

void Link::onTurn() {
  turn_requested_ = false;
  if (dead_) return;  // a sent frame is kept for another link
  if (std::exchange(gave_back_, false)) {
    queue_.lend(can_.lent_memory->lentFrom());
    lookForAcknowledgements();
  }
  if (readable_) readFrames(kReadTurnBytes);
  if (!dead_) writeFrames();
}

// ---- reading -----------------------------------------------------------------------------------

// Returns false if the link is lost, or a callback has closed it.
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
        if (header.type != FrameType::kLinkHello) ++received_frames_;
        context_.observer.onFrame(*this, header, reader_.takePayload(), reader_.placed());
        if (dead_ && !held_) return false;
        break;
      }
      case FrameReader::Step::kBroken:
        lose(Loss::kBroken, "received something that is not a frame");
        return false;
    }
  }
}

void Link::readFrames(size_t most_bytes) {
  for (size_t turn_bytes = 0; turn_bytes < most_bytes;) {
    iovec parts[2];
    const int part_count = reader_.room(parts);
    size_t count = 0;
    const Io io = readBytes(parts, part_count, count);
    turn_bytes += count;
    received_ = received_ || count > 0;
    reader_.filled(count);
    if (count > 0 && !takeFrames()) return;
    switch (io) {
      case Io::kMore:
        break;
      case Io::kBlocked:
        readable_ = false;
        return can_.wake_ups->expect(reader_.left());
      case Io::kEnded:
        return lose(Loss::kClosed, "closed by the other end");
      case Io::kBroken:
        return lose(loss_, error_);
    }
  }
  askTurn();
}

void Link::redirect(const std::byte* begin, const std::byte* end) {
  can_.lent_memory->settleReading(begin, end);
  reader_.redirect(begin, end);
}

// ---- writing -----------------------------------------------------------------------------------

void Link::send(OutFrame frame) {
  if (drops()) return;
  queue_.push(std::move(frame));
  if (writable_) askTurn();
}

void Link::sendControl(OutFrame frame) {
  if (drops()) return;
  queue_.pushControl(std::move(frame));
  if (writable_) askTurn();
}

void Link::sendHeader(const FrameHeader& header) {
  OutFrame frame;
  frame.header = header;
  sendControl(std::move(frame));
}

void Link::writeFrames() {
  for (size_t turn_bytes = 0; writable_ && !queue_.empty();) {
    if (turn_bytes >= kWriteTurnBytes) return askTurn();
    iovec parts[FrameQueue::kMaxParts];
    const int part_count = queue_.gather(parts, batch_bytes_);
    size_t count = 0;
    const Io io = writeBytes(parts, part_count, count);
    turn_bytes += count;
    wrote_ = wrote_ || count > 0;
    queue_.lend(can_.lent_memory->lentFrom());
    queue_.wrote(count);
    report();
    if (queue_.keepsMuch()) lookForAcknowledgements();
    if (dead_) return;
    if (io == Io::kBroken) return giveUp();
    if (io == Io::kEnded) {
      // The other end's last frames, such as the reason, can still be read; then the link is lost.
      write_ended_ = true;
      if (cable_ == kNoCable) queue_.clear();
    }
    if (io == Io::kBlocked || io == Io::kEnded) writable_ = false;
  }
  endIfFinished();
}

void Link::dropOwn(uint32_t channel, const std::function<void(const FrameHeader&)>& dropped) {
  can_.lent_memory->settleWriting();
  queue_.lend(can_.lent_memory->lentFrom());
  queue_.dropOwn(channel, can_.lent_memory->begunBytes(), dropped);
  endIfFinished();
}

void Link::dropData() {
  queue_.dropData(can_.lent_memory->begunBytes());
  endIfFinished();
}

}  // namespace topoopt
