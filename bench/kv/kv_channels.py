"""What a base of the exponents for each channel would save on KV caches, on the CPU:

    SNUG_LIBRARY=build/libsnug_c.so PYTHONPATH=python \
        python3 bench/kv/kv_channels.py kv.safetensors

Exponents are replaced by their distance from a base of their channel, one byte a channel and
`scope`, before the codec sees them. Ratios count these bytes. Frames are real ones (`entropy`) of
the pages of one layer, one after the other; 2^13 and 2^14 are the blocks of a GPU. "bits" is the
entropy of an exponent.
"""

import argparse
import json

import numpy

from snug.kv.frames import bound_bytes, encode


def pages_of(tensor):
    """Batch x heads x tokens x dim to sequences of tokens x channels, as 16-bit patterns."""
    return tensor.view(numpy.uint16).transpose(0, 2, 1, 3).reshape(
        tensor.shape[0], tensor.shape[2], -1)


def based(values, scope):
    """The exponents of `scope` tokens at a time, relative to the median of their channel."""
    out, num_bases = values.copy(), 0
    for start in range(0, values.shape[1], scope):
        part = values[:, start:start + scope]
        exponents = (part >> 7 & 0xFF).astype(numpy.int32)
        base = numpy.median(exponents, axis=1, keepdims=True).astype(numpy.int32)
        moved = (exponents - base + 127) & 0xFF
        out[:, start:start + scope] = part & 0x807F | (moved << 7).astype(numpy.uint16)
        num_bases += base.size
    return out, num_bases


def ratio(values, log2_block, num_bases):
    raw = numpy.ascontiguousarray(values).reshape(-1)
    room = numpy.empty(bound_bytes(raw.nbytes, "bf16", "entropy"), numpy.uint8)
    return (encode(raw, room, "bf16", "entropy", log2_block) + num_bases) / raw.nbytes


def entropy(values):
    counts = numpy.bincount((values >> 7 & 0xFF).reshape(-1), minlength=256)
    share = counts[counts > 0] / counts.sum()
    return float(-(share * numpy.log2(share)).sum())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    tensors = load_file_as_bits(parser.parse_args().data)
    for name, tensor in tensors.items():
        values = pages_of(tensor)
        row = {"tensor": name, "channels": values.shape[2]}
        for scope in (None, 16, 32, 128, 1024):
            changed, num_bases = (values, 0) if scope is None else based(values, scope)
            row["as it is" if scope is None else f"base for {scope} tokens"] = {
                "bits": round(entropy(changed), 3),
                **{f"blocks of 2^{log2}": round(ratio(changed, log2, num_bases), 4)
                   for log2 in (13, 14, 17)}}
        print(json.dumps(row))


def load_file_as_bits(path):
    """NumPy has no BF16: the bits are read as they are."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header, data = json.loads(file.read(size)), file.read()
    tensors = {}
    for name, about in header.items():
        if name.startswith(("k.", "v.")):
            begin, end = about["data_offsets"]
            tensors[name] = numpy.frombuffer(data[begin:end], numpy.uint16).reshape(about["shape"])
    return tensors


if __name__ == "__main__":
    main()
