// TLS between two ends of one process, over sockets that take little, and with somebody in between.

#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "support/seed.h"
#include "support/traffic.h"
#include "transport/descriptor.h"
#include "transport/tls/session.h"

#ifdef TOPOOPT_TLS
#include <openssl/x509.h>

#include "transport/tls/openssl.h"

namespace topoopt {
namespace {

using Bytes = std::vector<std::byte>;

const std::string kKey(TlsSession::kKeyBytes, 'k');
const std::string kOtherKey(TlsSession::kKeyBytes, 'o');
constexpr size_t kSmallSocketBytes = 5000;

// Two sockets that are joined; the near one takes `room_bytes`.
struct SocketPair {
  explicit SocketPair(int room_bytes = 1 << 20) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) std::abort();
    setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &room_bytes, sizeof room_bytes);
    near.reset(fds[0]);
    far.reset(fds[1]);
  }
  Descriptor near;
  Descriptor far;
};

Bytes take(int fd) {
  int waiting = 0;
  if (ioctl(fd, FIONREAD, &waiting) != 0) std::abort();
  Bytes taken(static_cast<size_t>(waiting));
  const ssize_t got = recv(fd, taken.data(), taken.size(), MSG_DONTWAIT);
  taken.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return taken;
}

// A client and a server with a relay between their sockets, in the hands of the test.
struct Pair {
  explicit Pair(const std::string& key = kKey, const std::string& server_key = kKey,
                int room_bytes = 1 << 20, uint64_t records_per_key = TlsSession::kRecordsPerKey)
      : to_client(room_bytes),
        to_server(room_bytes),
        client(to_client.near.get(), key, true, true, records_per_key),
        server(to_server.near.get(), server_key, false, true, records_per_key) {}

  // What is under way to the server, or to the client, arrives.
  size_t pass(bool forth) {
    const Bytes data = take((forth ? to_client : to_server).far.get());
    if (data.empty()) return 0;
    deliver(forth, data);
    return data.size();
  }
  void deliver(bool forth, const Bytes& data) {
    (forth ? sealed_forth : sealed_back) += data.size();
    ASSERT_EQ(send((forth ? to_server : to_client).far.get(), data.data(), data.size(), 0),
              static_cast<ssize_t>(data.size()));
    (forth ? server : client).becameReadable(false);
  }

  // The last of what each end has said of it.
  std::pair<Io, Io> shakeHands() {
    std::pair<Io, Io> last{Io::kBlocked, Io::kBlocked};
    for (int i = 0; i < 10; ++i) {
      if (last.first != Io::kBroken) last.first = client.establish();
      pass(true);
      if (last.second != Io::kBroken) last.second = server.establish();
      pass(false);
    }
    return last;
  }

  SocketPair to_client;
  SocketPair to_server;
  TlsSession client;
  TlsSession server;
  size_t sealed_forth = 0;
  size_t sealed_back = 0;
};

Io writeAll(TlsSession& session, const Bytes& data, size_t& count) {
  const iovec part{const_cast<std::byte*>(data.data() + count), data.size() - count};
  return session.write(&part, 1, data.size() - count, count);
}

Bytes readAll(TlsSession& session, Io& io) {
  Bytes all;
  for (io = Io::kMore; io == Io::kMore;) {
    Bytes part(3000);
    size_t count = 0;
    io = session.read(part.data(), part.size(), count);
    all.insert(all.end(), part.begin(), part.begin() + static_cast<ptrdiff_t>(count));
  }
  return all;
}

TEST(TlsSessions, BothEndsProveTheKey) {
  Pair pair;
  EXPECT_FALSE(pair.client.established());
  EXPECT_EQ(pair.shakeHands(), std::pair(Io::kMore, Io::kMore));
  EXPECT_TRUE(pair.client.established() && pair.server.established());
}

TEST(TlsSessions, ManySmallPartsArriveOverSocketsThatTakeLittle) {
  TestRandom random(901);
  Pair pair(kKey, kKey, kSmallSocketBytes);
  ASSERT_EQ(pair.shakeHands(), std::pair(Io::kMore, Io::kMore));
  Bytes sent;
  Bytes received;
  for (int round = 0; round < 60; ++round) {
    std::vector<Bytes> data;
    std::vector<iovec> parts;
    for (size_t i = random.between(1, 20); i > 0; --i) {
      data.push_back(randomBytes(random.size(40000), random));
      parts.push_back({data.back().data(), data.back().size()});
    }
    size_t count = 0;
    pair.client.write(parts.data(), static_cast<int>(parts.size()), random.between(1, 1 << 17),
                      count);
    for (const Bytes& part : data) {
      const size_t taken = std::min(count, part.size());
      sent.insert(sent.end(), part.begin(), part.begin() + static_cast<ptrdiff_t>(taken));
      count -= taken;
    }
    EXPECT_EQ(count, 0u);
    do {
      while (pair.pass(true) > 0) {
        Io io;
        const Bytes more = readAll(pair.server, io);
        ASSERT_EQ(io, Io::kBlocked);
        received.insert(received.end(), more.begin(), more.end());
      }
    } while (pair.client.flush() == Io::kBlocked || pair.pass(true) > 0);
  }
  Io io;
  const Bytes more = readAll(pair.server, io);
  received.insert(received.end(), more.begin(), more.end());
  EXPECT_TRUE(sent == received);
  EXPECT_GT(sent.size(), 1u << 20);
}

