"""vLLM's file tier with frames: python kv_files_trial.py

Blocks of host memory go to files and come back, as vLLM's scheduler moves them; no engine runs,
since vLLM keeps blocks in host memory for GPUs only. vLLM 0.32.
"""

import mmap
import os
import resource
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy
from vllm.v1.kv_offload.base import make_offload_key
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

BLOCKS, BYTES = 12, 1 << 18


def check(what, is_true, note=""):
    print(f"{'ok  ' if is_true else 'FAIL'} {what} {note}", flush=True)
    if not is_true:
        raise SystemExit(1)


def make_tier(view, folder):
    parallel = SimpleNamespace(tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, rank=0,
                               is_parallelism_agnostic=True)
    config = SimpleNamespace(
        groups=[SimpleNamespace(tokens_per_block=16, layer_names=["a"])], parallel=parallel,
        canonical_layout=False, replicated_layout=False,
        model=SimpleNamespace(name="model", dtype="bfloat16"),
        cache=SimpleNamespace(tokens_per_hash=16))
    spec = SimpleNamespace(config=config, blocks_per_chunk=1, extra_config={})
    return SecondaryTierFactory.create_secondary_tier(
        {"type": "SnugFileTier", "module_path": "snug.vllm.kv_files", "root_dir": folder,
         "n_read_threads": 2, "n_write_threads": 2}, view, spec)


def run(tier, job, blocks, is_load):
    keys = [make_offload_key(bytes([block]) * 32, 0) for block in blocks]
    (tier.submit_load if is_load else tier.submit_store)(
        TransferJob(job, keys, numpy.array(blocks), is_load, None))
    while True:
        for result in tier.get_finished_jobs():
            return result.success
        time.sleep(0.01)


def main():
    rng = numpy.random.default_rng(1)
    values = rng.standard_normal(BLOCKS * BYTES // 2).astype(numpy.float32)
    original = (values.view(numpy.uint32) >> 16).astype(numpy.uint16).view(numpy.int8).reshape(
        BLOCKS, BYTES)
    mapping = mmap.mmap(-1, original.nbytes)  # as vLLM's
    memory = numpy.frombuffer(mapping, numpy.int8).reshape(BLOCKS, BYTES)
    memory[:] = original
    with tempfile.TemporaryDirectory() as folder:
        view = memoryview(memory)
        tier = make_tier(view, folder)
        check("blocks are stored", run(tier, 1, range(BLOCKS), False))
        files = sorted(Path(folder).rglob("*.bin"))
        size = sum(file.stat().st_size for file in files)
        check("files are smaller than blocks", len(files) == BLOCKS and size < 0.7 * memory.nbytes,
              f"{size / memory.nbytes:.3f}")
        memory[:] = 0
        check("they come back", run(tier, 2, range(BLOCKS), True)
              and numpy.array_equal(memory, original))
        damaged = bytearray(files[3].read_bytes())
        damaged[len(damaged) // 2] ^= 4
        files[3].write_bytes(damaged)
        os.truncate(files[7], 1000)
        check("a flipped bit is a miss", not run(tier, 3, [3], True) and not files[3].exists())
        check("a cut file is a miss", not run(tier, 4, [7], True) and not files[7].exists())
        files[9].write_bytes(b"")
        os.truncate(files[9], 1 << 43)
        check("a huge file is a miss", not run(tier, 5, [9], True) and not files[9].exists())
        files[5].write_bytes(b"")  # as a crash may leave it
        check("an empty file is a miss", not run(tier, 8, [5], True) and not files[5].exists())
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES // 2, limits[1]))  # a full disk
        check("what cannot be written is no file", not run(tier, 9, [5], False)
              and not files[5].exists())
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        memory[:] = original
        check("they can be stored again", run(tier, 6, [3, 5, 7, 9], False) and files[9].exists())
        memory[:] = 0
        check("and come back", run(tier, 7, range(BLOCKS), True)
              and numpy.array_equal(memory, original))
        check("no unfinished file is left", not list(Path(folder).rglob("*.tmp")))
        tier.shutdown()
        view.release()
        del memory
        mapping.close()  # an error if the tier still refers to it
        check("its memory can be unmapped", True)


if __name__ == "__main__":
    main()
