"""Weight updates by deltas into a real vLLM on the CPU: weight_transfer_trial.py [MODEL [RL]]

MODEL is a folder with a small BF16 model with a tied head; without it, one is made. RL is a
safetensors file with real versions of some of its tensors (before.NAME, after1.NAME, after8.NAME).
Other tensors move as by an optimizer. After each of 20 updates, the engine's weights and
log-probabilities are compared with those of a new engine that loads the same weights from files.

    direct   parameters stay as they were loaded (oneDNN off), as on a GPU
    derived  vLLM's own packing for the CPU: weights cannot be read back
    untied   the same, with a head of its own
    packed   from Snug's packed weights
    experts  the same, for a made model with mixtures of experts
    parallel derived, tensor parallel over two processes
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile

from trial_model import Optimizer, load_model, make_model, save_model

NUM_UPDATES = int(os.environ.get("SNUG_TRIAL_UPDATES", "20"))
PROMPT = list(range(5, 85))
VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
             "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def check(condition, what):
    if not condition:
        raise SystemExit(f"FAILED: {what}")


def engine(folder, kind, transfer=False):
    """Direct: without oneDNN, vLLM keeps weights as they are."""
    from vllm import LLM
    if kind == "direct":
        import vllm._custom_ops
        vllm._custom_ops._supports_onednn = False
    options = {"weight_transfer_config": {"backend": "snug"}} if transfer else {}
    if kind in ("packed", "experts"):
        options["quantization"] = "snug"
    num_workers = 2 if kind == "parallel" else 1
    return LLM(model=folder, skip_tokenizer_init=True, max_model_len=512, enforce_eager=True,
               enable_prefix_caching=False, tensor_parallel_size=num_workers, **options)


def answer(llm):
    from vllm import SamplingParams
    sampling = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True, logprobs=1,
                              detokenize=False)
    out = llm.generate([{"prompt_token_ids": PROMPT}], sampling, use_tqdm=False)[0].outputs[0]
    return list(out.token_ids), out.cumulative_logprob


def weights_of(worker):
    """Runs in a worker: a digest of every parameter that is not empty, and its address."""
    import hashlib

    import torch
    model = worker.model_runner.model
    return {name: (hashlib.sha256(p.detach().contiguous().view(torch.uint8).numpy()).hexdigest(),
                   p.data_ptr())
            for name, p in model.named_parameters() if p.numel() > 0}


def fresh_engines(pipe, kind):
    """A process that loads one folder after the other: an engine that ends takes those beside it
    in its process with it."""
    while (folder := pipe.recv()) is not None:
        llm = engine(folder, kind)
        pipe.send((answer(llm), digests(llm)))
        del llm


def digests(llm):
    return [{name: pair[0] for name, pair in one.items()}
            for one in llm.collective_rpc(weights_of)]


def addresses(llm):
    return [{name: pair[1] for name, pair in one.items()}
            for one in llm.collective_rpc(weights_of)]


def updates(llm, kind, trainer, optimizer, folder, like, config):
    """Returns the bytes sent as shares of the weights, of updates that were deltas."""
    shares, where = [], addresses(llm)
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=fresh_engines, args=(there, kind))
    process.start()
    there.close()
    for number in range(1, NUM_UPDATES + 1):
        optimizer.step(number)
        sent = trainer.send_weights()
        share = 100 * sent.wire_bytes / sent.raw_bytes
        print(f"  update {number}: {sent.num_deltas} deltas, {sent.num_whole} whole, "
              f"{sent.wire_bytes} of {sent.raw_bytes} bytes ({share:.2f} %), "
              f"{sent.seconds:.2f} s", flush=True)
        if sent.num_whole == 0:
            shares.append(share)
        if kind in ("experts", "parallel") and number % 5 != 0:  # its engines take long to start
            continue
        save_model(optimizer.tensors, folder, like, **config)
        here.send(folder)
        tokens, weights = here.recv()
        for mine, others in zip(digests(llm), weights):
            different = [name for name in others if mine.get(name) != others[name]]
            check(mine.keys() == others.keys() and not different,
                  f"weights after update {number}: {', '.join(different[:5])} of {len(others)}")
        check(tokens == answer(llm), f"log-probabilities after update {number}")
    here.send(None)
    process.join()
    check(addresses(llm) == where, "parameters have moved")
    return shares


def failures(llm, trainer, optimizer):
    """Updates that must not be applied."""
    before = answer(llm), digests(llm)
    worker = trainer._workers[0]
    optimizer.step(0)

    worker.hashes[0] ^= 1  # as if the worker served another version
    sentence = refused(trainer)
    check("for version" in sentence and "serves version" in sentence, sentence)
    check((answer(llm), digests(llm)) == before, "a delta for another version was applied")
    print("  refused:", sentence)

    trainer.send_weights()  # connects again
    optimizer.step(0)
    before = answer(llm), digests(llm)
    key, (number, kept) = next(iter(trainer._known.items()))
    other = kept.clone()
    other.view(-1)[0] += 1  # the delta is made from something that the worker does not have
    trainer._known[key] = number, other
    sentence = refused(trainer)
    check((answer(llm), digests(llm)) == before, "a delta of another base was applied")
    print("  refused:", sentence)

    trainer._known[key] = number, kept
    trainer.send_weights()
    check(answer(llm) != before[0], "nothing changed after the last update")


def refused(trainer):
    try:
        trainer.send_weights()
    except Exception as error:
        return str(error)
    raise SystemExit("FAILED: a wrong update was taken")


class PipeClient:
    """The client of a trainer in another process: every call is made in this one."""

    def __init__(self, pipe):
        self._pipe = pipe

    def __getattr__(self, name):
        def call(*arguments):
            self._pipe.send((name, arguments))
            error = self._pipe.recv()
            if error:
                raise RuntimeError(error)
        return call


def doomed_trainer(pipe, tensors):
    """Dies when it has sent half of an update."""
    import torch
    from snug.vllm import weight_sender
    from snug.vllm.trainer import Trainer
    weight_sender._BATCH_BYTES = 1000
    passes = []

    def source():
        passes.append(0)
        for number, (name, tensor) in enumerate(tensors.items()):
            if len(passes) == 3 and number > len(tensors) // 2:  # metadata, comparison, update
                os.kill(os.getpid(), signal.SIGKILL)
            yield name, tensor if len(passes) < 3 else torch.zeros_like(tensor)

    Trainer(PipeClient(pipe), source).send_weights()


def killed_trainer(llm, optimizer):
    from snug.vllm.trainer import LLMClient
    before = answer(llm), digests(llm)
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=doomed_trainer, args=(there, optimizer.tensors))
    process.start()
    there.close()
    client, calls = LLMClient(llm), []
    try:
        while True:
            name, arguments = here.recv()
            calls.append(name)
            getattr(client, name)(*arguments)
            here.send(None)
    except EOFError:
        process.join()
    check(process.exitcode == -signal.SIGKILL, f"the trainer ended with {process.exitcode}")
    check(calls == ["init_weight_transfer_engine"], f"the update was not cut: {calls}")
    check((answer(llm), digests(llm)) == before, "a cut update was applied")
    print("  killed trainer: the weights are unchanged")


def through_factory(llm, optimizer):
    """A trainer that starts again, behind vLLM's own interface for trainers."""
    from snug.vllm.trainer import LLMClient
    from snug.vllm.trainer_engine import SnugTrainerInitInfo
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    class Source(WeightSource):
        def metadata(self):
            return [ParamMeta(name, tensor.dtype, tuple(tensor.shape))
                    for name, tensor in optimizer.source()]

        def __iter__(self):
            return optimizer.source()

    trainer = WeightTransferTrainerFactory.trainer_init(
        SnugTrainerInitInfo(rank=0), client=LLMClient(llm), source=Source())
    optimizer.step(0)
    before = answer(llm)
    check(trainer.send_weights().num_whole == 0, "the new trainer did not send deltas")
    check(answer(llm) != before, "nothing changed after the last update")
    trainer.shutdown()


