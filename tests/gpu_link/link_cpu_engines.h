// tests/gpu_link/link_cpu_engines.h - links without a GPU: the CPU encodes and copies, and
// everything takes a few polls, as it would on a GPU.
#pragma once
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "gpu_link/link_engine.h"
#include "snug/codec.h"
#include "support/raw_checksum.h"
#include "wire/wire_pairs.h"

namespace snug::test {

struct CpuTensor : gpu_link::LinkTensor {
  CpuTensor(DType type, std::byte* bytes, std::size_t n) : data(bytes) {
    dtype = type;
    num_bytes = n;
  }
  std::byte* data;
};

inline std::byte* bytes_at(const gpu_link::LinkTensor& tensor, gpu_link::LinkSpan span) {
  return static_cast<const CpuTensor&>(tensor).data + span.offset;
}

inline constexpr std::size_t kTestStaging = std::size_t{4} << 20;
inline constexpr std::size_t kTestChunk = std::size_t{2} << 20;

class CpuSendEngine : public gpu_link::SendEngine {
 public:
  explicit CpuSendEngine(std::byte* staging) : staging_(staging) {}
  int num_frames() const override { return kNumFrames; }
  int max_encoding() const override { return 2; }
  bool can_encode(const gpu_link::LinkTensor&) override { return true; }
  Status encode(int frame, const gpu_link::LinkTensor& tensor, gpu_link::LinkSpan span,
                Codec codec) override {
    frames_[frame].resize(encode_bound(span.num_bytes));
    const auto n = snug::encode({bytes_at(tensor, span), span.num_bytes}, frames_[frame],
                                {.dtype = tensor.dtype, .codec = codec});
    sizes_[frame] = n ? *n : 0;
    polls_ = 3;
    return n.status();
  }
  Result<std::size_t> encoded(int frame) override {
    return polls_-- > 0 ? std::size_t{0} : sizes_[frame];
  }
  Status copy_frame(int frame, std::size_t num_bytes, std::size_t place) override {
    std::memcpy(staging_ + place, frames_[frame].data(), num_bytes);
    checksums_.push_back(0);
    return {};
  }
  Status copy_raw(const gpu_link::LinkTensor& tensor, gpu_link::LinkSpan span,
                  std::size_t place) override {
    std::memcpy(staging_ + place, bytes_at(tensor, span), span.num_bytes);
    checksums_.push_back(raw_checksum(bytes_at(tensor, span), span.num_bytes));
    return {};
  }
  Result<bool> copied(std::uint64_t& checksum) override {
    if ((++num_polls_ & 1) != 0) return false;
    checksum = checksums_.front();
    checksums_.pop_front();
    return true;
  }
  void drain() noexcept override {}

 private:
  std::byte* const staging_;
  static constexpr int kNumFrames = 4;
  Bytes frames_[kNumFrames];
  std::size_t sizes_[kNumFrames] = {};
  std::deque<std::uint64_t> checksums_;  // of copies that were not reported yet
  int polls_ = 0, num_polls_ = 0;
};

class CpuReceiveEngine : public gpu_link::ReceiveEngine {
 public:
  explicit CpuReceiveEngine(const std::byte* staging) : staging_(staging) {}
  int num_placers() const override { return 3; }
  Status place(int placer, const gpu_link::LinkTensor& tensor,
               const gpu_link::LinkChunk& chunk) override {
    const std::span<std::byte> dst(bytes_at(tensor, span_of(chunk)), chunk.num_bytes);
    const std::span<const std::byte> payload(staging_ + chunk.place, chunk.payload_bytes);
    results_[placer] = {};
    if (chunk.mode == static_cast<std::uint64_t>(wire::Mode::kRaw)) {
      std::memcpy(dst.data(), payload.data(), dst.size());
      if (raw_checksum(dst.data(), dst.size()) != chunk.checksum)
        results_[placer] = {Code::kCorrupt, "a raw chunk was damaged on its way"};
      return {};
    }
    const auto info = inspect(payload);
    if (!info || info->dtype != tensor.dtype || info->raw_bytes != dst.size())
      results_[placer] = {Code::kCorrupt, "not a frame of this chunk"};
    else
      results_[placer] = decode(payload, dst).status();
    return {};
  }
  Result<bool> placed(int placer) override {
    if (!results_[placer].ok()) return results_[placer];
    return (++num_polls_ & 1) == 0;
  }
  void drain() noexcept override {}

 private:
  const std::byte* const staging_;
  Status results_[3];
  int num_polls_ = 0;
};

}  // namespace snug::test
