// The C ABI of the part of snug/experts.h that runs on a GPU.
#include "capi/experts_convert.h"

namespace gemm = snug::gemm;
using snug::capi::call;
using snug::capi::cpp;
using snug::capi::deref;
using snug::capi::shape_or_none;

namespace {

gemm::ExpertsPlan plan_or_none(const snug_experts_plan* plan) {
  if (plan == nullptr) return {};
  return {plan->kernel, plan->split, plan->rows};
}

}  // namespace

size_t snug_experts_pack_workspace_bytes(const snug_experts_shape* shape, uint64_t count) {
  return gemm::pack_bank_workspace_bytes(shape_or_none(shape), count);
}

int snug_experts_pack(const void* w, const snug_experts_shape* shape, uint64_t first,
                      uint64_t count, void* bank, size_t bank_bytes, void* workspace,
                      size_t workspace_bytes, snug_cuda_result* results, void* stream,
                      snug_status* status) {
  return call(status, [&] {
    return gemm::pack_bank(w, cpp(shape), first, count, {bank, bank_bytes},
                           {workspace, workspace_bytes}, cpp(results), cpp(stream));
  });
}

int snug_experts_unpack(const void* bank, const snug_experts_shape* shape, uint64_t expert, void* w,
                        void* stream, snug_status* status) {
  return call(status, [&] {
    return gemm::unpack_expert({bank, cpp(shape)}, expert, w, cpp(stream));
  });
}

size_t snug_experts_workspace_bytes(const snug_experts_shape* gate_up,
                                    const snug_experts_shape* down, uint32_t top_k,
                                    uint64_t max_m) {
  return gemm::experts_workspace_bytes(shape_or_none(gate_up), shape_or_none(down), top_k, max_m);
}

int snug_experts_layer(const void* gate_up_bank, const snug_experts_shape* gate_up,
                       const void* down_bank, const snug_experts_shape* down,
                       const snug_experts_args* args, void* workspace, size_t workspace_bytes,
                       const snug_experts_plan* plan, void* stream, snug_status* status) {
  return call(status, [&] {
    const snug_experts_args& a = deref(args);
    return gemm::experts({gate_up_bank, cpp(gate_up)}, {down_bank, cpp(down)},
                         {a.x, a.ldx, a.m, a.ids, a.weights, a.top_k, a.y, a.ldy, cpp(a.result)},
                         {workspace, workspace_bytes}, plan_or_none(plan), cpp(stream));
  });
}

size_t snug_grouped_workspace_bytes(const snug_experts_shape* shape, uint64_t max_m) {
  return gemm::grouped_workspace_bytes(shape_or_none(shape), max_m);
}

int snug_grouped(const void* bank, const snug_experts_shape* shape, const snug_grouped_args* args,
                 void* workspace, size_t workspace_bytes, const snug_experts_plan* plan,
                 void* stream, snug_status* status) {
  return call(status, [&] {
    const snug_grouped_args& a = deref(args);
    return gemm::grouped({bank, cpp(shape)},
                         {a.x, a.ldx, a.m, a.y, a.ldy, a.ids, a.counts, cpp(a.result)},
                         {workspace, workspace_bytes}, plan_or_none(plan), cpp(stream));
  });
}
