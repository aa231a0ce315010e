"""What sglang_pd_trial.py adds to SGLang, as a plugin of its own: SGLang calls register().

Two shims let prefill-decode run without a GPU. A third compares every page bit for bit: the prefill
instance notes a hash of what it pushes and where to, the decode instance reads these places when
all has come, in the folder SGLANG_TRIAL_HASHES.
"""

import ctypes
import hashlib
import json
import os
from pathlib import Path


def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    common = "sglang.srt.mem_cache.pool_host.common."
    for name in ("_cuda_host_register", "_cuda_host_unregister"):
        HookRegistry.register(common + name, lambda *arguments, **named: None, HookType.REPLACE)
    HookRegistry.register("sglang.srt.disaggregation.utils.get_kv_class", without_events,
                          HookType.AROUND)
    if os.environ.get("SNUG_SGLANG_KV"):
        compare_pages(Path(os.environ["SGLANG_TRIAL_HASHES"]))


def without_events(original, backend, kind):
    """Copies of indices to the host are awaited with CUDA events."""
    found = original(backend, kind)
    if kind.value == "sender":
        return type(found.__name__, (found,), {"supports_host_tensor_indices": False})
    return found


def compare_pages(folder):
    from snug.kv.inbox import PageInbox
    from snug.kv.push import PagePusher
    push, finish = PagePusher.push, PageInbox.finish

    def noting_push(self, address, pages):
        with open(folder / pages.request, "a") as file:
            for source, target in zip(pages.sources.tolist(), pages.targets.tolist()):
                file.write(json.dumps([*target, digest(*source)]) + "\n")
        push(self, address, pages)

    def checking_finish(self, request):
        finish(self, request)
        if not (folder / request).exists():
            return  # the prefill instance has no Snug
        rows = [json.loads(line) for line in open(folder / request)]
        same = [digest(address, size) == expected for address, size, expected in rows]
        (folder / f"{request}.checked").write_text(json.dumps(
            {"rows": len(rows), "same": sum(same), "bytes": sum(size for _, size, _ in rows)}))

    PagePusher.push, PageInbox.finish = noting_push, checking_finish


def digest(address, size):
    return hashlib.sha256(ctypes.string_at(address, size)).hexdigest()
