// TLS 1.3 over a connected, non-blocking socket, between two ends that share a key.
//
// The key is an external pre-shared key (RFC 8446, 4.2.11) with a Diffie-Hellman exchange
// (psk_dhe_ke): who learns it later cannot read what was recorded. There are no certificates; an
// end that does not prove the key is refused. One thread uses a session, and nothing waits.
//
// What is written leaves as records of at most 16 KiB. Ends of records are remembered until the
// neighbour's transport has them, for it counts bytes on the wire, and a record of which the end is
// missing cannot be read.

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

// The release of OpenSSL that is linked, such as "OpenSSL 3.0.19"; "" in a build without.
std::string tlsLibrary();

class TlsSession {
 public:
  static constexpr size_t kKeyBytes = 32;
  static constexpr size_t kRecordBytes = 16 << 10;
  // AES-GCM is safe for 2^24.5 records (RFC 8446, 5.5).
  static constexpr uint64_t kRecordsPerKey = 1 << 22;

  // One end is the `client`. Throws std::invalid_argument for a key of another length, or in a
  // build without OpenSSL; std::runtime_error where OpenSSL fails.
  // unacknowledged() is for a session that `remembers`.
  TlsSession(int fd, std::string key, bool client, bool remembers,
             uint64_t records_per_key = kRecordsPerKey);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Goes on with the handshake, which read() does, too; kMore once both ends have proven the key.
  Io establish();
  bool established() const { return established_; }

  // Reads at most `bytes`, from one record, and adds them to `count`.
  Io read(std::byte* place, size_t bytes, size_t& count);
  // The socket has more to read: `end_seen`, its end is part of that.
  void becameReadable(bool end_seen);

  // Takes at most `most_bytes` of `parts` and adds them to `count`; kBlocked if the socket did not
  // take all, which flush() goes on with.
  Io write(const iovec* parts, int part_count, size_t most_bytes, size_t& count);
  // kMore: nothing is pending any more.
  Io flush();
  bool pending() const { return sent_ < out_.size(); }
  // Nothing more will be written: the other end is notified of that.
  void endWriting();

  // Bytes written of which the neighbour does not have the record, if its transport misses the last
  // `queued` bytes that the socket has taken.
  size_t unacknowledged(size_t queued);

  const std::string& error() const { return error_; }  // after kBroken
  int systemError() const { return system_error_; }    // its errno; 0: the error is TLS's

 private:
  friend struct TlsCallbacks;
  struct Record {
    uint64_t end;         // of what is written
    uint64_t sealed_end;  // on the wire
  };
  struct Free {
    void operator()(ssl_st* ssl) const;
  };

  Io failed(int result);
  // The end of a connection that the other end has not announced counts as its end, too.
  Io whenBroken() const { return ended_ ? Io::kEnded : Io::kBroken; }
  struct Parts {
    const iovec* first;
    int count;
    size_t skip = 0;  // of the first
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
  bool empty_ = false;          // the socket, as far as is known
  bool end_seen_ = false;       // its end, or an error, is behind what is still to read
  bool ended_ = false;          // it was read to its end
  std::vector<std::byte> out_;  // sealed
  size_t sent_ = 0;             // of it
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
