"""Weight updates from a trainer to vLLM by deltas (docs/rl.md).

    vllm serve model --weight-transfer-config '{"backend": "snug"}'

`snug.vllm.trainer` is the trainer's side. Nothing here imports torch or vLLM before vLLM asks.
"""

BACKEND = "snug"


def register():
    """Makes the backend known to vLLM; may be called more than once."""
    try:
        from vllm.distributed.weight_transfer import factory
    except ImportError as error:
        raise ImportError("weight transfer needs vLLM 0.24 or newer: "
                          f"pip install vllm ({error})") from None
    engines = factory.WeightTransferEngineFactory
    if BACKEND not in engines._registry:
        engines.register_engine(BACKEND, "snug.vllm.weight_engine", "SnugWeightTransferEngine")
    trainers = getattr(factory, "WeightTransferTrainerFactory", None)  # since 0.32
    if trainers is not None and BACKEND not in trainers._registry:
        trainers.register_engine(BACKEND, "snug.vllm.trainer_engine", "SnugTrainerEngine")
