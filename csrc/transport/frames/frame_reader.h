// Splits the incoming bytes of a link into frames. Payload goes directly to its place; only
// headers, and payload that arrives with them, pass through a small buffer.
//
// If the other end writes several payloads directly into memory, their places are decided before
// the frames' turns: placeAhead().

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
  // The next step of the caller.
  enum class Step {
    kRead,    // read more bytes into room(), then call filled()
    kPlace,   // call payloadTo() for the payload of header()
    kFrame,   // header() is complete, and its payload in place or in takePayload()
    kBroken,  // invalid bytes
  };

  explicit FrameReader(BufferPool& buffers) : buffers_(buffers) {}

  Step next();
  const FrameHeader& header() const { return header_; }
  // `place` must stay valid until the frame is complete, or redirect(); nullptr: a private buffer.
  void payloadTo(std::byte* place);
  bool placed() const { return placed_; }
  // Places the payload of a later frame, in order, and returns its place. next() then returns no
  // kPlace for it.
  std::byte* placeAhead(const FrameHeader& header, std::byte* place);
  size_t left() const { return in_frame_ ? left_ : 0; }  // of the current payload
  PayloadBuffer takePayload() { return std::move(own_); }

  // Buffers to read into; returns their number.
  int room(iovec (&parts)[2]);
  void filled(size_t bytes);

  // A new connection begins.
  void reset();

  // Redirects payloads that are being read, or placed ahead, into [begin, end) to private buffers.
  void redirect(const std::byte* begin, const std::byte* end);

 private:
  static constexpr size_t kAheadBytes = 4 << 10;

  bool takePlaceAhead();

  BufferPool& buffers_;
  std::array<std::byte, kAheadBytes> ahead_;  // bytes after the current frame
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
    PayloadBuffer own;  // if the payload has no place
  };
  std::deque<Ahead> placed_ahead_;
};

}  // namespace topoopt
