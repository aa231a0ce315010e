#include "support/checks.h"

#include <algorithm>
#include <cstring>

#include "support/guarded_buffer.h"
#include "support/prng.h"
#include "support/sanitizer.h"

namespace snug::test {
namespace {

// Decoded sizes a hostile header may claim before the test declines to allocate.
constexpr std::uint64_t kDecodeLimit = 1 << 24;

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

void check_info(std::span<const std::byte> raw, std::span<const std::byte> frame,
                const EncodeOptions& options) {
  const auto info = inspect(frame.first(64));
  ASSERT_TRUE(info.ok()) << to_string(info.status());
  const std::size_t width = elem_bytes(options.dtype);
  EXPECT_EQ(info->dtype, options.dtype);
  EXPECT_EQ(info->raw_bytes, raw.size());
  EXPECT_EQ(info->frame_bytes, frame.size());
  EXPECT_EQ(info->num_elems, raw.size() / width);
  EXPECT_EQ(info->num_blocks, (info->num_elems + info->block_elems - 1) / info->block_elems);

  EXPECT_TRUE(verify(frame).ok());
  const auto stats = frame_stats(frame);
  ASSERT_TRUE(stats.ok()) << to_string(stats.status());
  std::uint64_t num_blocks = 0, num_bytes = 0;
  for (int codec = 0; codec < kNumCodecs; ++codec) {
    num_blocks += stats->num_blocks[codec];
    num_bytes += stats->num_bytes[codec];
  }
  EXPECT_EQ(num_blocks, info->num_blocks);
  EXPECT_EQ(num_bytes + 64 + 16 * num_blocks, frame.size());
  if (options.codec == Codec::kRaw) {
    EXPECT_EQ(stats->num_blocks[static_cast<int>(Codec::kRaw)], num_blocks);
  }
}

}  // namespace

std::span<const std::byte> view(const Bytes& bytes) { return {bytes.data(), bytes.size()}; }

std::span<std::byte> shared_workspace() {
  static Bytes workspace(workspace_bytes());
  return workspace;
}

Bytes encode_or_fail(std::span<const std::byte> raw, const EncodeOptions& options) {
  Bytes frame(encode_bound(raw.size(), options));
  const auto size = encode(raw, frame, options, shared_workspace());
  EXPECT_TRUE(size.ok()) << to_string(size.status());
  frame.resize(size.ok() ? *size : 0);
  return frame;
}

void check_round_trip(std::span<const std::byte> raw, const EncodeOptions& options) {
  const GuardedBuffer src(raw);
  GuardedBuffer dst(encode_bound(raw.size(), options));
  const auto size = encode(src.span(), dst.span(), options, shared_workspace());
  ASSERT_TRUE(size.ok()) << to_string(size.status());
  ASSERT_LE(*size, dst.size());
  EXPECT_TRUE(dst.front_intact());

  const GuardedBuffer frame(std::span<const std::byte>(dst.span()).first(*size));
  GuardedBuffer restored(raw.size());
  const auto restored_size = decode(frame.span(), restored.span(), shared_workspace());
  ASSERT_TRUE(restored_size.ok()) << to_string(restored_size.status());
  ASSERT_EQ(*restored_size, raw.size());
  ASSERT_TRUE(equal(restored.span(), raw));
  EXPECT_TRUE(restored.front_intact());
  check_info(raw, frame.span(), options);
  check_ranges(raw, frame.span(), options.dtype);
}

void check_ranges(std::span<const std::byte> raw, std::span<const std::byte> frame, DType dtype) {
  const std::size_t width = elem_bytes(dtype), n = raw.size() / width;
  Prng prng(n);
  const auto check = [&](std::size_t first, std::size_t count) {
    GuardedBuffer part(count * width);
    const auto size = decode_range(frame, first, count, part.span());
    ASSERT_TRUE(size.ok()) << to_string(size.status());
    ASSERT_EQ(*size, count * width);
    ASSERT_TRUE(equal(part.span(), raw.subspan(first * width, count * width)))
        << "elements " << first << " to " << first + count;
  };
  const auto check_random = [&] {
    const std::size_t first = prng.below(n);
    check(first, prng.below(std::min<std::size_t>(n - first, 9000)) + 1);
  };
  // Each call allocates megabytes, which address sanitizer makes slow.
  if (kSanitized) {
    if (n != 0) check_random();
    return;
  }
  check(0, 0);
  check(n, 0);
  if (n == 0) return;
  check(0, 1);
  check(n - 1, 1);
  check_random();
  check_random();
}

Result<Bytes> read_hostile(std::span<const std::byte> bytes) {
  const GuardedBuffer frame(bytes);
  const auto info = inspect(frame.span());
  const Status verified = verify(frame.span());
  const auto stats = frame_stats(frame.span());
  EXPECT_TRUE(info.ok() || (!verified.ok() && !stats.ok()));
  const std::size_t claimed = info.ok() && info->raw_bytes <= kDecodeLimit ? info->raw_bytes : 0;

  GuardedBuffer dst(claimed);
  const auto size = decode(frame.span(), dst.span(), shared_workspace());
  EXPECT_TRUE(dst.front_intact());
  // See check_ranges: not every time under a sanitizer.
  static unsigned num_calls = 0;
  const bool try_range = !kSanitized || ++num_calls % 16 == 0;
  if (try_range && info.ok() && info->num_elems > 0 && claimed != 0) {
    const std::size_t width = elem_bytes(info->dtype), last = info->num_elems - 1;
    GuardedBuffer one(width);
    const auto range = decode_range(frame.span(), last, 1, one.span());
    // A whole decode that succeeds implies that each part does.
    if (size.ok()) {
      EXPECT_TRUE(range.ok() && std::memcmp(one.data(), dst.data() + last * width, width) == 0);
    }
  }
  if (!size.ok()) {
    EXPECT_NE(size.status().what[0], '\0');
    return size.status();
  }
  EXPECT_TRUE(verified.ok());
  EXPECT_EQ(*size, claimed);
  return Bytes(dst.span().begin(), dst.span().end());
}

}  // namespace snug::test
