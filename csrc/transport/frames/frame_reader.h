// Cuts what arrives on a link into frames. Payload goes straight to its place; only headers, and
// payload that came with them, pass through a small buffer.
//
// A link that has payloads written into their places by the other end, several at a time, decides
// those places before the frames' turns: placeAhead().

#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <deque>

#include "transport/frames/frame.h"
#include "transport/frames/payload_buffer.h"

namespace topoopt {

class FrameReader {
 public:
  // What to do next.
  enum class Step {
    kRead,    // more bytes: into room(), then call filled()
    kPlace,   // say where the payload of header() goes: payloadTo()
    kFrame,   // header() is complete, and its payload is in its place, or in takePayload()
    kBroken,  // these bytes are no frame
  };

  explicit FrameReader(BufferPool& buffers) : buffers_(buffers) {}

  Step next();
  const FrameHeader& header() const { return header_; }
  // `place` stays valid until the frame is complete, or redirect(); nullptr for an own buffer.
  void payloadTo(std::byte* place);
  bool placed() const { return placed_; }
  // The same for a frame that next() will come to after others, in their order; returns where its
  // payload goes. There is no kPlace for it then.
  std::byte* placeAhead(const FrameHeader& header, std::byte* place);
  size_t left() const { return in_frame_ ? left_ : 0; }  // of the payload that is being read
  PayloadBuffer takePayload() { return std::move(own_); }

  // Parts to read into; returns how many.
  int room(iovec (&parts)[2]);
  void filled(size_t bytes);

  // What comes next is the beginning of a frame of another connection.
  void reset();

  // If a payload is being read into [begin, end), the rest of it goes to an own buffer instead; so
  // do those that were placed there ahead.
  void redirect(const std::byte* begin, const std::byte* end);

 private:
  static constexpr size_t kAheadBytes = 4 << 10;

  bool takePlaceAhead();

  BufferPool& buffers_;
  std::array<std::byte, kAheadBytes> ahead_;  // bytes read ahead of what has been cut
  size_t ahead_begin_ = 0;
  size_t ahead_end_ = 0;
  FrameHeader header_;
  bool in_frame_ = false;
  bool placed_ = false;
  std::byte* at_ = nullptr;
  size_t left_ = 0;  // of the payload
  PayloadBuffer own_;
  struct Ahead {
    FrameHeader header;
    bool placed;
    std::byte* at;
    PayloadBuffer own;  // where it is not placed, or no more
  };
  std::deque<Ahead> placed_ahead_;
};

}  // namespace topoopt
