// Threads change nothing but the time it takes.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "support/checks.h"
#include "support/inputs.h"
#include "support/sanitizer.h"

namespace snug::test {
namespace {

TEST(Threads, EncodeGivesTheSameBytesAndDecodeTheSameData) {
  for (const DType dtype : all_dtypes())
    for (const Codec codec : {Codec::kRaw, Codec::kFixed, Codec::kEntropy})
      for (const char* name : {"outliers", "half_and_half"}) {
        const Bytes raw = make_input(input_named(name), dtype, kSanitized ? 30000 : 100000);
        EncodeOptions options{dtype, codec, 12, 1};
        const Bytes expected = encode_or_fail(view(raw), options);
        for (const int num_threads : {2, 3, 8, 0}) {
          options.num_threads = num_threads;
          Bytes frame(encode_bound(raw.size(), options));
          const auto size = encode(view(raw), frame, options);
          ASSERT_TRUE(size.ok()) << to_string(size.status());
          frame.resize(*size);
          ASSERT_EQ(frame, expected)
              << dtype_name(dtype) << " " << codec_name(codec) << " " << num_threads;
          Bytes restored(raw.size());
          ASSERT_TRUE(decode(view(frame), restored, num_threads).ok());
          ASSERT_EQ(restored, raw)
              << dtype_name(dtype) << " " << codec_name(codec) << " " << num_threads;
        }
      }
}

TEST(Threads, MoreThanBlocks) {
  for (const std::size_t num_elems : {0, 1, 4096, 4097}) {
    const Bytes raw = make_input(input_named("gaussian"), DType::kBF16, num_elems);
    const EncodeOptions options{DType::kBF16, Codec::kEntropy, 12, 300};
    Bytes frame(encode_bound(raw.size(), options));
    const auto size = encode(view(raw), frame, options);
    ASSERT_TRUE(size.ok());
    frame.resize(*size);
    Bytes restored(raw.size());
    ASSERT_TRUE(decode(view(frame), restored, 300).ok());
    EXPECT_EQ(restored, raw);
  }
}

// The earliest damaged block is named, whichever thread met one first.
TEST(Threads, ErrorsDoNotDependOnThem) {
  const Bytes raw = make_input(input_named("gaussian"), DType::kBF16, 40 * 4096);
  const Bytes frame = encode_or_fail(view(raw), {DType::kBF16, Codec::kEntropy, 12, 1});
  const std::size_t payloads = 64 + 40 * 16, block_bytes = (frame.size() - payloads) / 40;
  for (std::size_t round = 0; round < repetitions(100); ++round) {
    Bytes damaged = frame;
    for (const std::size_t block : {5 + round % 20, std::size_t{27}, std::size_t{33}})
      damaged[payloads + block * block_bytes + block_bytes / 2] ^= std::byte{4};
    Bytes dst(raw.size());
    const Status expected = decode(view(damaged), dst, 1).status();
    ASSERT_EQ(expected.code, Code::kCorrupt);
    const Status found = decode(view(damaged), dst, 4).status();
    EXPECT_EQ(to_string(found), to_string(expected));
  }
}

TEST(Threads, CallsAreIndependentOfEachOther) {
  std::vector<std::thread> threads;
  std::vector<int> right(4, 0);
  for (std::size_t t = 0; t < right.size(); ++t)
    threads.emplace_back([t, &right] {
      const DType dtype = all_dtypes()[1 + t];
      const Bytes raw = make_input(input_named("gaussian"), dtype, 20000 + t);
      for (int round = 0; round < 20; ++round) {
        const EncodeOptions options{dtype, round % 2 == 0 ? Codec::kEntropy : Codec::kFixed, 12, 2};
        Bytes frame(encode_bound(raw.size(), options)), restored(raw.size());
        const auto size = encode(view(raw), frame, options);
        if (!size.ok()) return;
        frame.resize(*size);
        if (!decode(view(frame), restored, 2).ok() || restored != raw) return;
      }
      right[t] = 1;
    });
  for (auto& thread : threads) thread.join();
  for (const int r : right) EXPECT_EQ(r, 1);
}

}  // namespace
}  // namespace snug::test
