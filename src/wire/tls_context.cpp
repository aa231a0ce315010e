// The settings of TLS: version, ciphers, and the pre-shared key as the only way in.
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>

#include <array>
#include <cstring>
#include <mutex>

#include "wire/protocol.h"
#include "wire/tls_channel.h"
#include "wire/user_secret.h"

namespace snug::wire {
namespace {

using Key = std::array<unsigned char, 32>;

constexpr Status kNoTls{Code::kInternal, "OpenSSL cannot set up TLS 1.3"};
constexpr unsigned char kIdentity[] = {'s', 'n', 'u', 'g'};
constexpr unsigned char kAesGcm[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
constexpr unsigned char kProtocol[] = {6, 's', 'n', 'u', 'g', '/', '0' + kProtocolVersion};

// Slow on purpose: whoever impersonates the listener may try tokens against the dialler's proof.
// About 10 ms and 4 MiB. The last key is kept. Tokens that cannot be guessed anyway take no time.
Result<Key> stretch(const std::string& token) {
  static std::mutex mutex;
  static std::string last_token;
  static Key last_key;
  const std::lock_guard lock(mutex);
  if (token == last_token) return last_key;
  constexpr unsigned char kSalt[] = "snug wire, version 2";
  const std::uint64_t cost = is_random_token(token) ? 2 : 1 << 12;  // 2 is scrypt's least
  Key key;
  if (EVP_PBE_scrypt(token.data(), token.size(), kSalt, sizeof kSalt - 1, cost, 8, 1, 16 << 20,
                     key.data(), key.size()) != 1)
    return kNoTls;
  last_token = token;
  return last_key = key;
}

void free_key(void*, void* key, CRYPTO_EX_DATA*, int, long, void*) {
  delete static_cast<Key*>(key);
}

int key_index() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, free_key);
  return index;
}

SSL_SESSION* session_of_key(SSL* ssl) {
  const auto* key = static_cast<const Key*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), key_index()));
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kAesGcm);
  if (session != nullptr && cipher != nullptr &&
      SSL_SESSION_set1_master_key(session, key->data(), key->size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
    return session;
  SSL_SESSION_free(session);
  return nullptr;
}

int offer_key(SSL* ssl, const EVP_MD*, const unsigned char** id, std::size_t* id_bytes,
              SSL_SESSION** session) {
  *id = kIdentity;
  *id_bytes = sizeof kIdentity;
  *session = session_of_key(ssl);
  return *session != nullptr ? 1 : 0;
}

int find_key(SSL* ssl, const unsigned char* id, std::size_t id_bytes, SSL_SESSION** session) {
  *session = nullptr;
  if (id_bytes != sizeof kIdentity || std::memcmp(id, kIdentity, id_bytes) != 0) return 1;
  *session = session_of_key(ssl);
  return *session != nullptr ? 1 : 0;
}

int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* chosen_bytes,
                    const unsigned char* offered, unsigned int offered_bytes, void*) {
  unsigned char* found = nullptr;
  if (SSL_select_next_proto(&found, chosen_bytes, kProtocol, sizeof kProtocol, offered,
                            offered_bytes) != OPENSSL_NPN_NEGOTIATED)
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

}  // namespace

Result<TlsContext> make_tls_context(Side side, const std::string& token) {
  const auto key = stretch(token);
  if (!key) return key.status();
  const TlsContext context(SSL_CTX_new(TLS_method()), SSL_CTX_free);
  SSL_CTX* const ctx = context.get();
  if (ctx == nullptr || SSL_CTX_set_ex_data(ctx, key_index(), new Key(*key)) != 1 ||
      SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256") != 1 ||
      SSL_CTX_set1_groups_list(ctx, "X25519") != 1 || SSL_CTX_set_num_tickets(ctx, 0) != 1)
    return kNoTls;
  SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
  if (side == Side::kDials) {
    // No authority is trusted, so no certificate can replace the key.
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_psk_use_session_callback(ctx, offer_key);
    if (SSL_CTX_set_alpn_protos(ctx, kProtocol, sizeof kProtocol) != 0) return kNoTls;
  } else {
    SSL_CTX_set_psk_find_session_callback(ctx, find_key);
    SSL_CTX_set_alpn_select_cb(ctx, choose_protocol, nullptr);
  }
  return context;
}

}  // namespace snug::wire
