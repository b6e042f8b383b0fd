// A link over a connected stream socket.

#pragma once

#include <utility>

#include "transport/descriptor.h"
#include "transport/frames/zero_copy_sends.h"
#include "transport/links/link.h"
#include "transport/tcp/wake_bytes.h"

namespace topoopt {

class TcpLink : public Link,
                protected Acknowledgements,
                protected LentMemory,
                protected Replaceable,
                protected SendRates,
                protected WakeUps {
 public:
  TcpLink(const LinkSpec& spec, const Context& context);
  ~TcpLink() override { close(); }

  void start() override;
  void onReady(uint32_t events) override;

 protected:
  int descriptor() const { return socket_.get(); }
  // Only on fast links, the kernel may buffer as much as they send in a few milliseconds.
  bool fast() const { return batch_bytes_ >= kFastBatchBytes; }
  // Sets whether the reactor reports readable data; enabled by start().
  void watchReading(bool watch);
  // expect() was called for this socket by another object.
  void forgetWakeBytes() { wake_bytes_.reset(); }
  // Returns whether long payloads are sent without copies, which leaves no work for a thread.
  bool sendsWithoutCopy() const { return zero_copy_.takes(ZeroCopySends::kLeastBytes); }
  // Bytes in the socket that the neighbour's transport does not have yet.
  size_t queuedBytes() const;

  Io readBytes(const iovec* parts, int part_count, size_t& count) override;
  Io writeBytes(const iovec* parts, int part_count, size_t& count) override;
  void endWriting() override;
  void closeBytes() override;

  size_t unacknowledgedBytes() override { return queuedBytes(); }
  bool allDelivered() const override;
  void settleWriting() override;
  void endReading() override;
  bool holdBytes() override;
  void reopenBytes(const LinkSpec& spec) override;
  void expect(size_t bytes) override;

 private:
  void take(const LinkSpec& spec);
  Acknowledged acknowledged() final;
  void acknowledgeAtOnce() final;
  uint64_t lentFrom() const final { return zero_copy_.lentFrom(); }
  void addTo(LinkCounters& counters) const final;
  void parkBytes() final { parked_ = std::move(socket_); }
  void closeParked() final { parked_.reset(); }
  void limitRate(std::optional<uint64_t> bytes_per_s) final;
  std::optional<SendProgressCounters> sendProgress() final;
  ssize_t sendOnce(iovec* parts, size_t part_count, uint64_t offset, int flags);
  Io afterError();  // of a write
  void disconnect();

  static constexpr size_t kFastBatchBytes = 512 << 10;

  Descriptor socket_;
  Descriptor parked_;  // the previous connection, see parkBytes()
  WakeBytes wake_bytes_;
  bool watches_reading_ = false;
  ZeroCopySends zero_copy_;
  bool disconnected_ = false;  // because the kernel did not return lent memory
  bool end_seen_ = false;      // the unread data ends with the connection's end or an error
  Reactor::Clock::time_point looked_{};  // last call of acknowledged()
  uint64_t acknowledged_bytes_ = 0;      // at that time
};

}  // namespace topoopt
