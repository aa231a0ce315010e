"""The C functions and structs of libsnug_c, as ctypes needs them.

They repeat include/snug/snug.h, snug_gpu.h, snug_experts.h and snug_load.h. The sizes of all structs
are compared with the library's when it is loaded.
"""

import ctypes
from ctypes import (POINTER, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t,
                    c_uint32, c_uint64, c_void_p)


class Status(ctypes.Structure):
    _fields_ = [("code", c_int32), ("reserved", c_int32), ("what", c_char_p),
                ("block", c_uint64), ("byte", c_uint64), ("found", c_uint64),
                ("expected", c_uint64), ("line", c_char * 464)]


class EncodeOptions(ctypes.Structure):
    _fields_ = [("dtype", c_int32), ("codec", c_int32), ("log2_block", c_int32),
                ("num_threads", c_int32)]


class FrameInfo(ctypes.Structure):
    _fields_ = [("dtype", c_int32), ("block_elems", c_uint32), ("raw_bytes", c_uint64),
                ("frame_bytes", c_uint64), ("num_elems", c_uint64), ("num_blocks", c_uint64)]


class CudaResult(ctypes.Structure):
    _fields_ = [("num_bytes", c_uint64), ("code", c_uint32), ("reason", c_uint32),
                ("block", c_uint64)]


class CudaOptions(ctypes.Structure):
    _fields_ = [("dtype", c_int32), ("codec", c_int32), ("log2_block", c_int32),
                ("max_sms", c_int32), ("host_result", POINTER(CudaResult))]


class DeltaOptions(ctypes.Structure):
    _fields_ = [("dtype", c_int32), ("log2_block", c_int32), ("allow_frame", c_int32),
                ("num_threads", c_int32)]


class DeltaInfo(ctypes.Structure):
    _fields_ = [("dtype", c_int32), ("needs_base", c_int32), ("raw_bytes", c_uint64),
                ("delta_bytes", c_uint64), ("num_changed", c_uint64), ("base_hash", c_uint64),
                ("target_hash", c_uint64), ("num_blocks", c_uint64), ("block_elems", c_uint32),
                ("reserved", c_uint32)]


class CudaDeltaOptions(ctypes.Structure):
    _fields_ = [("dtype", c_int32), ("log2_block", c_int32), ("host_result", POINTER(CudaResult))]


class GemmMatrix(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("num_bytes", c_uint64), ("n", c_uint64), ("k", c_uint64),
                ("num_escaped", c_uint64), ("kind", c_int32), ("reserved", c_int32)]


class GemmPlan(ctypes.Structure):
    _fields_ = [("kernel", c_int32), ("split_k", c_int32), ("warps", c_int32),
                ("strips", c_int32), ("tile_m", c_int32)]


class GemmChoice(ctypes.Structure):
    _fields_ = [("packed", c_int32), ("gain", c_float), ("plan", GemmPlan)]


class ExpertsShape(ctypes.Structure):
    _fields_ = [("experts", c_uint64), ("n", c_uint64), ("k", c_uint64), ("parts", c_uint32),
                ("kind", c_int32)]


class ExpertsArgs(ctypes.Structure):
    _fields_ = [("x", c_void_p), ("ldx", c_uint64), ("m", c_uint64), ("ids", c_void_p),
                ("weights", c_void_p), ("y", c_void_p), ("ldy", c_uint64), ("result", c_void_p),
                ("top_k", c_uint32), ("reserved", c_uint32)]


class GroupedArgs(ctypes.Structure):
    _fields_ = [("x", c_void_p), ("ldx", c_uint64), ("m", c_uint64), ("y", c_void_p),
                ("ldy", c_uint64), ("ids", c_void_p), ("counts", c_void_p), ("result", c_void_p)]


class WireOptions(ctypes.Structure):
    _fields_ = [("token", c_char_p), ("mode", c_int32), ("num_lanes", c_int32),
                ("chunk_bytes", c_uint64), ("timeout_ms", c_int64), ("insecure", c_int64)]


class WireStats(ctypes.Structure):
    _fields_ = [("raw_bytes", c_uint64), ("wire_bytes", c_uint64), ("known_bytes", c_uint64),
                ("num_chunks", c_uint64 * 3), ("goodput", c_double * 3)]


