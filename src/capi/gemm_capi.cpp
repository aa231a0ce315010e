// The C ABI of packing and multiplying on the GPU: nothing but conversions.
#include "capi/gemm_capi.h"

namespace {

namespace gemm = snug::gemm;
using snug::capi::kNull;
using snug::capi::report;
using snug::capi::write_text;

static_assert(sizeof(snug_cuda_result) == sizeof(gemm::DeviceResult));
static_assert(SNUG_GEMM_HEADER_BYTES == gemm::kHeaderBytes && SNUG_GEMM_ALIGN == gemm::kAlign);

gemm::DeviceResult* cpp(snug_cuda_result* result) {
  return reinterpret_cast<gemm::DeviceResult*>(result);
}
gemm::Stream cpp(void* stream) { return static_cast<gemm::Stream>(stream); }

gemm::Plan cpp_plan(const snug_gemm_plan* plan) {
  if (plan == nullptr) return {};
  return {static_cast<gemm::Kernel>(plan->kernel), plan->split_k, plan->warps, plan->strips,
          plan->tile_m};
}

snug_gemm_choice capi_choice(const gemm::Choice& c) {
  return {c.packed,
          c.gain,
          {static_cast<std::int32_t>(c.plan.kernel), c.plan.split_k, c.plan.warps, c.plan.strips,
           c.plan.tile_m}};
}

}  // namespace

extern "C" {

size_t snug_gemm_pack_workspace(uint64_t n, uint64_t k) { return gemm::pack_workspace_bytes(n, k); }

size_t snug_gemm_pack_frame_workspace(uint64_t n, uint64_t k) {
  return gemm::pack_frame_workspace_bytes(n, k);
}

int snug_gemm_pack(const void* w, uint64_t ld, uint64_t n, uint64_t k, int kind, void* dst,
                   size_t dst_bytes, void* workspace, size_t workspace_bytes,
                   snug_cuda_result* result, void* stream, snug_status* status) {
  return report(gemm::pack(w, ld, n, k, static_cast<gemm::Kind>(kind), {dst, dst_bytes},
                           {workspace, workspace_bytes}, cpp(result), cpp(stream)),
                status);
}

int snug_gemm_pack_frame(const void* frame, size_t frame_bytes, uint64_t n, uint64_t k, int kind,
                         void* dst, size_t dst_bytes, void* workspace, size_t workspace_bytes,
                         snug_cuda_result* result, void* stream, snug_status* status) {
  return report(
      gemm::pack_frame({frame, frame_bytes}, n, k, static_cast<gemm::Kind>(kind), {dst, dst_bytes},
                       {workspace, workspace_bytes}, cpp(result), cpp(stream)),
      status);
}

int snug_gemm_pack_status(const snug_cuda_result* host_result, snug_status* status) {
  if (host_result == nullptr) return report(kNull, status);
  return report(gemm::pack_status({host_result->num_bytes, host_result->code, host_result->reason,
                                   host_result->block}),
                status);
}

int snug_gemm_open(const void* data, uint64_t num_bytes, void* stream, snug_gemm_matrix* matrix,
                   snug_status* status) {
  if (matrix == nullptr) return report(kNull, status);
  const auto opened = gemm::open(data, num_bytes, cpp(stream));
  if (opened.ok()) *matrix = gemm::capi_matrix(*opened);
  return report(opened.status(), status);
}

int snug_gemm_unpack(const snug_gemm_matrix* matrix, void* w, uint64_t ld, void* stream,
                     snug_status* status) {
  if (matrix == nullptr) return report(kNull, status);
  return report(gemm::unpack(gemm::cpp_matrix(*matrix), w, ld, cpp(stream)), status);
}

size_t snug_gemm_linear_workspace(uint64_t n, uint64_t k, uint64_t max_m) {
  return gemm::linear_workspace_bytes(n, k, max_m);
}

int snug_gemm_init_workspace(void* workspace, size_t workspace_bytes, void* stream,
                             snug_status* status) {
  return report(gemm::init_workspace({workspace, workspace_bytes}, cpp(stream)), status);
}

int snug_gemm_linear(const snug_gemm_matrix* matrix, const void* x, uint64_t ldx, uint64_t m,
                     const void* bias, void* y, uint64_t ldy, void* workspace,
                     size_t workspace_bytes, const snug_gemm_plan* plan, void* stream,
                     snug_status* status) {
  if (matrix == nullptr) return report(kNull, status);
  return report(gemm::linear(gemm::cpp_matrix(*matrix), {x, ldx, m, bias, y, ldy},
                             {workspace, workspace_bytes}, cpp_plan(plan), cpp(stream)),
                status);
}

int snug_gemm_choose(uint64_t n, uint64_t k, uint64_t m, int policy, snug_gemm_choice* choice) {
  if (choice == nullptr || policy < SNUG_GEMM_MEMORY || policy > SNUG_GEMM_SPEED) return SNUG_USAGE;
  *choice = capi_choice(gemm::choose(n, k, m, static_cast<gemm::Policy>(policy)));
  return SNUG_OK;
}

size_t snug_gemm_explain(uint64_t n, uint64_t k, uint64_t m, int policy, char* buffer,
                         size_t buffer_bytes) {
  return write_text(gemm::explain(n, k, m, static_cast<gemm::Policy>(policy)), buffer,
                    buffer_bytes);
}

int snug_gemm_tune(const snug_gemm_matrix* matrix, const void* x, uint64_t ldx, uint64_t m, void* y,
                   uint64_t ldy, void* workspace, size_t workspace_bytes, void* stream,
                   snug_gemm_choice* choice, snug_status* status) {
  if (matrix == nullptr) return report(kNull, status);
  const auto best = gemm::tune(gemm::cpp_matrix(*matrix), {x, ldx, m, nullptr, y, ldy},
                               {workspace, workspace_bytes}, cpp(stream));
  if (best.ok() && choice != nullptr) *choice = capi_choice(*best);
  return report(best.status(), status);
}

}  // extern "C"
