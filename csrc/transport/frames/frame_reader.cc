#include "transport/frames/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace topoopt {

FrameReader::Step FrameReader::next() {
  const size_t ahead = ahead_end_ - ahead_begin_;
  if (!in_frame_) {
    if (ahead < sizeof header_) return Step::kRead;
    std::memcpy(&header_, ahead_.data() + ahead_begin_, sizeof header_);
    ahead_begin_ += sizeof header_;
    if (header_.magic != kFrameMagic || header_.payload_bytes > kMaxPayloadBytes) {
      return Step::kBroken;
    }
    in_frame_ = true;
    left_ = header_.payload_bytes;
    if (!takePlaceAhead()) return Step::kPlace;
    return next();
  }
  const size_t taken = std::min(left_, ahead);
  if (taken > 0) {
    std::memcpy(at_, ahead_.data() + ahead_begin_, taken);
    ahead_begin_ += taken;
    at_ += taken;
    left_ -= taken;
  }
  if (left_ > 0) return Step::kRead;
  in_frame_ = false;
  return Step::kFrame;
}

std::byte* FrameReader::placeAhead(const FrameHeader& header, std::byte* place) {
  PayloadBuffer own = buffers_.take(place != nullptr ? 0 : header.payload_bytes);
  std::byte* const at = place != nullptr ? place : own.data();
  placed_ahead_.push_back({header, place != nullptr, at, std::move(own)});
  return at;
}

// Returns whether placeAhead() has placed this frame.
bool FrameReader::takePlaceAhead() {
  if (placed_ahead_.empty() ||
      std::memcmp(&placed_ahead_.front().header, &header_, sizeof header_) != 0) {
    return false;
  }
  Ahead& ahead = placed_ahead_.front();
  placed_ = ahead.placed;
  at_ = ahead.at;
  own_ = std::move(ahead.own);
  placed_ahead_.pop_front();
  return true;
}

void FrameReader::payloadTo(std::byte* place) {
  placed_ = place != nullptr;
  own_ = buffers_.take(placed_ ? 0 : left_);
  at_ = placed_ ? place : own_.data();
}

int FrameReader::room(iovec (&parts)[2]) {
  if (ahead_begin_ > 0) {
    std::memmove(ahead_.data(), ahead_.data() + ahead_begin_, ahead_end_ - ahead_begin_);
    ahead_end_ -= std::exchange(ahead_begin_, 0);
  }
  int count = 0;
  if (in_frame_ && left_ > 0) parts[count++] = {at_, left_};
  parts[count++] = {ahead_.data() + ahead_end_, ahead_.size() - ahead_end_};
  return count;
}

void FrameReader::filled(size_t bytes) {
  if (in_frame_) {
    const size_t payload = std::min(bytes, left_);
    at_ += payload;
    left_ -= payload;
    bytes -= payload;
  }
  ahead_end_ += bytes;
}

void FrameReader::reset() {
  ahead_begin_ = ahead_end_ = 0;
  in_frame_ = false;
  left_ = 0;
  own_ = {};
  placed_ahead_.clear();
}

void FrameReader::redirect(const std::byte* begin, const std::byte* end) {
  for (Ahead& ahead : placed_ahead_) {
    if (!ahead.own.empty() || ahead.at < begin || ahead.at >= end) continue;
    ahead.own = buffers_.take(ahead.header.payload_bytes);
    ahead.at = ahead.own.data();
  }
  if (!in_frame_ || left_ == 0 || at_ < begin || at_ >= end) return;
  own_ = buffers_.take(left_);
  at_ = own_.data();
}

}  // namespace topoopt
