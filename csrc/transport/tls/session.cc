#include "transport/tls/session.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

#ifdef TOPOOPT_TLS
#include "transport/tls/openssl.h"
#endif

namespace topoopt {

#ifdef TOPOOPT_TLS

namespace {

// TLS_AES_128_GCM_SHA256: the keys use its hash, and X25519 provides 128 bits, too.
constexpr char kCipher[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherId[] = {0x13, 0x01};
constexpr char kIdentity[] = "topoopt link";
constexpr size_t kIdentityBytes = sizeof kIdentity - 1;
constexpr unsigned char kContext[] = {'t', 'o', 'p', 'o', 'o', 'p', 't'};
constexpr size_t kReadAheadBytes = 64 << 10;

std::string lastError() {
  const unsigned long code = ERR_peek_last_error();
  const char* const reason = code != 0 ? ERR_reason_error_string(code) : nullptr;
  return std::string("TLS: ") + (reason != nullptr ? reason : "failed");
}

[[noreturn]] void throwLast() { throw std::runtime_error(lastError()); }

}  // namespace

// Callbacks of OpenSSL.
struct TlsCallbacks {
  static TlsSession& of(SSL* ssl) { return *static_cast<TlsSession*>(SSL_get_app_data(ssl)); }

  // nullptr: out of memory.
  static SSL_SESSION* session(SSL* ssl) {
    const std::string& key = of(ssl).key_;
    SSL_SESSION* const session = SSL_SESSION_new();
    if (session == nullptr) return nullptr;
    if (SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key.data()),
                                    key.size()) == 1 &&
        SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kCipherId)) == 1 &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
        SSL_SESSION_set1_id_context(session, kContext, sizeof kContext) == 1) {
      return session;
    }
    SSL_SESSION_free(session);
    return nullptr;
  }

  static int use(SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* id_bytes,
                 SSL_SESSION** given) {
    *given = session(ssl);
    *id = reinterpret_cast<const unsigned char*>(kIdentity);
    *id_bytes = kIdentityBytes;
    return *given != nullptr;
  }

  static int find(SSL* ssl, const unsigned char* id, size_t id_bytes, SSL_SESSION** found) {
    *found = nullptr;
    if (id_bytes != kIdentityBytes || std::memcmp(id, kIdentity, id_bytes) != 0) return 1;
    *found = session(ssl);
    return *found != nullptr;
  }

  static int read(BIO* bio, char* place, size_t bytes, size_t* got) {
    TlsSession& session = *static_cast<TlsSession*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    *got = 0;
    if (session.empty_) {
      BIO_set_retry_read(bio);
      return 0;
    }
    for (;;) {
      const ssize_t count = recv(session.fd_, place, bytes, MSG_DONTWAIT);
      if (count > 0) {
        *got = static_cast<size_t>(count);
        // The socket is then empty, and new data is reported as a change.
        session.empty_ = *got < bytes && !session.end_seen_;
        return 1;
      }
      if (count == 0) {
        session.ended_ = true;
        return 0;
      }
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        BIO_set_retry_read(bio);
      } else {
        session.system_error_ = errno;
      }
      return 0;
    }
  }

  static int write(BIO* bio, const char* data, size_t bytes, size_t* put) {
    TlsSession& session = *static_cast<TlsSession*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    const auto* const begin = reinterpret_cast<const std::byte*>(data);
    session.out_.insert(session.out_.end(), begin, begin + bytes);
    *put = bytes;
    return 1;
  }

  static long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }
};

namespace {

BIO_METHOD* makeMethod() {
  BIO_METHOD* const method =
      BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "topoopt link");
  if (method == nullptr || BIO_meth_set_read_ex(method, TlsCallbacks::read) != 1 ||
      BIO_meth_set_write_ex(method, TlsCallbacks::write) != 1 ||
      BIO_meth_set_ctrl(method, TlsCallbacks::control) != 1) {
    throwLast();
  }
  return method;
}