class Segment(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("num_bytes", c_uint64)]


class MetadataInfo(ctypes.Structure):
    _fields_ = [("key", c_void_p), ("value", c_void_p), ("key_bytes", c_uint64),
                ("value_bytes", c_uint64)]


class ReaderInfo(ctypes.Structure):
    _fields_ = [("num_tensors", c_uint64), ("num_metadata", c_uint64), ("raw_bytes", c_uint64),
                ("stored_bytes", c_uint64), ("compressed", c_int32), ("reserved", c_int32)]


class TensorInfo(ctypes.Structure):
    _fields_ = [("name", c_void_p), ("name_bytes", c_uint64), ("dtype_name", c_char_p),
                ("shape", POINTER(c_uint64)), ("num_dims", c_uint64), ("raw_bytes", c_uint64),
                ("stored_bytes", c_uint64), ("file_offset", c_uint64), ("dtype", c_int32),
                ("reserved", c_int32)]


class LoadTarget(ctypes.Structure):
    _fields_ = [("idx", c_uint64), ("dst", c_void_p), ("dst_bytes", c_uint64)]


STRUCTS = {
    "snug_status": Status, "snug_encode_options": EncodeOptions, "snug_frame_info": FrameInfo,
    "snug_delta_options": DeltaOptions, "snug_delta_info": DeltaInfo,
    "snug_reader_info": ReaderInfo, "snug_tensor_info": TensorInfo,
    "snug_metadata_info": MetadataInfo, "snug_load_target": LoadTarget,
    "snug_wire_options": WireOptions, "snug_wire_stats": WireStats, "snug_segment": Segment,
    "snug_cuda_result": CudaResult, "snug_cuda_options": CudaOptions,
    "snug_cuda_delta_options": CudaDeltaOptions, "snug_gemm_matrix": GemmMatrix,
    "snug_gemm_plan": GemmPlan, "snug_gemm_choice": GemmChoice,
    "snug_experts_shape": ExpertsShape, "snug_experts_args": ExpertsArgs,
    "snug_grouped_args": GroupedArgs,
}

# Shorthand for signatures: a pointer, a size, a status, and pointers to both.
_P, _N, _PN, _PP, _S = c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_void_p), POINTER(Status)
_B = POINTER(ExpertsShape)  # of a bank

CORE = {
    "snug_elem_bytes": (_N, [c_int]),
    "snug_dtype_name": (c_char_p, [c_int]),
    "snug_codec_name": (c_char_p, [c_int]),
    "snug_encode_bound_bytes": (_N, [_N, POINTER(EncodeOptions)]),
    "snug_encode": (c_int, [_P, _N, _P, _N, POINTER(EncodeOptions), _PN, _S]),
    "snug_inspect": (c_int, [_P, _N, POINTER(FrameInfo), _S]),
    "snug_decode": (c_int, [_P, _N, _P, _N, c_int, _PN, _S]),
    "snug_verify": (c_int, [_P, _N, _S]),
    "snug_status_text": (_N, [_S, c_char_p, _N]),
    "snug_delta_bound_bytes": (_N, [_N, POINTER(DeltaOptions)]),
    "snug_delta_encode": (c_int, [_P, _P, _N, _P, _N, POINTER(DeltaOptions), _PN, _S]),
    "snug_delta_inspect": (c_int, [_P, _N, POINTER(DeltaInfo), _S]),
    "snug_delta_apply": (c_int, [_P, _N, _P, _N, _P, _N, c_int, _PN, _S]),
    "snug_tensor_hash": (c_uint64, [_P, _N, c_int]),
    "snug_gemm_packed_bound_bytes": (_N, [c_uint64, c_uint64, c_int]),
    "snug_gemm_pack_host": (c_int, [_P, c_uint64, c_uint64, c_uint64, c_int, _P, _N, _PN, _S]),
    "snug_gemm_unpack_host": (c_int, [_P, _N, _P, _N, c_uint64, _S]),
    "snug_gemm_inspect": (c_int, [_P, _N, c_uint64, POINTER(GemmMatrix), _S]),
    "snug_gemm_num_strips": (_N, [c_uint64]),
    "snug_gemm_strip_sums_host": (c_int, [_P, _N, _P, _N, _S]),
    "snug_experts_bank_bytes": (_N, [_B]),
    "snug_experts_pack_host": (c_int, [_P, _B, _P, _N, _S]),
    "snug_experts_unpack_host": (c_int, [_P, _N, _B, c_uint64, _P, _N, _S]),
}

