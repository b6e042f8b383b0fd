// What arrives on a link, cut at any places: whatever it is, FrameReader stays inside its buffers,
// and takes no more memory for a frame than a frame may have.

#include "transport/frames/frame_reader.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

using topoopt::BufferPool;
using topoopt::FrameReader;
using topoopt::PayloadBuffer;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

// The first byte says how long the parts are in which the rest arrives; the second, what is done
// with payloads.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const size_t part = 1 + data[0] * 5;
  const uint8_t places = data[1];
  data += 2;
  size -= 2;

  BufferPool buffers;
  FrameReader reader(buffers);
  std::vector<std::byte> place;
  std::vector<PayloadBuffer> kept;
  size_t frames = 0, offered = 0;
  for (;;) {
    switch (reader.next()) {
      case FrameReader::Step::kBroken:
        return 0;
      case FrameReader::Step::kPlace: {
        require(reader.left() <= topoopt::kMaxPayloadBytes);
        const bool own = (places >> (frames % 4)) & 1;
        // Exactly as long as the payload, for the sanitizer to see a byte too many.
        if (!own) place = std::vector<std::byte>(reader.left());
        reader.payloadTo(own ? nullptr : place.data());
        break;
      }
      case FrameReader::Step::kFrame:
        require(reader.left() == 0);
        if (!reader.placed()) {
          kept.push_back(reader.takePayload());
          require(kept.back().size() == reader.header().payload_bytes);
          if (kept.size() > 4) kept.clear();
        }
        ++frames;
        break;
      case FrameReader::Step::kRead: {
        if (offered == size) return 0;
        if ((places & 0x10) != 0 && frames % 3 == 1) {
          reader.redirect(place.data(), place.data() + place.size());
        }
        iovec parts[2];
        const int count = reader.room(parts);
        size_t got = 0;
        for (int i = 0; i < count && offered < size && got < part; ++i) {
          const size_t bytes = std::min({parts[i].iov_len, size - offered, part - got});
          std::memcpy(parts[i].iov_base, data + offered, bytes);
          offered += bytes;
          got += bytes;
          if (bytes < parts[i].iov_len) break;
        }
        require(got > 0);
        reader.filled(got);
      }
    }
  }
}
