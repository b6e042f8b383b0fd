// A link over a connected stream socket that moves large batches on two threads, one per direction,
// to use several cores. Frames and short batches stay on the reactor thread.

#pragma once

#include "transport/tcp/byte_thread.h"
#include "transport/tcp/link.h"

namespace topoopt {

class ThreadedLink final : public TcpLink {
 public:
  // Moving a smaller batch takes less time than handing it over.
  static constexpr size_t kLeastBytes = 96 << 10;

  ThreadedLink(const LinkSpec& spec, const Context& context);
  ~ThreadedLink() override { close(); }

  void start() override;
  void onReady(uint32_t events) override;

 private:
  Io readBytes(const iovec* parts, int part_count, size_t& count) override;
  Io writeBytes(const iovec* parts, int part_count, size_t& count) override;
  void expect(size_t bytes) override;
  size_t begunBytes() const override;
  size_t unacknowledgedBytes() override;
  void settleReading(const std::byte* begin, const std::byte* end) override;
  void settleWriting() override;
  void endReading() override;
  void closeBytes() override;
  bool holdBytes() override;
  void reopenBytes(const LinkSpec& spec) override;

  Io outcome(const ByteThread::Moved& moved, size_t& count);

  ByteThread reader_;
  ByteThread writer_;
  bool reads_here_ = false;  // on the reactor thread
};

}  // namespace topoopt