# In libraries built with the checkpoint store.
STORE = {
    "snug_reader_open": (c_int, [c_char_p, _PP, _S]),
    "snug_reader_free": (None, [_P]),
    "snug_reader_inspect": (c_int, [_P, POINTER(ReaderInfo), _S]),
    "snug_reader_tensor": (c_int, [_P, _N, POINTER(TensorInfo), _S]),
    "snug_reader_read": (c_int, [_P, _N, _P, _N, c_int, _PN, _S]),
    "snug_reader_read_rows": (c_int, [_P, _N, c_uint64, c_uint64, _P, _N, c_int, _PN, _S]),
    "snug_reader_read_bytes": (c_int, [_P, _N, c_uint64, _P, _N, c_int, _S]),
    "snug_reader_metadata": (c_int, [_P, _N, POINTER(MetadataInfo), _S]),
    "snug_reader_load": (c_int, [_P, POINTER(LoadTarget), _N, c_int, _S]),
    "snug_compress_file": (c_int, [c_char_p, c_char_p, c_int, c_int, c_int, POINTER(c_int), _S]),
}
_SEND = (c_int, [_P, c_uint64, c_int, POINTER(Segment), _N, _PP, _S])
WIRE = {
    "snug_wire_connect": (c_int, [c_char_p, POINTER(WireOptions), POINTER(c_int), _PP, _S]),
    "snug_wire_listen": (c_int, [c_char_p, POINTER(WireOptions), _PP, _S]),
    "snug_wire_listener_address": (_N, [_P, c_char_p, _N]),
    "snug_wire_accept": (c_int, [_P, c_int64, _PP, _S]),
    "snug_wire_send": _SEND,
    "snug_wire_recv": (c_int, [_P, c_uint64, POINTER(Segment), _N, _PP, _S]),
    "snug_wire_wait": (c_int, [_P, c_int64, _S]),
    "snug_wire_is_done": (c_int, [_P]),
    "snug_wire_done_bytes": (c_uint64, [_P]),
    "snug_wire_send_note": (c_int, [_P, _P, _N, _S]),
    "snug_wire_recv_note": (c_int, [_P, c_int64, _P, _N, _PN, _S]),
    "snug_wire_stats_of": (c_int, [_P, POINTER(WireStats), _S]),
    "snug_wire_connection_close": (None, [_P]),
    "snug_wire_connection_free": (None, [_P]),
    "snug_wire_listener_free": (None, [_P]),
    "snug_wire_transfer_free": (None, [_P]),
}

