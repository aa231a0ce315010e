"""Weight updates of a 7B-shaped model in vLLM on one GPU, by deltas and by vLLM's own engines.

    weight_transfer.py RL OUT [--mode dense|snug] [--updates 20] [--nccl 3] [--layers 32]

RL has three versions of some tensors (before.NAME, after1.NAME, after8.NAME); all weights of the
model are these, repeated. Trainer and engine are two processes on the same GPU, so run this under
MPS. After every update by deltas, vLLM's IPC engine sends the same weights whole: the model must
then have the same bits. Last comes NCCL, which refuses two ranks on one GPU: here it takes them for
two hosts and uses sockets over loopback, so its times say little about NVLink.
"""

import argparse
import importlib.machinery
import importlib.util
import json
import multiprocessing
import os
import sys
import threading
import time
import types

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
LLAMA_7B = dict(intermediate_size=11008, num_key_value_heads=32, vocab_size=32000)
ORDER = ("after1", "after8", "after1", "before")


# ---- the engine's process ------------------------------------------------------------------

def stub_ray():
    """vLLM's IPC engine imports ray, which is not used here, and maybe not installed."""
    for name in ("ray", "requests"):
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)


def use(worker, backend):
    """Swaps the weight transfer engine of a running worker."""
    stub_ray()
    worker = vars(worker).get("worker", worker)  # what is set on vLLM's wrapper stays there
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    engines = worker.__dict__.setdefault("engines_of_benchmark", {
        worker.vllm_config.weight_transfer_config.backend: worker.weight_transfer_engine})
    if backend not in engines:
        config = type(worker.vllm_config.weight_transfer_config)(backend=backend)
        engines[backend] = WeightTransferEngineFactory.create_engine(
            config, worker.vllm_config.parallel_config, worker.model_runner.get_model())
    worker.weight_transfer_engine = engines[backend]


def digest(worker):
    import snug.torch
    return {name: snug.torch.tensor_hash(parameter)
            for name, parameter in worker.model_runner.get_model().named_parameters()}


def open_shared(arguments):
    """Whether this machine lets processes share GPU memory."""
    from torch.multiprocessing.reductions import rebuild_cuda_tensor
    return float(rebuild_cuda_tensor(*arguments).sum())


def serve(pipe, mode, num_layers):
    import common
    common.LLAMA_8B.update(LLAMA_7B)
    from snug.vllm import weight_transfer
    from snug.vllm.clients import LLMClient
    weight_transfer.register()
    from vllm import SamplingParams
    llm = common.start(mode, num_layers=num_layers, weight_transfer_config={"backend": "snug"},
                       gpu_memory_utilization=0.4, kv_cache_memory_bytes=2 << 30, max_num_seqs=8,
                       compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY",
                                           "cudagraph_capture_sizes": [1]})

    def tokens():
        sampling = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True, detokenize=False)
        return list(llm.generate(common.prompts(1, 32, 30000), sampling,
                                 use_tqdm=False)[0].outputs[0].token_ids)

    calls = {"open_shared": open_shared, "use": lambda backend: llm.collective_rpc(use, args=(backend,)),
             "digest": lambda: llm.collective_rpc(digest)[0], "tokens": tokens,
             "start_reload": llm.start_weight_update,
             **{name: getattr(LLMClient(llm), name)
                for name in ("init_weight_transfer_engine", "start_weight_update",
                             "update_weights", "finish_weight_update")}}
    pipe.send((None, "ready"))
    while True:
        name, arguments = pipe.recv()
        try:
            pipe.send((None, calls[name](*arguments)))
        except Exception as error:
            pipe.send((f"{type(error).__name__}: {error}", None))


# ---- the trainer's process -----------------------------------------------------------------

