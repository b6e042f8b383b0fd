// OpenSSL 3.0 or newer, of Debian's package libssl-dev. A build where this header cannot be
// preprocessed has no TLS (csrc/objects.py).

#pragma once

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#if OPENSSL_VERSION_NUMBER < 0x30000000L || defined(LIBRESSL_VERSION_NUMBER)
#error "OpenSSL is older than 3.0"
#endif
