// wire/tls_channel.h - a TCP channel that is encrypted and authenticated, by OpenSSL.
//
// The handshake of TLS 1.3 proves that both sides know the token: it is TLS's external pre-shared
// key, stretched by scrypt, with an ephemeral Diffie-Hellman exchange beside it. There are no
// certificates. The side that dials proves itself first, so that a stranger who connects learns
// nothing about the token. The bytes then travel in records of their own (record_cipher.h) under
// keys that TLS exports.
#pragma once
#include <memory>
#include <string>

#include "net/socket.h"
#include "snug/status.h"
#include "wire/channel.h"
#include "wire/record_cipher.h"

namespace snug::wire {

// What all channels of one connection or listener share. The application protocol (ALPN) carries
// kProtocolVersion.
using TlsContext = std::shared_ptr<ssl_ctx_st>;
Result<TlsContext> make_tls_context(Side side, const std::string& token);

// Channel::open does the handshake. Errors: kPeer (another token, no Snug), kUnsupportedVersion,
// kTimeout, kIo (the caller stopped it). Later, kCorrupt: the data was altered on its way.
Result<ChannelPtr> make_tls_channel(Side side, net::Socket socket, const TlsContext& context,
                                    std::uint64_t key_life_bytes = kKeyLifeBytes);

}  // namespace snug::wire
