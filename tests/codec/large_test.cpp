// Tensors and frames beyond 4 GiB, in memory that is mostly never touched.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "frame/checksum.h"
#include "frame/frame.h"
#include "support/checks.h"
#include "support/inputs.h"
#include "support/sanitizer.h"

namespace snug::test {
namespace {

constexpr std::size_t kHuge = (std::size_t{5} << 30) + 12346;  // bytes

// Zeros that cost no memory until they are written to.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t num_bytes) : num_bytes_(num_bytes) {
    at_ = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~SparseMemory() {
    if (ok()) munmap(at_, num_bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  bool ok() const { return at_ != MAP_FAILED; }
  std::span<std::byte> span() { return {static_cast<std::byte*>(at_), num_bytes_}; }

 private:
  void* at_;
  std::size_t num_bytes_;
};

TEST(Large, TensorOfFiveGiB) {
  if (kSanitized) GTEST_SKIP() << "too slow under a sanitizer";
  SparseMemory memory(kHuge);
  if (!memory.ok()) GTEST_SKIP() << "no address space for it";
  const Bytes end = make_input(input_named("gaussian"), DType::kBF16, 200000);
  const std::size_t end_at = kHuge - end.size();
  std::memcpy(memory.span().data() + end_at, end.data(), end.size());

  const EncodeOptions options{DType::kBF16, Codec::kEntropy, 0, 0};
  Bytes frame(4 << 20);
  const auto size = encode(memory.span(), frame, options);
  ASSERT_TRUE(size.ok()) << to_string(size.status());
  frame.resize(*size);
  ASSERT_TRUE(verify(view(frame)).ok());
  const auto info = inspect(view(frame));
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->raw_bytes, kHuge);
  EXPECT_EQ(info->num_elems, kHuge / 2);

  Bytes part(end.size());
  ASSERT_TRUE(decode_range(view(frame), end_at / 2, end.size() / 2, part).ok());
  EXPECT_EQ(part, end);
  ASSERT_TRUE(decode_range(view(frame), end_at / 2 - 1000, 1000, part).ok());
  for (std::size_t i = 0; i < 2000; ++i) ASSERT_EQ(part[i], std::byte{0});
}

TEST(Large, FrameOfFiveGiB) {
  SparseMemory memory(encode_bound(kHuge));
  if (!memory.ok()) GTEST_SKIP() << "no address space for it";
  auto header = frame::make_header({}, kHuge / 2 * 2, DType::kBF16, 0);
  ASSERT_TRUE(header.ok());
  auto* bytes = reinterpret_cast<std::uint8_t*>(memory.span().data());

  // Raw blocks of zeros, whose checksums are known without reading them, and a
  // last block of data, behind 4 GiB.
  std::uint64_t end = header->payload_start();
  const std::uint64_t last = header->num_blocks() - 1;
  const Bytes data =
      make_input(input_named("gaussian"), DType::kBF16, header->elems_in_block(last));
  for (std::uint64_t i = 0; i <= last; ++i) {
    frame::Entry entry;
    entry.offset = end;
    entry.num_bytes = static_cast<std::uint32_t>(frame::max_payload(header->elems_in_block(i), 2));
    std::uint64_t terms = 0;
    if (i == last) {
      std::memcpy(bytes + end, data.data(), data.size());
      terms = frame::checksum_terms(bytes + end, entry.num_bytes, 0);
    }
    entry.checksum = frame::checksum_finish(terms, entry.num_bytes);
    frame::write_entry(entry, bytes + frame::kHeaderBytes + i * frame::kEntryBytes);
    end += entry.num_bytes;
  }
  header->frame_bytes = end;
  frame::write_header(*header, bytes);
  header->checksum = frame::head_checksum(memory.span().first(header->payload_start()));
  frame::write_header(*header, bytes);
  ASSERT_GT(end, std::uint64_t{5} << 30);

  const auto frame = std::span<const std::byte>(memory.span()).first(end);
  Bytes part(data.size());
  const std::uint64_t first = last << header->log2_block;
  ASSERT_TRUE(decode_range(frame, first, data.size() / 2, part).ok());
  EXPECT_EQ(part, data);
  const auto stats = frame_stats(frame);
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->num_bytes[0] + header->payload_start(), end);

  bytes[end - frame::kAlign] ^= 1;
  const Status damaged = decode_range(frame, first, 1, part).status();
  EXPECT_EQ(damaged.code, Code::kCorrupt);
  EXPECT_EQ(damaged.block, last);
  EXPECT_GT(damaged.byte, std::uint64_t{5} << 30);
}

}  // namespace
}  // namespace snug::test
