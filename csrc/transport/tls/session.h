// TLS 1.3 over a connected, non-blocking socket, between two ends that share a key.
//
// The key is an external pre-shared key (RFC 8446, 4.2.11) with a Diffie-Hellman exchange
// (psk_dhe_ke), so recorded traffic stays secret even if the key leaks later. There are no
// certificates; an end without the key is refused. One thread at a time, never blocking.
//
// Data is sent in records of at most 16 KiB. Ends of records are kept until the neighbour's
// transport has acknowledged them: it counts bytes on the wire, and an incomplete record is
// unreadable.

#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/io.h"

struct ssl_st;

namespace topoopt {

// The linked OpenSSL release, such as "OpenSSL 3.0.19"; "" in a build without TLS.
std::string tlsLibrary();

class TlsSession {
 public:
  static constexpr size_t kKeyBytes = 32;
  static constexpr size_t kRecordBytes = 16 << 10;
  // AES-GCM is safe for 2^24.5 records (RFC 8446, 5.5).
  static constexpr uint64_t kRecordsPerKey = 1 << 22;

  // Exactly one end is the `client`. Throws std::invalid_argument for a key of another length, or
  // in a build without OpenSSL; std::runtime_error if OpenSSL fails. unacknowledged() requires
  // `remembers`.
  TlsSession(int fd, std::string key, bool client, bool remembers,
             uint64_t records_per_key = kRecordsPerKey);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Continues the handshake, as read() does; kMore once both ends have proven the key.
  Io establish();
  bool established() const { return established_; }

  // Reads at most `bytes` of one record and adds them to `count`.
  Io read(std::byte* place, size_t bytes, size_t& count);
  // The socket is readable; `end_seen`: including its end.
  void becameReadable(bool end_seen);

  // Accepts at most `most_bytes` of `parts` and adds them to `count`. kBlocked: the socket is full;
  // call flush() later.
  Io write(const iovec* parts, int part_count, size_t most_bytes, size_t& count);
  // kMore: nothing is pending.
  Io flush();
  bool pending() const { return sent_ < out_.size(); }
  // Ends writing and notifies the other end.
  void endWriting();

  // Returns the written bytes whose records the neighbour lacks, if its transport lacks the last
  // `queued` bytes of the socket.
  size_t unacknowledged(size_t queued);

  const std::string& error() const { return error_; }  // after kBroken
  int systemError() const { return system_error_; }    // errno; 0: a TLS error

 private:
  friend struct TlsCallbacks;
  struct Record {
    uint64_t end;         // offset in the written data
    uint64_t sealed_end;  // offset on the wire
  };
  struct Free {
    void operator()(ssl_st* ssl) const;
  };

  Io failed(int result);
  // A connection that ends without TLS's announcement counts as ended, too.
  Io whenBroken() const { return ended_ ? Io::kEnded : Io::kBroken; }
  struct Parts {
    const iovec* first;
    int count;
    size_t skip = 0;  // bytes of the first part
  };
  std::span<const std::byte> nextOf(Parts& parts, size_t most_bytes);
  bool seal(std::span<const std::byte> record);

  const int fd_;
  const std::string key_;
  const bool remembers_;
  const uint64_t records_per_key_;
  std::unique_ptr<ssl_st, Free> ssl_;
  bool established_ = false;
  bool broken_ = false;
  bool empty_ = false;          // the socket, as far as known
  bool end_seen_ = false;       // the unread data ends with the connection's end or an error
  bool ended_ = false;          // it was read to its end
  std::vector<std::byte> out_;  // sealed records
  size_t sent_ = 0;             // bytes of out_
  std::vector<std::byte> gathered_;
  std::deque<Record> records_;
  uint64_t sealed_records_ = 0;
  uint64_t written_ = 0;
  uint64_t sealed_sent_ = 0;
  uint64_t acknowledged_ = 0;  // of written_
  std::string error_;
  int system_error_ = 0;
};

}  // namespace topoopt
