// Frames forged by someone who knows the format and computes checksums: each decoder of the GPU
// says what the CPU says, restores what that restores, reads nothing behind the frame and writes
// nothing around the tensor.
#include <gtest/gtest.h>

#include <string>

#include "gpu/forged_kinds.h"
#include "gpu/gpu_buffers.h"
#include "gpu/gpu_pages.h"
#include "gpu/guarded_memory.h"
#include "support/prng.h"

namespace snug::test {
namespace {

// How to call a decoder. Room for many blocks on few multiprocessors is what large tensors get.
struct Variant {
  std::size_t misalign;
  int max_sms;
  bool large_room;
  Codec hint;
};
constexpr Variant kVariants[] = {{0, 0, false, Codec::kEntropy}, {0, 1, true, Codec::kEntropy},
                                 {2, 1, true, Codec::kEntropy},  {1, 0, false, Codec::kEntropy},
                                 {8, 2, true, Codec::kEntropy},  {0, 0, false, Codec::kFixed}};
constexpr std::size_t kLargeRoom = 512 << 10, kGuard = 512;

bool untouched(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0xA5}; });
}

// Decodes again and again into the same memory.
class ForgedFrames : public testing::Test {
 protected:
  // The tensor of raw_bytes, after a look at all that is around it.
  Result<Bytes> gpu(const Bytes& frame, std::size_t raw_bytes, DType dtype, const Variant& v) {
    const std::size_t room = v.large_room ? kLargeRoom : raw_bytes;
    const std::size_t before = kGuard + v.misalign, all = before + raw_bytes + kGuard;
    EXPECT_EQ(cudaMemset(tensor_.data(), 0xA5, all), cudaSuccess);
    cuda::DecodeOptions options;
    options.dtype = dtype;
    options.codec = v.hint;
    options.log2_block = 12;
    options.max_sms = v.max_sms;
    const Status status =
        cuda::decode({frames_.place(frame), frame.size()}, {tensor_.data() + before, room},
                     {ws_.data(), ws_.size()},
                     reinterpret_cast<cuda::DeviceResult*>(result_.data()), options, nullptr);
    EXPECT_TRUE(status.ok()) << to_string(status);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const Bytes seen = tensor_.download(all);
    EXPECT_TRUE(untouched(view(seen).first(before))) << "written before the tensor";
    EXPECT_TRUE(untouched(view(seen).last(kGuard))) << "written behind the tensor";
    const cuda::DeviceResult r = fetch_result(result_);
    if (r.code != 0) return cuda::to_status(r);
    EXPECT_EQ(r.num_bytes, raw_bytes);
    return Bytes(seen.begin() + static_cast<std::ptrdiff_t>(before),
                 seen.end() - static_cast<std::ptrdiff_t>(kGuard));
  }

  // Returns whether the frame decodes.
  bool check(DType dtype, std::span<const ForgedBlock> blocks, std::span<const Variant> variants) {
    const Bytes frame = forge_frame(dtype, blocks);
    std::size_t raw_bytes = 0;
    for (const auto& block : blocks) raw_bytes += block.num_elems * elem_bytes(dtype);
    Bytes expected(raw_bytes);
    const auto cpu = decode(view(frame), expected, shared_workspace());
    for (const Variant& v : variants) {
      const auto gpu = this->gpu(frame, raw_bytes, dtype, v);
      EXPECT_EQ(gpu.ok(), cpu.ok()) << to_string(cpu.status()) << " / " << to_string(gpu.status());
      if (gpu.ok() && cpu.ok()) {
        EXPECT_TRUE(*gpu == expected) << "other values";
      }
      if (HasFailure())
        ADD_FAILURE() << "misaligned by " << v.misalign << ", multiprocessors " << v.max_sms
                      << (v.large_room ? ", large room" : "") << ", hint "
                      << static_cast<int>(v.hint);
    }
    return cpu.ok();
  }
  // In one of the two ways that matter most and one of the others, in turn.
  bool check_some(DType dtype, const ForgedBlock& block) {
    const Variant chosen[] = {kVariants[turn_ % 2], kVariants[2 + turn_ / 2 % 4]};
    ++turn_;
    return check(dtype, {&block, 1}, chosen);
  }
  void check_forgeries(DType dtype, const ForgedBlock& block, const std::string& name);

 private:
  const GuardedMemory frames_{1 << 20};
  const DeviceBuffer tensor_{2 * kGuard + 16 + kLargeRoom}, result_{sizeof(cuda::DeviceResult)},
      ws_{1 << 20};
  unsigned turn_ = 0;
};

