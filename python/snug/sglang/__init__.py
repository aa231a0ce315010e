"""SGLang serves model folders that `snug compress` wrote (docs/sglang.md), and moves KV pages from
prefill to decode instances compressed (docs/kv.md).

    python -m sglang.launch_server --model model.snug
    SNUG_SGLANG_KV=1 python -m sglang.launch_server --disaggregation-mode prefill ...

SGLang finds this package by its entry point and calls `snug.sglang.plugin.register` in every
process. Nothing here imports torch or SGLang before that.
"""