TEST(TlsSessions, NothingOnTheWireIsWhatWasWritten) {
  Pair pair;
  ASSERT_EQ(pair.shakeHands(), std::pair(Io::kMore, Io::kMore));
  const Bytes data(20000, std::byte{0x5a});
  size_t count = 0;
  EXPECT_EQ(writeAll(pair.client, data, count), Io::kMore);
  const Bytes wire = take(pair.to_client.far.get());
  EXPECT_GT(wire.size(), data.size());
  EXPECT_EQ(std::search(wire.begin(), wire.end(), data.begin(), data.begin() + 8), wire.end());
}

TEST(TlsSessions, AnEndWithAnotherKeyIsRefused) {
  Pair pair(kKey, kOtherKey);
  const auto [client, server] = pair.shakeHands();
  EXPECT_EQ(server, Io::kBroken);
  EXPECT_EQ(client, Io::kBroken) << "it is notified";
  EXPECT_FALSE(pair.client.established() || pair.server.established());
  EXPECT_EQ(pair.server.error().substr(0, 5), "TLS: ");
  size_t count = 0;
  EXPECT_NE(writeAll(pair.client, Bytes(10), count), Io::kMore);
  EXPECT_EQ(count, 0u);
}

TEST(TlsSessions, KeysOfAnotherLengthAreRefused) {
  SocketPair sockets;
  EXPECT_THROW(TlsSession(sockets.near.get(), "short", true, false), std::invalid_argument);
}

// Somebody between the ends changes one bit of one record.
TEST(TlsSessions, AChangedRecordBreaksTheSession) {
  TestRandom random(902);
  for (int round = 0; round < 8; ++round) {
    Pair pair;
    ASSERT_EQ(pair.shakeHands(), std::pair(Io::kMore, Io::kMore));
    const Bytes data = randomBytes(100000, random);
    size_t count = 0;
    EXPECT_EQ(writeAll(pair.client, data, count), Io::kMore);
    Bytes wire = take(pair.to_client.far.get());
    const size_t at = random.between(0, wire.size() - 1);
    wire[at] ^= std::byte{1} << random.between(0, 7);
    pair.deliver(true, wire);
    Io io;
    const Bytes received = readAll(pair.server, io);
    // A longer length waits for what does not come, and the connection with it.
    if (io == Io::kBlocked) {
      shutdown(pair.to_server.far.get(), SHUT_WR);
      pair.server.becameReadable(true);
      readAll(pair.server, io);
    }
    EXPECT_TRUE(io == Io::kBroken || io == Io::kEnded);
    EXPECT_LE(received.size(), at);
    EXPECT_TRUE(std::equal(received.begin(), received.end(), data.begin()));
  }
}

TEST(TlsSessions, TheEndIsKnownWithAndWithoutANotice) {
  for (const bool notice : {true, false}) {
    Pair pair;
    ASSERT_EQ(pair.shakeHands(), std::pair(Io::kMore, Io::kMore));
    const Bytes data(50000, std::byte{1});
    size_t count = 0;
    EXPECT_EQ(writeAll(pair.client, data, count), Io::kMore);
    if (notice) pair.client.endWriting();
    pair.pass(true);
    if (!notice) {
      shutdown(pair.to_server.far.get(), SHUT_WR);
      pair.server.becameReadable(true);
    }
    Io io;
    EXPECT_EQ(readAll(pair.server, io).size(), data.size());
    EXPECT_EQ(io, Io::kEnded);
    if (!notice) continue;
    // The other direction goes on.
    count = 0;
    EXPECT_EQ(writeAll(pair.server, data, count), Io::kMore);
    pair.pass(false);
    EXPECT_EQ(readAll(pair.client, io).size(), data.size());
    EXPECT_EQ(io, Io::kBlocked);
  }
}

