"""vLLM serves models from compressed weights (docs/vllm.md).

    vllm serve model.snug                          # a folder that `snug compress` wrote
    vllm serve model --quantization snug           # a plain BF16 folder, packed while it is loaded

vLLM finds this package by its entry point and calls `snug.vllm.plugin.register` in every process.
Nothing here imports torch or vLLM before that.
"""
