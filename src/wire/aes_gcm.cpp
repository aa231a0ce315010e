#include "wire/aes_gcm.h"

#include <openssl/evp.h>

#include <new>

namespace snug::wire {
namespace {

class OpenSslGcm final : public AesGcm {
 public:
  explicit OpenSslGcm(Work work) : work_(work), context_(EVP_CIPHER_CTX_new()) {
    if (!context_) throw std::bad_alloc();
  }

  bool set_key(const Key& key) override {
    return EVP_CipherInit_ex(context_.get(), EVP_aes_128_gcm(), nullptr, key.data(), nullptr,
                             work_ == Work::kSeal ? 1 : 0) == 1;
  }

  bool run(const Nonce& nonce, std::span<const std::byte> also, std::span<const std::byte> in,
           std::byte* out, Tag tag) override {
    EVP_CIPHER_CTX* const c = context_.get();
    const bool seals = work_ == Work::kSeal;
    int n = 0;
    if (EVP_CipherInit_ex(c, nullptr, nullptr, nullptr, nonce.data(), -1) != 1 ||
        !update(nullptr, also) || !update(out, in))
      return false;
    if (!seals && EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag.data()) != 1)
      return false;
    unsigned char rest[16];
    if (EVP_CipherFinal_ex(c, rest, &n) != 1) return false;
    return !seals || EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag.data()) == 1;
  }

 private:
  bool update(std::byte* out, std::span<const std::byte> in) {
    int n = 0;
    return EVP_CipherUpdate(context_.get(), reinterpret_cast<unsigned char*>(out), &n,
                            reinterpret_cast<const unsigned char*>(in.data()),
                            static_cast<int>(in.size())) == 1;
  }

  struct FreeContext {
    void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
  };
  const Work work_;
  const std::unique_ptr<EVP_CIPHER_CTX, FreeContext> context_;
};

}  // namespace

std::unique_ptr<AesGcm> make_openssl_gcm(AesGcm::Work work) {
  return std::make_unique<OpenSslGcm>(work);
}

std::unique_ptr<AesGcm> make_aes_gcm(AesGcm::Work work) {
  constexpr unsigned long kKnowsVaes = 0x30100000;
  if (OpenSSL_version_num() < kKnowsVaes)
    if (auto gcm = make_ipsec_mb_gcm(work)) return gcm;
  return make_openssl_gcm(work);
}

}  // namespace snug::wire