SSL_CTX* makeContext() {
  SSL_CTX* const context = SSL_CTX_new(TLS_method());
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context, kCipher) != 1 ||
      SSL_CTX_set1_groups_list(context, "X25519:P-256") != 1 ||
      SSL_CTX_set_num_tickets(context, 0) != 1) {
    throwLast();
  }
  // Required, because the context can verify certificates.
  SSL_CTX_set_session_id_context(context, kContext, sizeof kContext);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
  // No certificate is trusted, so an end with a certificate instead of the key is refused.
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kReadAheadBytes);
  SSL_CTX_set_psk_use_session_callback(context, TlsCallbacks::use);
  SSL_CTX_set_psk_find_session_callback(context, TlsCallbacks::find);
  return context;
}

// Both are shared by all sessions of the process and never freed.
BIO_METHOD* method() {
  static BIO_METHOD* const only = makeMethod();
  return only;
}

SSL_CTX* context() {
  static SSL_CTX* const only = makeContext();
  return only;
}

}  // namespace

std::string tlsLibrary() {
  return std::string("OpenSSL ") + OpenSSL_version(OPENSSL_VERSION_STRING);
}

void TlsSession::Free::operator()(ssl_st* ssl) const { SSL_free(ssl); }

TlsSession::TlsSession(int fd, std::string key, bool client, bool remembers,
                       uint64_t records_per_key)
    : fd_(fd), key_(std::move(key)), remembers_(remembers), records_per_key_(records_per_key) {
  if (key_.size() != kKeyBytes) {
    throw std::invalid_argument("tls_key: " + std::to_string(key_.size()) + " bytes; it must be " +
                                std::to_string(kKeyBytes));
  }
  ERR_clear_error();
  ssl_.reset(SSL_new(context()));
  BIO* const bio = ssl_ ? BIO_new(method()) : nullptr;
  if (bio == nullptr) throwLast();
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_app_data(ssl_.get(), this);
  if (client) {
    SSL_set_connect_state(ssl_.get());
  } else {
    SSL_set_accept_state(ssl_.get());
  }
}

TlsSession::~TlsSession() { OPENSSL_cleanse(const_cast<char*>(key_.data()), key_.size()); }

// The reason of a failed OpenSSL call.
Io TlsSession::failed(int result) {
  const int error = SSL_get_error(ssl_.get(), result);
  if (error == SSL_ERROR_WANT_READ) return Io::kBlocked;
  if (error == SSL_ERROR_ZERO_RETURN) return Io::kEnded;
  broken_ = true;
  if (ended_) return whenBroken();
  error_ = system_error_ != 0 ? std::generic_category().message(system_error_) : lastError();
  flush();  // sends the alert with the reason
  return Io::kBroken;
}

Io TlsSession::establish() {
  if (established_) return Io::kMore;
  if (broken_) return whenBroken();
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result != 1) {
    const Io io = failed(result);
    if (io == Io::kBlocked && flush() == Io::kBroken) return Io::kBroken;
    return io;
  }
  if (SSL_session_reused(ssl_.get()) != 1) {
    broken_ = true;
    error_ = "TLS: the other end has not proven the key";
    return Io::kBroken;
  }
  established_ = true;
  return flush() == Io::kBroken ? Io::kBroken : Io::kMore;
}

Io TlsSession::read(std::byte* place, size_t bytes, size_t& count) {
  if (const Io io = establish(); io != Io::kMore) return io;
  if (broken_) return whenBroken();
  ERR_clear_error();
  size_t got = 0;
  const int result = SSL_read_ex(ssl_.get(), place, bytes, &got);
  count += got;
  return result == 1 ? Io::kMore : failed(result);
}

void TlsSession::becameReadable(bool end_seen) {
  empty_ = false;
  end_seen_ = end_seen_ || end_seen;
}