def trial(kind, model, rl, folder):
    from snug.vllm.trainer import LLMClient, Trainer
    from safetensors.torch import load_file
    tensors, config, start = load_model(model), {}, model
    if kind == "untied":
        config = {"tie_word_embeddings": False}
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        start = os.path.join(folder, "start")
        save_model(tensors, start, model, **config)
    optimizer = Optimizer(tensors, load_file(rl) if rl else {})
    llm = engine(start, kind, transfer=True)
    trainer = Trainer(LLMClient(llm), optimizer.source)
    shares = updates(llm, kind, trainer, optimizer, os.path.join(folder, "new"), model, config)
    failures(llm, trainer, optimizer)
    trainer.close()
    killed_trainer(llm, optimizer)
    through_factory(llm, optimizer)
    check(max(shares) <= 3, f"an update took {max(shares):.2f} % of the weights")
    print(f"{kind}: {len(shares)} updates by deltas, {sum(shares) / len(shares):.2f} % of the "
          f"weights, at most {max(shares):.2f} %", flush=True)


def main():
    if len(sys.argv) >= 2 and sys.argv[1] == "--one":
        kind, model, rl, folder = sys.argv[2:6]
        trial(kind, model, rl, folder)
        return
    model, rl = (sys.argv[1:] + ["", ""])[:2]
    kinds = os.environ.get("SNUG_TRIAL_KINDS", "direct,derived,untied,packed,experts,parallel"
                           ).split(",")
    for kind in kinds:
        environment = {**os.environ, **VARIABLES}
        if kind in ("packed", "experts"):
            environment.update({"SNUG_VLLM_MODE": "run", "SNUG_VLLM_EXPERTS": "1"})
        if kind == "parallel":
            environment.update({"VLLM_ENABLE_V1_MULTIPROCESSING": "1",
                                "VLLM_CPU_OMP_THREADS_BIND": "0|1",
                                "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"})
        with tempfile.TemporaryDirectory() as folder:
            plugin = os.path.join(folder, "site", "snug_llm-0.dist-info")
            os.makedirs(plugin)  # workers find the engine as in an installed package
            with open(os.path.join(plugin, "METADATA"), "w") as file:
                file.write("Metadata-Version: 2.1\nName: snug-llm\nVersion: 0\n")
            with open(os.path.join(plugin, "entry_points.txt"), "w") as file:
                file.write("[vllm.general_plugins]\nsnug = snug.vllm.plugin:register\n")
            environment["PYTHONPATH"] = os.pathsep.join(
                [os.path.dirname(plugin), environment.get("PYTHONPATH", "")])
            print(f"{kind}:", flush=True)
            start = model
            if not model or kind == "experts":
                start = os.path.join(folder, "made")
                make_model(start, experts=8 if kind == "experts" else 0)
            subprocess.run([sys.executable, __file__, "--one", kind, start, rl, folder],
                           env=environment, check=True)


if __name__ == "__main__":
    main()
