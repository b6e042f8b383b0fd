#include "sim/packet/options.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace topoopt::packet {

namespace {

void check(bool right, const char* field, double value, const char* wanted) {
  if (right) return;
  std::string text = std::to_string(value);
  if (value == std::floor(value)) text = text.substr(0, text.find('.'));
  throw std::invalid_argument(std::string(field) + ": " + text + " is not " + wanted);
}

void checkPositive(const char* field, double value) {
  check(std::isfinite(value) && value > 0, field, value, "a finite number above 0");
}

void checkPart(const char* field, double value) {
  check(value > 0 && value <= 1, field, value, "above 0 and at most 1");
}

}  // namespace

void PacketOptions::validate() const {
  constexpr int kMostBytes = 1 << 20;
  check(payload_bytes >= 1 && payload_bytes <= kMostBytes, "mtu_bytes", payload_bytes,
        "in 1..1048576");
  check(header_bytes >= 1 && header_bytes <= kMostBytes, "header_bytes", header_bytes,
        "in 1..1048576");
  const int64_t full = payload_bytes + header_bytes;
  for (const auto& [field, bytes] : {std::pair{"switch_queue_bytes", switch_queue_bytes},
                                     {"relay_queue_bytes", relay_queue_bytes}}) {
    check(bytes == 0 || bytes >= full, field, static_cast<double>(bytes),
          "0 (no limit) or at least a full packet");
  }
  checkPositive("retransmission_timeout_s", retransmission_timeout_s);
  if (path_choice == PathChoice::kAdaptive && transport != "constant") {
    throw std::invalid_argument(
        "path_choice: adaptive lets packets overtake each other, and needs "
        "transport constant, not " +
        transport);
  }
  if (lossless) {
    check(transport != "ndp", "lossless", 1, "possible with ndp, which trims");
    check(pause_above_bytes >= full, "pause_above_bytes", static_cast<double>(pause_above_bytes),
          "at least a full packet");
    check(resume_below_bytes >= 0 && resume_below_bytes <= pause_above_bytes, "resume_below_bytes",
          static_cast<double>(resume_below_bytes), "in 0..pause_above_bytes");
  }
  if (!control_first) {
    check(!lossless && transport != "ndp", "control_first", 0,
          "possible where links are paused or packets trimmed");
  }
  check(sends_at_once >= 0, "sends_at_once", sends_at_once, "at least 0");
  if (sends_at_once > 0 && path_choice != PathChoice::kAdaptive) {
    throw std::invalid_argument("sends_at_once: needs path_choice adaptive");
  }
  check(dctcp.initial_window_packets >= 1, "dctcp_initial_window_packets",
        dctcp.initial_window_packets, "at least 1");
  checkPart("dctcp_gain", dctcp.gain);
  check(dctcp.mark_above_packets >= 0, "dctcp_mark_above_packets", dctcp.mark_above_packets,
        "at least 0");
  check(roce.packets_per_ack >= 1, "roce_packets_per_ack", roce.packets_per_ack, "at least 1");
  check(dcqcn.mark_from_bytes >= 0, "dcqcn_mark_from_bytes",
        static_cast<double>(dcqcn.mark_from_bytes), "at least 0");
  check(dcqcn.mark_all_from_bytes >= dcqcn.mark_from_bytes, "dcqcn_mark_all_from_bytes",
        static_cast<double>(dcqcn.mark_all_from_bytes), "at least dcqcn_mark_from_bytes");
  checkPart("dcqcn_mark_probability", dcqcn.mark_probability);
  checkPositive("dcqcn_congestion_interval_s", dcqcn.congestion_interval_s);
  checkPositive("dcqcn_alpha_interval_s", dcqcn.alpha_interval_s);
  checkPositive("dcqcn_increase_interval_s", dcqcn.increase_interval_s);
  checkPositive("dcqcn_increase_bytes", static_cast<double>(dcqcn.increase_bytes));
  checkPart("dcqcn_gain", dcqcn.gain);
  check(dcqcn.recovery_steps >= 1, "dcqcn_recovery_steps", dcqcn.recovery_steps, "at least 1");
  checkPart("dcqcn_additive_part", dcqcn.additive_part);
  checkPart("dcqcn_hyper_part", dcqcn.hyper_part);
  checkPart("dcqcn_least_part", dcqcn.least_part);
  check(ndp.initial_window_packets >= 1, "ndp_initial_window_packets", ndp.initial_window_packets,
        "at least 1");
  check(ndp.queue_packets >= 1, "ndp_queue_packets", ndp.queue_packets, "at least 1");
  check(ndp.headers_per_packet >= 1, "ndp_headers_per_packet", ndp.headers_per_packet,
        "at least 1");
}

}  // namespace topoopt::packet