// What an end may take for acknowledged is what the other one can read of so much of the wire.
TEST(TlsSessions, WhatIsAcknowledgedCanBeRead) {
  TestRandom random(903);
  for (int round = 0; round < 10; ++round) {
    Pair pair;
    ASSERT_EQ(pair.shakeHands(), std::pair(Io::kMore, Io::kMore));
    const size_t before = pair.sealed_forth;
    const Bytes data = randomBytes(random.between(1, 200000), random);
    for (size_t count = 0; count < data.size();) {
      const iovec part{const_cast<std::byte*>(data.data() + count), data.size() - count};
      pair.client.write(&part, 1, random.between(1, 60000), count);
    }
    EXPECT_EQ(pair.client.unacknowledged(SIZE_MAX), data.size());
    Bytes wire = take(pair.to_client.far.get());
    ASSERT_FALSE(pair.client.pending());
    const size_t cut = random.between(0, wire.size());
    const size_t missing = wire.size() - cut;
    wire.resize(cut);
    if (cut > 0) pair.deliver(true, wire);
    EXPECT_EQ(pair.sealed_forth, before + cut);
    Io io;
    const Bytes received = readAll(pair.server, io);
    EXPECT_EQ(received.size(), data.size() - pair.client.unacknowledged(missing));
    EXPECT_EQ(pair.client.unacknowledged(0), 0u);
  }
}

TEST(TlsSessions, KeysAreRenewedBeforeTheyAreWornOut) {
  TestRandom random(904);
  Pair pair(kKey, kKey, 1 << 20, 3);
  ASSERT_EQ(pair.shakeHands(), std::pair(Io::kMore, Io::kMore));
  for (int round = 0; round < 20; ++round) {
    for (const bool forth : {true, false}) {
      const Bytes data = randomBytes(random.between(1, 100000), random);
      size_t count = 0;
      EXPECT_EQ(writeAll(forth ? pair.client : pair.server, data, count), Io::kMore);
      pair.pass(forth);
      Io io;
      EXPECT_TRUE(readAll(forth ? pair.server : pair.client, io) == data);
      EXPECT_EQ(io, Io::kBlocked);
      EXPECT_EQ((forth ? pair.client : pair.server).unacknowledged(0), 0u);
    }
  }
}

// ---- somebody who does not know the key ---------------------------------------------------------

// An end of TLS as others have it, with a certificate of its own; over a blocking socket.
struct Stranger {
  Stranger() : context(SSL_CTX_new(TLS_method())), key(EVP_RSA_gen(2048)), certificate(X509_new()) {
    X509_gmtime_adj(X509_getm_notBefore(certificate), -1000);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 1000000);
    X509_set_pubkey(certificate, key);
    X509_sign(certificate, key, EVP_sha256());
    EXPECT_EQ(SSL_CTX_use_certificate(context, certificate), 1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey(context, key), 1);
  }
  ~Stranger() {
    X509_free(certificate);
    EVP_PKEY_free(key);
    SSL_CTX_free(context);
  }
  SSL_CTX* context;
  EVP_PKEY* key;
  X509* certificate;
};

TEST(TlsSessions, AServerWithACertificateInPlaceOfTheKeyIsRefused) {
  const Stranger stranger;
  SocketPair sockets;
  SSL* const server = SSL_new(stranger.context);
  SSL_set_fd(server, sockets.far.get());
  SSL_set_accept_state(server);
  TlsSession client(sockets.near.get(), kKey, true, false);
  Io io = Io::kBlocked;
  for (int i = 0; i < 10 && io == Io::kBlocked; ++i) {
    client.becameReadable(false);
    io = client.establish();
    SSL_do_handshake(server);
  }
  EXPECT_EQ(io, Io::kBroken);
  EXPECT_FALSE(client.established());
  SSL_free(server);
}

TEST(TlsSessions, AClientWithoutTheKeyIsRefused) {
  const Stranger stranger;
  SocketPair sockets;
  SSL* const client = SSL_new(stranger.context);
  SSL_set_fd(client, sockets.far.get());
  SSL_set_connect_state(client);
  TlsSession server(sockets.near.get(), kKey, false, false);
  Io io = Io::kBlocked;
  for (int i = 0; i < 10 && io == Io::kBlocked; ++i) {
    SSL_do_handshake(client);
    server.becameReadable(false);
    io = server.establish();
  }
  EXPECT_EQ(io, Io::kBroken);
  EXPECT_FALSE(server.established());
  SSL_free(client);
}

TEST(TlsSessions, BytesThatAreNoTlsAreRefused) {
  for (const bool client : {true, false}) {
    SocketPair sockets;
    TlsSession session(sockets.near.get(), kKey, client, false);
    session.establish();
    const char text[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    ASSERT_GT(send(sockets.far.get(), text, sizeof text, 0), 0);
    session.becameReadable(false);
    EXPECT_EQ(session.establish(), Io::kBroken);
  }
}

}  // namespace
}  // namespace topoopt

#endif
