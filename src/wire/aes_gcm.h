// wire/aes_gcm.h - AES-128-GCM over single messages, by a library.
//
// OpenSSL before 3.1 does not use VAES. libipsec-mb does: it takes a third of the time on CPUs that
// have these instructions (records of 128 KiB on an AMD EPYC: 15 to 16 GB/s against 5.5). Both give
// the same bytes.
#pragma once
#include <array>
#include <cstddef>
#include <memory>
#include <span>

namespace snug::wire {

class AesGcm {
 public:
  enum class Work { kSeal, kOpen };
  static constexpr std::size_t kTagBytes = 16;
  using Key = std::array<unsigned char, 16>;
  using Nonce = std::array<unsigned char, 12>;
  using Tag = std::span<std::byte, kTagBytes>;

  virtual ~AesGcm() = default;
  // These return false if the library fails.
  virtual bool set_key(const Key& key) = 0;
  // `in` to `out`, which may be the same; `also` is authenticated, and not encrypted. kSeal writes
  // `tag`, kOpen compares it: false if the message is not what was sealed.
  virtual bool run(const Nonce& nonce, std::span<const std::byte> also,
                   std::span<const std::byte> in, std::byte* out, Tag tag) = 0;
};

// These throw std::bad_alloc.
std::unique_ptr<AesGcm> make_aes_gcm(AesGcm::Work work);  // the faster one here
std::unique_ptr<AesGcm> make_openssl_gcm(AesGcm::Work work);
// Null where the CPU has no VAES, or Snug was built without libipsec-mb.
std::unique_ptr<AesGcm> make_ipsec_mb_gcm(AesGcm::Work work);

}  // namespace snug::wire
