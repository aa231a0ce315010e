// AVX-512 kernels (F, BW, VL, DQ, VBMI, VBMI2, IFMA: Ice Lake and Zen 4 onwards).
//
// Tables live in registers: a 256-entry symbol table is two two-register byte
// permutes, 16-entry frequency tables are one permute. The BF16 path has no gathers, which are the
// bottleneck of other rANS decoders.
#include "codec/avx512_decode-inl.h"
#include "codec/avx512_encode-inl.h"
#include "codec/avx512_planes-inl.h"
#include "codec/cpu.h"

namespace snug::codec {
namespace {

const Kernels kTable = {
    .name = "avx512",
    .checksum_terms = checksum_terms,
    .finish_writes = finish_writes,
    .copy_out = copy_out,
    .split2 = split2,
    .merge2 = merge2,
    .map_palette = map_palette,
    .unmap_palette = unmap_palette,
    .rans_encode = rans_encode,
    .rans_decode = rans_decode,
    .fixed_pack = fixed_pack,
    .fixed_unpack = fixed_unpack,
    .decode_bf16_pair = decode_bf16_pair,
};

}  // namespace

const Kernels* avx512_kernels() noexcept { return cpu_features().vbmi2 ? &kTable : nullptr; }

}  // namespace snug::codec
