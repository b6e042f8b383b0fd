#include "backend/supervision/pickle_writer.h"

#include <bit>
#include <limits>

namespace topoopt {

// Little-endian.
void PickleWriter::number(uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) bytes_ += static_cast<char>(value >> (8 * i));
}

void PickleWriter::text(std::string_view value) {
  bytes_ += 'X';
  number(value.size(), 4);
  bytes_ += value;
}

void PickleWriter::texts(std::string_view first, std::string_view second) {
  text(first);
  text(second);
  bytes_ += '\x86';
}

void PickleWriter::integer(int64_t value) {
  if (value >= std::numeric_limits<int32_t>::min() &&
      value <= std::numeric_limits<int32_t>::max()) {
    bytes_ += 'J';
    return number(static_cast<uint64_t>(value), 4);
  }
  bytes_ += '\x8a';
  bytes_ += '\x08';
  number(static_cast<uint64_t>(value), 8);
}

// Big-endian.
void PickleWriter::real(double value) {
  bytes_ += 'G';
  const auto bits = std::bit_cast<uint64_t>(value);
  for (int i = 7; i >= 0; --i) bytes_ += static_cast<char>(bits >> (8 * i));
}

}  // namespace topoopt