class Engine:
    """Calls the other process, and notes how long each call took."""

    def __init__(self, pipe):
        self._pipe, self._lock, self.seconds = pipe, threading.Lock(), {}

    def call(self, name, *arguments):
        with self._lock:
            began = time.perf_counter()
            self._pipe.send((name, arguments))
            error, result = self._pipe.recv()
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)
        if error:
            raise RuntimeError(error)
        return result

    def init_weight_transfer_engine(self, info):
        self.call("init_weight_transfer_engine", info)

    def start_weight_update(self):
        self.call("start_weight_update")

    def update_weights(self, info):
        self.call("update_weights", info)

    def finish_weight_update(self):
        self.call("finish_weight_update")


class Model:
    """The weights of the trainer."""

    def __init__(self, path, num_layers):
        import torch
        from safetensors.torch import load_file
        tensors = load_file(path)
        self._flat = {version: torch.cat([tensors[name].view(-1) for name in sorted(tensors)
                                          if name.startswith(version + ".")]).cuda()
                      for version in ("before", "after1", "after8")}
        hidden, inner, vocab = 4096, LLAMA_7B["intermediate_size"], LLAMA_7B["vocab_size"]
        shapes = {"model.embed_tokens.weight": (vocab, hidden)}
        for i in range(num_layers):
            prefix = f"model.layers.{i}."
            shapes.update({f"{prefix}self_attn.{x}_proj.weight": (hidden, hidden) for x in "qkvo"})
            shapes.update({f"{prefix}mlp.{x}_proj.weight": (inner, hidden) for x in ("gate", "up")})
            shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, inner)
            for norm in ("input_layernorm", "post_attention_layernorm"):
                shapes[f"{prefix}{norm}.weight"] = (hidden,)
        shapes.update({"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)})
        self.tensors = {name: torch.empty(shape, dtype=torch.bfloat16, device="cuda")
                        for name, shape in shapes.items()}
        self.set("before")

    def set(self, version):
        import torch
        flat = self._flat[version]
        for number, tensor in enumerate(self.tensors.values()):
            start = number * 7919 % flat.numel()
            count = -(-(start + tensor.numel()) // flat.numel())
            tensor.view(-1).copy_(flat.repeat(count)[start:start + tensor.numel()])
        torch.cuda.synchronize()

    def source(self):
        return iter(self.tensors.items())

    def info(self, **more):
        return dict(names=list(self.tensors), dtype_names=["bfloat16"] * len(self.tensors),
                    shapes=[list(tensor.shape) for tensor in self.tensors.values()], **more)


def by_ipc(engine, model):
    from vllm.distributed.weight_transfer.ipc_engine import (IPCTrainerSendWeightsArgs,
                                                             IPCWeightTransferEngine)
    engine.call("use", "ipc")
    began = time.perf_counter()
    engine.call("start_reload")

    def send(info):
        engine.update_weights(dict(vars(info)))

    IPCWeightTransferEngine.trainer_send_weights(
        model.source(), IPCTrainerSendWeightsArgs(send_mode=send, packed=True))
    engine.finish_weight_update()
    return time.perf_counter() - began


def has_ipc(engine):
    import torch
    from torch.multiprocessing.reductions import reduce_tensor
    tensor = torch.ones(1 << 20, device="cuda")
    try:
        return engine.call("open_shared", reduce_tensor(tensor)[1]) == tensor.numel()
    except RuntimeError as error:
        print(f"no IPC between processes here: {error}", flush=True)
        return False


def by_nccl(engine, model, state):
    from vllm.distributed.weight_transfer.nccl_engine import (NCCLTrainerSendWeightsArgs,
                                                              NCCLWeightTransferEngine)
    engine.call("use", "nccl")
    if "group" not in state:
        address = dict(master_address="127.0.0.1", master_port=29571, world_size=2)
        thread = threading.Thread(target=engine.init_weight_transfer_engine,
                                  args=(dict(address, rank_offset=1),))
        thread.start()
        state["group"] = NCCLWeightTransferEngine.trainer_init(address)
        thread.join()
    import torch
    began = time.perf_counter()
    engine.call("start_reload")
    thread = threading.Thread(target=engine.update_weights, args=(model.info(packed=True),))
    thread.start()
    NCCLWeightTransferEngine.trainer_send_weights(
        model.source(), NCCLTrainerSendWeightsArgs(group=state["group"], packed=True))
    torch.cuda.synchronize()
    thread.join()
    engine.finish_weight_update()
    return time.perf_counter() - began


def refusals(engine, model, trainer):
    """What must leave the weights as they are."""
    before = engine.call("digest")
    model.set("after8")
    trainer._workers[0].hashes[0] ^= 1
    lines = []
    try:
        trainer.send_weights()
    except ValueError as error:
        lines.append(f"another version: {error}")
    assert engine.call("digest") == before and len(lines) == 1
    source, trainer._source = trainer._source, lambda: cut(model)
    try:
        trainer.send_weights()
    except OSError as error:
        lines.append(f"cut: {error}")
    trainer._source = source
    assert engine.call("digest") == before and len(lines) == 2
    return lines


def cut(model):
    items = list(model.source())
    yield from items[:len(items) // 2]
    raise OSError("the trainer fails in the middle of an update")


def measure(args, engine, model, results):
    from snug.vllm.trainer import Trainer
    trainer, ipc, digests = Trainer(engine, model.source), has_ipc(engine), {}
    for number in range(args.updates + 1):
        version = "before" if number == 0 else ORDER[(number - 1) % len(ORDER)]
        model.set(version)
        engine.call("use", "snug")
        engine.seconds.clear()
        sent = trainer.send_weights()
        row = dict(number=number, **sent._asdict(), commit=engine.seconds["update_weights"][0])
        results["updates"].append(row)
        mine = engine.call("digest"), engine.call("tokens")
        if ipc:
            row["ipc"] = by_ipc(engine, model)
            assert (engine.call("digest"), engine.call("tokens")) == mine, f"update {number}"
            row["same_bits"] = True
        assert digests.setdefault(version, mine[0]) == mine[0], f"update {number}"
        save(args.out, results, row)
    engine.call("use", "snug")
    results["refused"] = refusals(engine, model, trainer)
    print(*results["refused"], sep="\n", flush=True)
    trainer.close()
    shared = Trainer(engine, model.source, listen=f"shm:snug-bench-{os.getpid()}")
    for version in ORDER:
        model.set(version)
        results["shm"].append(shared.send_weights()._asdict())
        save(args.out, results, results["shm"][-1])
    shared.close()
    state = {}
    for version in ORDER[:args.nccl]:
        model.set(version)
        row = {"nccl": by_nccl(engine, model, state)}
        assert engine.call("digest") == digests[version], f"{version} by NCCL"
        results["nccl"].append(row)
        save(args.out, results, row)


def save(path, results, row):
    print({key: round(value, 4) if isinstance(value, float) else value
           for key, value in row.items()}, flush=True)
    with open(path, "w") as file:
        json.dump(results, file, indent=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("rl")
    parser.add_argument("out")
    parser.add_argument("--mode", default="dense")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--nccl", type=int, default=3)
    parser.add_argument("--layers", type=int, default=32)
    args = parser.parse_args()
    os.environ.update(NCCL_SOCKET_IFNAME="lo", NCCL_HOSTID="snug-engine",
                      VLLM_ALLOW_INSECURE_SERIALIZATION="1")
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve, args=(there, args.mode, args.layers), daemon=True)
    process.start()
    there.close()
    os.environ["NCCL_HOSTID"] = "snug-trainer"
    stub_ray()
    from vllm.distributed.weight_transfer import ipc_engine, nccl_engine  # noqa: F401, takes long
    model = Model(args.rl, args.layers)
    here.recv()
    engine = Engine(here)
    results = {"mode": args.mode, "updates": [], "refused": [], "shm": [], "nccl": []}
    try:
        measure(args, engine, model, results)
    finally:
        process.kill()


if __name__ == "__main__":
    main()
