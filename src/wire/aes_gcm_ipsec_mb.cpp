#include "wire/aes_gcm.h"

#ifdef SNUG_HAVE_IPSEC_MB
#include <dlfcn.h>
#include <intel-ipsec-mb.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <cstdint>

namespace snug::wire {
namespace {

// Opened and not linked, so that Snug runs where the library is not installed.
IMB_MGR* open_library() {
  void* const library = ::dlopen("libIPSec_MB.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  const auto alloc = reinterpret_cast<decltype(&alloc_mb_mgr)>(::dlsym(library, "alloc_mb_mgr"));
  const auto init =
      reinterpret_cast<decltype(&init_mb_mgr_auto)>(::dlsym(library, "init_mb_mgr_auto"));
  const auto error = reinterpret_cast<decltype(&imb_get_errno)>(::dlsym(library, "imb_get_errno"));
  IMB_MGR* const manager = alloc && init && error ? alloc(0) : nullptr;
  if (manager == nullptr) return nullptr;
  init(manager, nullptr);
  return error(manager) == 0 ? manager : nullptr;  // later versions test themselves
}

// The library's functions for this CPU; null if it has no VAES for 512 bits. Those that are used
// here keep all state in what the caller hands them, so that one manager serves all threads.
IMB_MGR* functions() {
  static IMB_MGR* const manager = open_library();
  constexpr std::uint64_t kNeeded =
      IMB_FEATURE_AVX512_SKX | IMB_FEATURE_VAES | IMB_FEATURE_VPCLMULQDQ;
  return manager != nullptr && (manager->features & kNeeded) == kNeeded ? manager : nullptr;
}

class IpsecMbGcm final : public AesGcm {
 public:
  IpsecMbGcm(Work work, IMB_MGR* functions) : work_(work), functions_(functions) {}
  ~IpsecMbGcm() override {
    OPENSSL_cleanse(&key_, sizeof key_);
    OPENSSL_cleanse(&context_, sizeof context_);
  }

  bool set_key(const Key& key) override {
    IMB_AES128_GCM_PRE(functions_, key.data(), &key_);
    return true;
  }

  bool run(const Nonce& nonce, std::span<const std::byte> also, std::span<const std::byte> in,
           std::byte* out, Tag tag) override {
    unsigned char sum[kTagBytes];
    const auto work = work_ == Work::kSeal ? functions_->gcm128_enc : functions_->gcm128_dec;
    work(&key_, &context_, reinterpret_cast<unsigned char*>(out),
         reinterpret_cast<const unsigned char*>(in.data()), in.size(), nonce.data(),
         reinterpret_cast<const unsigned char*>(also.data()), also.size(), sum, kTagBytes);
    if (work_ == Work::kOpen) return CRYPTO_memcmp(sum, tag.data(), kTagBytes) == 0;
    std::copy_n(reinterpret_cast<const std::byte*>(sum), kTagBytes, tag.data());
    return true;
  }

 private:
  const Work work_;
  IMB_MGR* const functions_;
  alignas(64) gcm_key_data key_{};
  alignas(64) gcm_context_data context_{};
};

}  // namespace

std::unique_ptr<AesGcm> make_ipsec_mb_gcm(AesGcm::Work work) {
  IMB_MGR* const found = functions();
  return found != nullptr ? std::make_unique<IpsecMbGcm>(work, found) : nullptr;
}

}  // namespace snug::wire
#else
namespace snug::wire {
std::unique_ptr<AesGcm> make_ipsec_mb_gcm(AesGcm::Work) { return nullptr; }
}  // namespace snug::wire
#endif
