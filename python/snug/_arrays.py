"""Tensors in the form that the user works with: numpy arrays or torch tensors."""

from ._library import has_loader

# Names in safetensors files to names in numpy, ml_dtypes and torch. In the order in which
# safetensors writes tensors: largest elements first.
DTYPES = {
    "U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64", "F32": "float32",
    "U32": "uint32", "I32": "int32", "BF16": "bfloat16", "F16": "float16", "U16": "uint16",
    "I16": "int16", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "I8": "int8", "U8": "uint8", "F4": "float4_e2m1fn_x2", "BOOL": "bool",
}
FILE_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


def arrays_of(framework, device):
    """How to make tensors of a framework on a device."""
    if not isinstance(framework, str):
        raise TypeError(f'framework is "pt" or "np", not {framework!r}')
    if framework in ("pt", "torch", "pytorch"):
        return TorchArrays(device)
    if framework in ("np", "numpy"):
        return NumpyArrays(device)
    raise ValueError(f'framework {framework!r} is not supported: use "pt" or "np"')


def is_packed(dtype):
    """Whether a byte holds two elements. Frameworks count such a byte as one element."""
    return dtype == "F4"


def stored_shape(dtype, shape):
    """The shape that a framework gives to a tensor of this dtype and shape in a file."""
    if not is_packed(dtype):
        return tuple(shape)
    if not shape or shape[-1] % 2 != 0:
        raise TypeError(f"{dtype} of shape {tuple(shape)}: the last dimension must be even, since "
                        "a byte holds two elements; snug.Reader reads the bytes")
    return tuple(shape[:-1]) + (shape[-1] // 2,)


class NumpyArrays:
    def __init__(self, device):
        try:
            import numpy
        except ImportError:
            raise ImportError('framework="np" needs numpy: pip install numpy') from None
        if str(device) != "cpu":
            raise ValueError(f'numpy has no device {device!r}: use device="cpu", or '
                             'framework="pt"')
        self._numpy = numpy

    def dtype(self, name):
        own = DTYPES.get(name)
        if own is None or is_packed(name):
            raise TypeError(f"numpy has no dtype for {name}: snug.Reader reads the bytes")
        try:
            return self._numpy.dtype(own)
        except TypeError:
            pass
        try:
            import ml_dtypes
            return self._numpy.dtype(getattr(ml_dtypes, own))
        except (ImportError, AttributeError):
            raise TypeError(f"numpy has no dtype for {name}, a recent ml_dtypes has: "
                            "pip install -U ml_dtypes") from None

    def memory(self, num_bytes):
        return self._numpy.empty(num_bytes, self._numpy.uint8)

    def load(self, reader, num_bytes):
        """Memory with whole tensors, by name; the arguments are their sizes."""
        memories = {name: self.memory(size) for name, size in num_bytes.items()}
        reader.load(memories)
        return memories

    def shaped(self, memory, dtype, shape):
        return memory.view(dtype).reshape(shape)

    def without_memory(self, shape):
        return self._numpy.broadcast_to(self._numpy.uint8(0), shape)

    def compact(self, part, whole):
        """A part that does not keep the memory of the whole alive."""
        return part if part.size == whole.size and part.flags.c_contiguous else part.copy()

    def on_device(self, array):
        return array


class TorchArrays:
    def __init__(self, device):
        try:
            import torch
        except ImportError:
            raise ImportError('framework="pt" needs torch: pip install torch, or use '
                              'framework="np"') from None
        self._torch = torch
        try:
            self._device = torch.device(f"cuda:{device}" if isinstance(device, int) else device)
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"device {device!r} is not a device of torch: {error}") from None
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f'device {device!r}: torch finds no GPU; use device="cpu"')
        if self._device.type == "cuda" and self._device.index is None:
            # Another GPU may be the current one when tensors are read.
            self._device = torch.device("cuda", torch.cuda.current_device())
        self._gpu = None  # made when it is needed

    def dtype(self, name):
        own = getattr(self._torch, DTYPES.get(name, ""), None)
        if own is None:
            newer = " (a newer one may)" if name in DTYPES else ""
            raise TypeError(f"torch {self._torch.__version__} has no dtype for {name}{newer}: "
                            "snug.Reader reads the bytes")
        return own

    def memory(self, num_bytes):
        return self._torch.empty(num_bytes, dtype=self._torch.uint8, device="cpu")

    def load(self, reader, num_bytes):
        if self._gpu is None and self._device.type == "cuda" and has_loader:
            from .torch.gpu_loader import shared_loader
            self._gpu = shared_loader(self._device)
        memories = {name: self._torch.empty(size, dtype=self._torch.uint8,
                                            device=self._device if self._gpu else "cpu")
                    for name, size in num_bytes.items()}
        if self._gpu:
            self._gpu.load(reader, memories)
        else:
            reader.load(memories)
        return memories

    def shaped(self, memory, dtype, shape):
        return memory.view(dtype).reshape(shape)

    def without_memory(self, shape):
        return self._torch.empty((), dtype=self._torch.uint8).expand(shape)

    def compact(self, part, whole):
        if part.numel() == whole.numel() and part.is_contiguous():
            return part
        return part.clone(memory_format=self._torch.contiguous_format)

    def on_device(self, tensor):
        return tensor.to(self._device)
