// Banks of experts on the CPU: sizes, packing, and a layer as the reference of tests.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

#include "gemm/experts_format.h"

namespace snug::gemm {
namespace {

constexpr Status kNoMemory{Code::kInternal, "out of memory"};
constexpr const char* kBadId = "a row has an id that names no expert";

Status error(Code code, const char* what, std::uint64_t expert = kNowhere) {
  return {code, what, expert};
}

std::span<const std::byte> slot_of(std::span<const std::byte> bank, const BankShape& shape,
                                   std::uint64_t expert) {
  const SlotLayout slot(shape);
  return bank.subspan(expert * slot.num_bytes, slot.num_bytes);
}

// The header of a slot must say what its place in the bank requires.
Status check_slot(std::span<const std::byte> slot, const BankShape& shape, std::uint64_t expert) {
  const Result<Matrix> matrix = inspect(slot, slot.size());
  if (!matrix.ok()) return {matrix.status().code, matrix.status().what, expert};
  if (matrix->n != SlotLayout(shape).n || matrix->k != shape.k || matrix->kind != shape.kind)
    return error(Code::kCorrupt, "an expert has another shape than its bank", expert);
  return {};
}

float float_of(std::uint16_t v) { return std::bit_cast<float>(std::uint32_t{v} << 16); }

std::uint16_t bf16_of(float v) {
  const auto bits = std::bit_cast<std::uint32_t>(v);
  if (std::isnan(v)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float dot(const std::uint16_t* w, const std::uint16_t* x, std::uint64_t k) {
  float sum = 0;
  for (std::uint64_t i = 0; i < k; ++i) sum += float_of(w[i]) * float_of(x[i]);
  return sum;
}

}  // namespace

std::size_t slot_bytes(const BankShape& shape) noexcept {
  if (shape.parts != 1 && shape.parts != 2) return 0;
  if (shape.n % shape.parts != 0 || packed_bound(shape.n, shape.k, shape.kind) == 0) return 0;
  if (packed_bound(SlotLayout(shape).n, shape.k, shape.kind) == 0) return 0;
  return SlotLayout(shape).num_bytes;
}

std::size_t bank_bytes(const BankShape& shape) noexcept {
  if (shape.experts == 0 || shape.experts > kMaxExperts) return 0;
  return shape.experts * slot_bytes(shape);
}

Status pack_bank_host(const std::uint16_t* w, const BankShape& shape,
                      std::span<std::byte> bank) noexcept try {
  if (bank_bytes(shape) == 0) return error(Code::kUsage, "shape of the bank is out of range");
  if (bank.size() < bank_bytes(shape))
    return {Code::kDstTooSmall, "bank does not fit", kNowhere,
            kNowhere,           bank.size(),         bank_bytes(shape)};
  const SlotLayout slot(shape);
  const std::uint64_t part_n = shape.n / shape.parts;
  std::vector<std::uint16_t> padded(slot.n == shape.n ? 0 : slot.n * shape.k);
  for (std::uint64_t e = 0; e < shape.experts; ++e) {
    const std::uint16_t* from = w + e * shape.n * shape.k;
    if (!padded.empty()) {
      for (std::uint32_t part = 0; part < shape.parts; ++part)
        std::copy_n(from + part * part_n * shape.k, part_n * shape.k,
                    padded.data() + part * slot.part_strips * kStripRows * shape.k);
      from = padded.data();
    }
    const std::span<std::byte> to = bank.subspan(e * slot.num_bytes, slot.num_bytes);
    std::fill(to.begin(), to.end(), std::byte{0});
    const Result<std::size_t> used = pack_host(from, shape.k, slot.n, shape.k, shape.kind, to);
    if (!used.ok()) return {used.status().code, used.status().what, e};
  }
  return {};
} catch (const std::bad_alloc&) {
  return kNoMemory;
}

Status unpack_expert_host(std::span<const std::byte> bank, const BankShape& shape,
                          std::uint64_t expert, std::span<std::uint16_t> w) noexcept try {
  if (bank_bytes(shape) == 0) return error(Code::kUsage, "shape of the bank is out of range");
  if (expert >= shape.experts) return error(Code::kUsage, "the bank has no such expert", expert);
  if (bank.size() < bank_bytes(shape)) return error(Code::kCorrupt, "bank is cut short");
  if (w.size() < shape.n * shape.k)
    return error(Code::kDstTooSmall, "the buffer cannot hold all rows");
  const auto slot_data = slot_of(bank, shape, expert);
  if (Status s = check_slot(slot_data, shape, expert); !s.ok()) return s;
  const SlotLayout slot(shape);
  if (slot.n == shape.n) return unpack_host(slot_data, w, shape.k);
  const std::uint64_t part_n = shape.n / shape.parts;
  std::vector<std::uint16_t> padded(slot.n * shape.k);
  if (Status s = unpack_host(slot_data, padded, shape.k); !s.ok()) return s;
  for (std::uint32_t part = 0; part < shape.parts; ++part)
    std::copy_n(padded.data() + part * slot.part_strips * kStripRows * shape.k, part_n * shape.k,
                w.data() + part * part_n * shape.k);
  return {};
} catch (const std::bad_alloc&) {
  return kNoMemory;
}

Status inspect_bank(std::span<const std::byte> bank, const BankShape& shape) noexcept {
  if (bank_bytes(shape) == 0) return error(Code::kUsage, "shape of the bank is out of range");
  if (bank.size() < bank_bytes(shape)) return error(Code::kCorrupt, "bank is cut short");
  for (std::uint64_t e = 0; e < shape.experts; ++e)
    if (Status s = check_slot(slot_of(bank, shape, e), shape, e); !s.ok()) return s;
  return {};
}

Status routing_status(const DeviceResult& result) noexcept {
  if (static_cast<Code>(result.code) == Code::kOk) return {};
  return error(static_cast<Code>(result.code), kBadId, result.block);
}

Status experts_host(const std::uint16_t* w13, const std::uint16_t* w2, std::uint64_t experts,
                    std::uint64_t n, std::uint64_t k, const ExpertsArgs& args) noexcept try {
  const auto* x = static_cast<const std::uint16_t*>(args.x);
  auto* y = static_cast<std::uint16_t*>(args.y);
  std::vector<std::uint16_t> h(n);
  std::vector<float> sums(k);
  std::uint64_t bad_row = kNowhere;
  for (std::uint64_t row = 0; row < args.m; ++row) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (std::uint32_t j = 0; j < args.top_k; ++j) {
      const std::int32_t id = args.ids[row * args.top_k + j];
      if (id < 0 || static_cast<std::uint64_t>(id) >= experts) {
        if (id != -1 && bad_row == kNowhere) bad_row = row;
        continue;
      }
      const std::uint16_t* gate_up = w13 + static_cast<std::uint64_t>(id) * 2 * n * k;
      for (std::uint64_t i = 0; i < n; ++i) {
        const float gate = float_of(bf16_of(dot(gate_up + i * k, x + row * args.ldx, k)));
        const float up = float_of(bf16_of(dot(gate_up + (n + i) * k, x + row * args.ldx, k)));
        h[i] = bf16_of(gate / (1.0f + std::exp(-gate)) * up);
      }
      const std::uint16_t* down = w2 + static_cast<std::uint64_t>(id) * k * n;
      for (std::uint64_t i = 0; i < k; ++i)
        sums[i] +=
            float_of(bf16_of(args.weights[row * args.top_k + j] * dot(down + i * n, h.data(), n)));
    }
    for (std::uint64_t i = 0; i < k; ++i) y[row * args.ldy + i] = bf16_of(sums[i]);
  }
  if (bad_row != kNowhere) return error(Code::kUsage, kBadId, bad_row);
  return {};
} catch (const std::bad_alloc&) {
  return kNoMemory;
}

}  // namespace snug::gemm