TEST_F(ForgedFrames, ValidBlocksOfAnyLength) {
  for (const Kind& kind : kKinds) {
    std::size_t tried = 0;
    for (std::size_t n = 1; n <= 4096; n += n < 300 ? 1 : n < 800 ? 13 : 149) {
      const ForgedBlock block = make_block(kind, n, n);
      if (!fits(block, kind.dtype)) continue;
      SCOPED_TRACE(std::string(kind.name) + ", " + std::to_string(n) + " values");
      ASSERT_TRUE(check_some(kind.dtype, block)) << "forged badly";
      if (HasFailure()) return;
      ++tried;
    }
    EXPECT_GT(tried, 10u) << kind.name;
  }
}

TEST_F(ForgedFrames, BlocksOfAllKindsInOneFrame) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF16, DType::kBytes}) {
    Prng prng(static_cast<std::uint64_t>(dtype));
    for (int round = 0; round < 12; ++round) {
      std::vector<ForgedBlock> blocks = make_mixed_blocks(dtype, prng);
      const bool damage = round % 3 == 2;
      if (damage) ++blocks[prng.below(blocks.size())].payload[0];  // valid all the same, or not
      SCOPED_TRACE(std::to_string(static_cast<int>(dtype)) + " round " + std::to_string(round));
      const bool ok = check(dtype, blocks, kVariants);
      ASSERT_TRUE(ok || damage) << "forged badly";
      if (HasFailure()) return;
    }
  }
}

TEST(ForgedPages, BlocksOfAllKinds) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF16, DType::kBytes})
    for (const std::size_t page_bytes : {208, 1000, 4097, 16384}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(dtype)) + ", " + std::to_string(page_bytes));
      Prng prng(page_bytes);
      const Bytes framed = forge_frame(dtype, make_mixed_blocks(dtype, prng));
      Bytes expected(25 * 4096 * elem_bytes(dtype));
      ASSERT_TRUE(decode(view(framed), expected, shared_workspace()).ok());
      const Pages pages(expected.size(), page_bytes);
      const std::size_t num_pages = pages.segments().size();
      const DeviceBuffer frame(framed), list(num_pages * sizeof(cuda::Segment)),
          result(sizeof(cuda::DeviceResult)),
          ws(cuda::paged_workspace_bytes(expected.size(), num_pages, dtype, 13));
      SNUG_CUDA_OK(
          cudaMemcpy(list.data(), pages.segments().data(), list.size(), cudaMemcpyHostToDevice));
      cuda::DecodeOptions options;
      options.dtype = dtype;
      options.log2_block = 13;
      const Status status = cuda::decode_paged(
          {frame.data(), framed.size()}, reinterpret_cast<const cuda::Segment*>(list.data()),
          num_pages, expected.size(), {ws.data(), ws.size()},
          reinterpret_cast<cuda::DeviceResult*>(result.data()), options, nullptr);
      ASSERT_TRUE(status.ok()) << to_string(status);
      SNUG_CUDA_OK(cudaDeviceSynchronize());
      const cuda::DeviceResult r = fetch_result(result);
      ASSERT_EQ(r.code, 0u) << to_string(cuda::to_status(r));
      ASSERT_TRUE(pages.read() == expected);
      ASSERT_TRUE(pages.gaps_are_intact());
    }
}