# In libraries built with CUDA.
CUDA = {
    "snug_cuda_status": (c_int, [POINTER(CudaResult), _S]),
    "snug_cuda_capture_id": (c_uint64, [_P]),
    "snug_cuda_encode_workspace_bytes": (_N, [_N, POINTER(CudaOptions)]),
    "snug_cuda_decode_workspace_bytes": (_N, [_N, POINTER(CudaOptions)]),
    "snug_cuda_encode": (c_int, [_P, _N, _P, _N, _P, _N, _P, POINTER(CudaOptions), _P, _S]),
    "snug_cuda_decode": (c_int, [_P, _N, _P, _N, _P, _N, _P, POINTER(CudaOptions), _P, _S]),
    "snug_cuda_paged_workspace_bytes": (_N, [_N, _N, POINTER(CudaOptions)]),
    "snug_cuda_encode_paged": (c_int, [_P, _N, _N, _P, _N, _P, _N, _P, POINTER(CudaOptions), _P,
                                       _S]),
    "snug_cuda_decode_paged": (c_int, [_P, _N, _P, _N, _N, _P, _N, _P, POINTER(CudaOptions), _P,
                                       _S]),
    "snug_cuda_delta_encode_workspace_bytes": (_N, [_N, POINTER(CudaDeltaOptions)]),
    "snug_cuda_delta_apply_workspace_bytes": (_N, [_N, POINTER(CudaDeltaOptions)]),
    "snug_cuda_delta_encode": (c_int, [_P, _P, _N, _P, _N, _P, _N, _P, POINTER(CudaDeltaOptions),
                                       _P, _S]),
    "snug_cuda_delta_apply_to": (c_int, [_P, _N, _P, _P, _N, _P, _N, _P, POINTER(CudaDeltaOptions),
                                         _P, _S]),
    "snug_cuda_tensor_hash": (c_int, [_P, _N, _P, _P, _N, _P, _S]),
    "snug_gemm_pack_workspace_bytes": (_N, [c_uint64, c_uint64]),
    "snug_gemm_pack": (c_int, [_P, c_uint64, c_uint64, c_uint64, c_int, _P, _N, _P, _N, _P, _P,
                               _S]),
    "snug_gemm_open": (c_int, [_P, c_uint64, _P, POINTER(GemmMatrix), _S]),
    "snug_gemm_strip_sums": (c_int, [POINTER(GemmMatrix), _P, _P, _S]),
    "snug_gemm_unpack": (c_int, [POINTER(GemmMatrix), _P, c_uint64, _P, _S]),
    "snug_gemm_linear_workspace_bytes": (_N, [c_uint64, c_uint64, c_uint64]),
    "snug_gemm_init_workspace": (c_int, [_P, _N, _P, _S]),
    "snug_gemm_linear": (c_int, [POINTER(GemmMatrix), _P, c_uint64, c_uint64, _P, _P, c_uint64, _P,
                                 _N, POINTER(GemmPlan), _P, _S]),
    "snug_gemm_choose": (c_int, [c_uint64, c_uint64, c_uint64, c_int, POINTER(GemmChoice), _S]),
    "snug_gemm_apply_delta_workspace_bytes": (_N, [c_uint64, c_uint64]),
    "snug_gemm_apply_delta": (c_int, [POINTER(GemmMatrix), _P, _N, c_int, _P, _N, _P, _N, _P,
                                      POINTER(CudaDeltaOptions), _P, _S]),
    "snug_gemm_explain": (_N, [c_uint64, c_uint64, c_uint64, c_int, c_char_p, _N]),
    "snug_gemm_tune": (c_int, [POINTER(GemmMatrix), _P, c_uint64, c_uint64, _P, c_uint64, _P, _N,
                               _P, POINTER(GemmChoice), _S]),
    "snug_gemm_tuning_text": (_N, [c_char_p, _N]),
    "snug_gemm_load_tuning": (c_int, [c_char_p, _S]),
    "snug_experts_pack_workspace_bytes": (_N, [_B, c_uint64]),
    "snug_experts_pack": (c_int, [_P, _B, c_uint64, c_uint64, _P, _N, _P, _N, _P, _P, _S]),
    "snug_experts_unpack": (c_int, [_P, _B, c_uint64, _P, _P, _S]),
    "snug_experts_workspace_bytes": (_N, [_B, _B, c_uint32, c_uint64]),
    "snug_experts_layer": (c_int, [_P, _B, _P, _B, POINTER(ExpertsArgs), _P, _N, _P, _P, _S]),
    "snug_grouped_workspace_bytes": (_N, [_B, c_uint64]),
    "snug_grouped": (c_int, [_P, _B, POINTER(GroupedArgs), _P, _N, _P, _P, _S]),
}

# In libraries built with both.
LOAD = {
    "snug_cuda_loader_open": (c_int, [c_int, c_uint64, _PP, _S]),
    "snug_cuda_loader_load": (c_int, [_P, _P, POINTER(LoadTarget), _N, _P, _S]),
    "snug_cuda_loader_free": (None, [_P]),
}
LINK = {
    "snug_cuda_wire_send": _SEND,
    "snug_cuda_wire_recv": _SEND,
    "snug_link_open": (c_int, [_P, c_int, c_int64, _PP, _S]),
    "snug_link_send": _SEND,
    "snug_link_recv": _SEND,
    "snug_link_stats_of": (c_int, [_P, POINTER(WireStats), POINTER(WireStats), _S]),
    "snug_link_free": (None, [_P]),
}
