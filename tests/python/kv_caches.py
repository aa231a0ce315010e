"""Stand-ins for the tensors of a KV cache, for tests of snug.kv."""


class Cache:
    """A tensor as far as CacheLayout looks."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def data_ptr(self):
        return self.array.ctypes.data

    def stride(self):
        return [step // self.array.itemsize for step in self.array.strides]

    def element_size(self):
        return self.array.itemsize
