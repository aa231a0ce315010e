// The C ABI of the part of snug/gemm.h that runs on a GPU.
#include "capi/gpu_convert.h"

namespace gemm = snug::gemm;
using snug::capi::call;
using snug::capi::cpp;
using snug::capi::write_text;

namespace {

gemm::Plan cpp_plan(const snug_gemm_plan* plan) {
  if (plan == nullptr) return {};
  return {static_cast<gemm::Kernel>(plan->kernel), plan->split_k, plan->warps, plan->strips,
          plan->tile_m};
}

snug_gemm_choice c_choice(const gemm::Choice& c) {
  return {c.packed,
          c.gain,
          {static_cast<std::int32_t>(c.plan.kernel), c.plan.split_k, c.plan.warps, c.plan.strips,
           c.plan.tile_m}};
}

}  // namespace

size_t snug_gemm_pack_workspace_bytes(uint64_t n, uint64_t k) {
  return gemm::pack_workspace_bytes(n, k);
}

size_t snug_gemm_pack_frame_workspace_bytes(uint64_t n, uint64_t k) {
  return gemm::pack_frame_workspace_bytes(n, k);
}

size_t snug_gemm_apply_delta_workspace_bytes(uint64_t n, uint64_t k) {
  return gemm::apply_delta_workspace_bytes(n, k);
}

size_t snug_gemm_linear_workspace_bytes(uint64_t n, uint64_t k, uint64_t max_m) {
  return gemm::linear_workspace_bytes(n, k, max_m);
}

int snug_gemm_pack(const void* w, uint64_t ld, uint64_t n, uint64_t k, int kind, void* dst,
                   size_t dst_bytes, void* workspace, size_t workspace_bytes,
                   snug_cuda_result* result, void* stream, snug_status* status) {
  return call(status, [&] {
    return gemm::pack(w, ld, n, k, static_cast<gemm::Kind>(kind), {dst, dst_bytes},
                      {workspace, workspace_bytes}, cpp(result), cpp(stream));
  });
}

int snug_gemm_pack_frame(const void* frame, size_t frame_bytes, uint64_t n, uint64_t k, int kind,
                         void* dst, size_t dst_bytes, void* workspace, size_t workspace_bytes,
                         snug_cuda_result* result, void* stream, snug_status* status) {
  return call(status, [&] {
    return gemm::pack_frame({frame, frame_bytes}, n, k, static_cast<gemm::Kind>(kind),
                            {dst, dst_bytes}, {workspace, workspace_bytes}, cpp(result),
                            cpp(stream));
  });
}

int snug_gemm_open(const void* data, uint64_t num_bytes, void* stream, snug_gemm_matrix* matrix,
                   snug_status* status) {
  return call(status, [&] {
    return snug::capi::to_c(gemm::open(data, num_bytes, cpp(stream)), snug::capi::deref(matrix));
  });
}

int snug_gemm_strip_sums(const snug_gemm_matrix* matrix, uint64_t* sums, void* stream,
                         snug_status* status) {
  return call(status, [&] { return gemm::strip_sums(cpp(matrix), sums, cpp(stream)); });
}

int snug_gemm_verify(const snug_gemm_matrix* matrix, const uint64_t* sums, snug_cuda_result* result,
                     void* stream, snug_status* status) {
  return call(status, [&] { return gemm::verify(cpp(matrix), sums, cpp(result), cpp(stream)); });
}

int snug_gemm_unpack(const snug_gemm_matrix* matrix, void* w, uint64_t ld, void* stream,
                     snug_status* status) {
  return call(status, [&] { return gemm::unpack(cpp(matrix), w, ld, cpp(stream)); });
}

int snug_gemm_apply_delta(const snug_gemm_matrix* matrix, const void* delta, size_t delta_bytes,
                          int kind, void* new_packed, size_t new_packed_bytes, void* workspace,
                          size_t workspace_bytes, snug_cuda_result* result,
                          const snug_cuda_delta_options* options, void* stream,
                          snug_status* status) {
  return call(status, [&] {
    return gemm::apply_delta(cpp(matrix), {delta, delta_bytes}, static_cast<gemm::Kind>(kind),
                             {new_packed, new_packed_bytes}, {workspace, workspace_bytes},
                             cpp(result), cpp(options), cpp(stream));
  });
}

int snug_gemm_init_workspace(void* workspace, size_t workspace_bytes, void* stream,
                             snug_status* status) {
  return call(status, [&] {
    return gemm::init_workspace({workspace, workspace_bytes}, cpp(stream));
  });
}

int snug_gemm_linear(const snug_gemm_matrix* matrix, const void* x, uint64_t ldx, uint64_t m,
                     const void* bias, void* y, uint64_t ldy, void* workspace,
                     size_t workspace_bytes, const snug_gemm_plan* plan, void* stream,
                     snug_status* status) {
  return call(status, [&] {
    return gemm::linear(cpp(matrix), {x, ldx, m, bias, y, ldy}, {workspace, workspace_bytes},
                        cpp_plan(plan), cpp(stream));
  });
}

int snug_gemm_choose(uint64_t n, uint64_t k, uint64_t m, int policy, snug_gemm_choice* choice,
                     snug_status* status) {
  return call(status, [&]() -> snug::Status {
    if (policy < SNUG_GEMM_MEMORY || policy > SNUG_GEMM_SPEED)
      return {snug::Code::kUsage, "no such policy"};
    snug::capi::deref(choice) = c_choice(gemm::choose(n, k, m, static_cast<gemm::Policy>(policy)));
    return {};
  });
}

size_t snug_gemm_explain(uint64_t n, uint64_t k, uint64_t m, int policy, char* buffer,
                         size_t buffer_bytes) {
  return write_text(gemm::explain(n, k, m, static_cast<gemm::Policy>(policy)), buffer,
                    buffer_bytes);
}

int snug_gemm_tune(const snug_gemm_matrix* matrix, const void* x, uint64_t ldx, uint64_t m, void* y,
                   uint64_t ldy, void* workspace, size_t workspace_bytes, void* stream,
                   snug_gemm_choice* choice, snug_status* status) {
  return call(
      status, choice,
      [&] {
        return gemm::tune(cpp(matrix), {x, ldx, m, nullptr, y, ldy}, {workspace, workspace_bytes},
                          cpp(stream));
      },
      c_choice);
}
