// An encrypted link over a connected stream socket. The lower rank is TLS's client.

#pragma once

#include <optional>

#include "transport/tcp/link.h"
#include "transport/tls/session.h"

namespace topoopt {

class TlsLink final : public TcpLink {
 public:
  // Throws std::invalid_argument in a build without TLS.
  TlsLink(const LinkSpec& spec, const Context& context);
  ~TlsLink() override { close(); }

  void start() override;
  void onReady(uint32_t events) override;

 private:
  Io readBytes(const iovec* parts, int part_count, size_t& count) override;
  Io writeBytes(const iovec* parts, int part_count, size_t& count) override;
  void expect(size_t bytes) override;
  void endWriting() override;
  void closeBytes() override;
  size_t unacknowledgedBytes() override;
  bool allDelivered() const override;
  void endReading() override;
  void reopenBytes(const LinkSpec& spec) override;
  Io checked(Io io);

  const bool client_;
  const bool remembers_;  // keeps unacknowledged records
  std::optional<TlsSession> session_;
  bool ending_ = false;  // after the pending records
};

}  // namespace topoopt