// Seals one record; OpenSSL's callback accepts all of it.
bool TlsSession::seal(std::span<const std::byte> record) {
  size_t put = 0;
  const int result = SSL_write_ex(ssl_.get(), record.data(), record.size(), &put);
  if (result != 1) {
    failed(result);
    return false;
  }
  written_ += put;
  if (remembers_) records_.push_back({written_, sealed_sent_ + out_.size() - sent_});
  if (++sealed_records_ % records_per_key_ == 0) {
    SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);  // sent with the next record
  }
  return true;
}

// Returns the content of the next record, at most `most_bytes`. Small parts are merged by a copy.
std::span<const std::byte> TlsSession::nextOf(Parts& parts, size_t most_bytes) {
  gathered_.clear();
  while (parts.count > 0) {
    const auto* const first = static_cast<const std::byte*>(parts.first->iov_base) + parts.skip;
    const size_t left = parts.first->iov_len - parts.skip;
    const size_t taken = std::min(left, most_bytes - gathered_.size());
    parts.skip += taken;
    if (taken == left) parts = {parts.first + 1, parts.count - 1};
    if (gathered_.empty() && (taken == most_bytes || parts.count == 0)) return {first, taken};
    gathered_.insert(gathered_.end(), first, first + taken);
    if (gathered_.size() == most_bytes) break;
  }
  return gathered_;
}

Io TlsSession::write(const iovec* parts, int part_count, size_t most_bytes, size_t& count) {
  if (const Io io = flush(); io != Io::kMore) return io;
  if (broken_) return whenBroken();
  if (!established_) return Io::kBlocked;
  ERR_clear_error();
  for (Parts left{parts, part_count}; most_bytes > 0 && left.count > 0;) {
    const auto record = nextOf(left, std::min(most_bytes, kRecordBytes));
    if (!seal(record)) return Io::kBroken;
    count += record.size();
    most_bytes -= record.size();
  }
  return flush();
}

void TlsSession::endWriting() {
  if (!established_ || broken_) return;
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
  flush();
}

#else  // without OpenSSL

std::string tlsLibrary() { return ""; }

void TlsSession::Free::operator()(ssl_st*) const {}

TlsSession::TlsSession(int fd, std::string key, bool, bool remembers, uint64_t records_per_key)
    : fd_(fd), key_(std::move(key)), remembers_(remembers), records_per_key_(records_per_key) {
  throw std::invalid_argument("tls_key: this build has no TLS");
}

TlsSession::~TlsSession() = default;
Io TlsSession::establish() { return Io::kBroken; }
Io TlsSession::read(std::byte*, size_t, size_t&) { return Io::kBroken; }
void TlsSession::becameReadable(bool) {}
Io TlsSession::write(const iovec*, int, size_t, size_t&) { return Io::kBroken; }
void TlsSession::endWriting() {}

#endif

Io TlsSession::flush() {
  while (pending()) {
    const ssize_t put =
        send(fd_, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put >= 0) {
      sent_ += static_cast<size_t>(put);
      sealed_sent_ += static_cast<size_t>(put);
      // A partial write means that the socket is full.
      if (pending()) return Io::kBlocked;
      break;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Io::kBlocked;
    if (errno == EINTR) continue;
    if (errno == EPIPE || errno == ECONNRESET) return Io::kEnded;
    system_error_ = errno;
    error_ = std::generic_category().message(errno);
    return Io::kBroken;
  }
  out_.clear();
  sent_ = 0;
  return Io::kMore;
}

size_t TlsSession::unacknowledged(size_t queued) {
  const uint64_t acknowledged = sealed_sent_ - std::min<uint64_t>(queued, sealed_sent_);
  while (!records_.empty() && records_.front().sealed_end <= acknowledged) {
    acknowledged_ = records_.front().end;
    records_.pop_front();
  }
  return written_ - acknowledged_;
}

}  // namespace topoopt