// Everything that a section says about itself, said wrongly; then cuts, other modes and sizes.
void ForgedFrames::check_forgeries(DType dtype, const ForgedBlock& block, const std::string& name) {
  const auto try_with = [&](const std::string& what, const auto& change) {
    if (HasFailure()) return;
    SCOPED_TRACE(name + ": " + what);
    ForgedBlock forged = block;
    change(forged);
    if (forged.payload.size() >= 16 && forged.num_elems > 0) check_some(dtype, forged);
  };
  const auto number = [&](std::size_t at, std::size_t width, std::uint32_t value) {
    try_with("byte " + std::to_string(at) + " is " + std::to_string(value),
             [&](ForgedBlock& f) { std::memcpy(&f.payload[at], &value, width); });
  };
  const auto n = static_cast<std::uint32_t>(block.num_elems);
  for (const std::size_t at : block.sections) {
    codec::SectionHeader h;
    h.read(&block.payload[at]);
    for (const std::uint32_t v : {0u, 1u, h.num_words - 1, h.num_words + 1, h.num_words + 8, n / 2,
                                  n, n + 128, 0x7FFFFFFFu, 0xFFFFFFF0u, ~0u})
      number(at, 4, v);
    for (const std::uint32_t v :
         {0u, 1u, h.num_escapes - 1, h.num_escapes + 1, n, n + 1, 0x80000000u, 0xFFFFFFF0u, ~0u})
      number(at + 4, 4, v);
    for (const std::uint32_t v : {0u, 1u, 2u, 3u, h.table_bytes - 1u, h.table_bytes + 1u,
                                  h.table_bytes + 16u, 306u, 307u, 65535u})
      number(at + 8, 2, v);
    for (const std::uint32_t v : {0u, 1u, h.palette_size - 1u, h.palette_size + 1u, 15u, 16u, 255u})
      number(at + 10, 1, v);
    for (std::size_t i = 11; i < 16; ++i) number(at + i, 1, 1);
    for (const std::uint32_t v : {0u, 1u, 0xFFFFu, 0x10000u, 0xFFFFFFu, ~0u})
      number(at + codec::kStatesOffset + 4 * (v % 32), 4, v);
    const std::size_t table = at + codec::kTableOffset;
    for (std::size_t i = 0; i < h.table_bytes && i < 32; ++i) {
      number(table + i, 1, block.payload[table + i] ^ 1u);
      number(table + i, 1, i % 2 == 0 ? 0 : 255);
    }
    // A sum that stays right.
    for (const std::size_t i : {std::size_t{2}, std::size_t{16}, std::size_t{17}})
      try_with("table moved at " + std::to_string(i), [&](ForgedBlock& f) {
        ++f.payload[table + i];
        --f.payload[table + i + 1];
      });
    try_with("no words", [&](ForgedBlock& f) {
      std::fill_n(&f.payload[at + h.words_offset()], 2 * h.num_words, std::uint8_t{0});
    });
    for (const std::size_t end : {16u, 144u, 160u, 176u, 192u})
      try_with("ends after " + std::to_string(end) + " bytes of a section",
               [&](ForgedBlock& f) { f.payload.resize(std::min(f.payload.size(), at + end)); });
  }
  for (const std::size_t cut : {16u, 32u, 128u, 256u})
    try_with("cut by " + std::to_string(cut), [&](ForgedBlock& f) {
      f.payload.resize(f.payload.size() > cut ? f.payload.size() - cut : 0);
    });
  try_with("longer", [](ForgedBlock& f) { f.payload.resize(f.payload.size() + 16); });
  for (unsigned p = 0; p < elem_bytes(dtype); ++p)
    for (unsigned mode = 1; mode < 4; ++mode)
      try_with("other mode of plane " + std::to_string(p),
               [&](ForgedBlock& f) { f.plane_modes ^= mode << (2 * p); });
  for (unsigned codec = 0; codec < 5; ++codec)
    try_with("codec " + std::to_string(codec),
             [&](ForgedBlock& f) { f.codec = static_cast<Codec>(codec); });
  for (const std::size_t other : {n - 1, n + 1, n - 16, n + 16, n / 2, 4096u})
    try_with("as " + std::to_string(other) + " values",
             [&](ForgedBlock& f) { f.num_elems = std::min<std::size_t>(other, 4096); });
  Prng prng(n);
  for (int i = 0; i < 20; ++i)
    try_with("random bytes, try " + std::to_string(i), [&](ForgedBlock& f) {
      for (int k = 0; k < 3; ++k) {
        const std::size_t at = f.sections[prng.below(f.sections.size())] + prng.below(300);
        if (at < f.payload.size()) f.payload[at] = prng.byte();
      }
    });
}

TEST_F(ForgedFrames, FieldsThatDoNotFit) {
  for (const Kind& kind : kKinds)
    for (const std::size_t n : {std::size_t{4096}, std::size_t{699}}) {
      const ForgedBlock block = make_block(kind, n, n + 1);
      if (fits(block, kind.dtype))
        check_forgeries(kind.dtype, block, kind.name + (", " + std::to_string(n)));
      if (HasFailure()) return;
    }
}

// The first plane is there, another that must be coded is not: nothing behind it may be read.
TEST_F(ForgedFrames, PlanesThatAreMissing) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64})
    for (const unsigned first : {2u, 3u})
      for (const unsigned second : {2u, 3u}) {
        const Plane planes[] = {Plane(4096, 7)};
        ForgedBlock block = forge_block(planes, first, {1, false});
        block.plane_modes |= second << (2 * elem_bytes(dtype) - 2);
        for (unsigned p = 1; p + 1 < elem_bytes(dtype); ++p) block.plane_modes |= second << (2 * p);
        SCOPED_TRACE(std::to_string(static_cast<int>(dtype)) + " modes " + std::to_string(first) +
                     std::to_string(second));
        EXPECT_FALSE(check(dtype, {&block, 1}, kVariants));
        if (HasFailure()) return;
      }
}

// One item of a batch, and what the CPU makes of it.
struct Item {
  Bytes frame, expected;
  bool ok = false;
  std::size_t frame_at = 0, tensor_at = 0;
};

// Of no block, one or some; now and then with a byte changed, or cut short.
Item make_item(DType dtype, Prng& prng) {
  std::vector<ForgedBlock> blocks;
  std::size_t num_elems = 0;
  for (std::size_t left = prng.below(4); left > 0; --left) {
    const Kind* kind = kKinds;
    while (kind->dtype != dtype) kind = &kKinds[prng.below(std::size(kKinds))];
    blocks.push_back(make_block(*kind, left == 1 ? 2500 + prng.below(1500) : 4096, prng.next()));
    num_elems += blocks.back().num_elems;
  }
  Item item;
  item.frame = forge_frame(dtype, blocks);
  if (prng.one_in(3)) item.frame[prng.below(item.frame.size())] ^= std::byte{1};
  if (prng.one_in(2)) reseal(item.frame);
  if (prng.one_in(8)) item.frame.resize(prng.below(item.frame.size() / 16) * 16);
  if (item.frame.size() > 5) item.frame[5] = static_cast<std::byte>(dtype);
  item.expected.resize(num_elems * elem_bytes(dtype));
  const auto cpu = decode(view(item.frame), item.expected, shared_workspace());
  item.ok = cpu.ok();
  if (item.ok) item.expected.resize(*cpu);
  return item;
}

TEST(ForgedBatch, ItemsOfAllKinds) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF16, DType::kBytes})
    for (const int max_sms : {0, 1, 3}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(dtype)) + " on " + std::to_string(max_sms));
      Prng prng(static_cast<std::uint64_t>(dtype) + 100);
      std::vector<Item> items(60);
      std::size_t frame_bytes = 0, tensor_bytes = kGuard, raw_bytes = 0;
      for (Item& item : items) {
        item = make_item(dtype, prng);
        item.frame_at = frame_bytes;
        frame_bytes += frame::align_up(item.frame.size());
        item.tensor_at = tensor_bytes + (prng.one_in(2) ? prng.below(16) : 0);
        tensor_bytes = frame::align_up(item.tensor_at + item.expected.size() + kGuard);
        raw_bytes += item.expected.size();
      }
      const DeviceBuffer frames(frame_bytes), tensors(tensor_bytes),
          list(items.size() * sizeof(cuda::BatchItem)),
          results(items.size() * sizeof(cuda::DeviceResult)),
          ws(cuda::batch_workspace_bytes(raw_bytes, items.size(), dtype, 13));
      std::vector<cuda::BatchItem> batch;
      for (const Item& item : items) {
        batch.push_back({tensors.data() + item.tensor_at, item.expected.size(),
                         frames.data() + item.frame_at, item.frame.size()});
        SNUG_CUDA_OK(cudaMemcpy(batch.back().frame, item.frame.data(), item.frame.size(),
                                cudaMemcpyHostToDevice));
      }
      SNUG_CUDA_OK(cudaMemcpy(list.data(), batch.data(), list.size(), cudaMemcpyHostToDevice));
      cuda::DecodeOptions options;
      options.dtype = dtype;
      options.log2_block = 13;
      options.max_sms = max_sms;
      const Status status = cuda::decode_batch(
          reinterpret_cast<const cuda::BatchItem*>(list.data()), items.size(), raw_bytes,
          {ws.data(), ws.size()}, reinterpret_cast<cuda::DeviceResult*>(results.data()), options,
          nullptr);
      ASSERT_TRUE(status.ok()) << to_string(status);
      SNUG_CUDA_OK(cudaDeviceSynchronize());
      Bytes seen = tensors.download(tensor_bytes);
      std::vector<cuda::DeviceResult> told(items.size());
      SNUG_CUDA_OK(cudaMemcpy(told.data(), results.data(), results.size(), cudaMemcpyDeviceToHost));
      for (std::size_t i = 0; i < items.size(); ++i) {
        const auto place = std::span(seen).subspan(items[i].tensor_at, items[i].expected.size());
        ASSERT_EQ(told[i].code == 0, items[i].ok) << i << to_string(cuda::to_status(told[i]));
        ASSERT_TRUE(!items[i].ok || std::ranges::equal(place, items[i].expected)) << i;
        std::ranges::fill(place, std::byte{0xA5});
      }
      ASSERT_TRUE(untouched(seen)) << "written outside of the tensors";
    }
}

}  // namespace
}  // namespace snug::test
