"""Compressed folders in a real SGLang on the CPU: python sglang_weights_trial.py [MODEL]

Runs in an environment with SGLang (make_sglang_venv.sh makes one); SNUG_CLI names the tool. What an
engine gives from a compressed folder has to be what it gives from the plain one, bit for bit:
tokens, log-probabilities, and the parameters of every rank. Without MODEL, a BF16 folder, a small
Llama is made up.
"""

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SNUG = os.environ.get("SNUG_CLI", str(ROOT / "build" / "snug"))
PROMPTS = [[(7 * i + 13 * j + 3) % 1000 for j in range(20 + 17 * i)] for i in range(4)]
SAMPLING = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}
OPTIONS = dict(device="cpu", attention_backend="torch_native", sampling_backend="pytorch",
               grammar_backend="none", disable_overlap_schedule=True, mem_fraction_static=0.5,
               max_total_tokens=4096, context_length=512, skip_tokenizer_init=True,
               log_level="info")
# Some virtual machines announce AMX and do not have it.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
               "ONEDNN_MAX_CPU_ISA": os.environ.get("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")}


def check(what, is_true, log=""):
    print(f"{'ok  ' if is_true else 'FAIL'} {what}", flush=True)
    if not is_true:
        print(log[-6000:])
        sys.exit(1)


# In a process with an engine: JOB has `model`, `options`, `out`, and `updates`, a list of plain or
# compressed folders (update_weights_from_disk) or of files (update_weights_from_tensor).


def run_job(job):
    import sglang
    llm = sglang.Engine(model_path=job["model"], **OPTIONS, **job["options"])
    results = [answers(llm, job, 0)]
    for i, source in enumerate(job["updates"], 1):
        while not llm.flush_cache().success:  # the last answers may still be in the scheduler
            time.sleep(0.1)
        if os.path.isdir(source):
            done, text = llm.update_weights_from_disk(source)[:2]
        else:
            from safetensors.torch import load_file
            llm.begin_weight_update()
            done, text = llm.update_weights_from_tensor(list(load_file(source).items()))[:2]
            llm.end_weight_update()
        if not done:
            raise RuntimeError(text)
        results.append(answers(llm, job, i))
    llm.shutdown()
    Path(job["out"], "results.json").write_text(json.dumps(results))


def answers(llm, job, number):
    folder = Path(job["out"], f"weights{number}")
    folder.mkdir()
    llm.save_sharded_model(path=str(folder), pattern=None, max_size=None)
    outputs = llm.generate(input_ids=PROMPTS, sampling_params=SAMPLING, return_logprob=True,
                           logprob_start_len=0)
    return [[out["output_ids"], out["meta_info"]["input_token_logprobs"],
             out["meta_info"]["output_token_logprobs"]] for out in outputs]


# In the process that compares.


class Engines:
    def __init__(self, folder):
        self._folder, self._count = folder, 0
        self._site = folder / "site"
        metadata = self._site / "snug_llm-0.1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: snug-llm\n"
                                           "Version: 0.1.0\n")
        found = re.search(r'entry-points."(sglang\.srt\.plugins)"\]\n(\w+) = "([\w.:]+)"',
                          (ROOT / "pyproject.toml").read_text())
        (metadata / "entry_points.txt").write_text("[{}]\n{} = {}\n".format(*found.groups()))

    def environment(self, is_installed=True, ranks=1):
        """An installed plugin is an entry point in the metadata of a distribution."""
        path = [str(ROOT / "python")] + [str(self._site)] * is_installed
        own = {"PYTHONPATH": os.pathsep.join(path)}
        if ranks > 1:
            own["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(ranks)))
            own["SGLANG_NCCL_SO_PATH"] = "none"  # it would be used, without a GPU, too
        return {**os.environ, **ENVIRONMENT, **own}

    def run(self, model, updates=(), is_installed=True, **options):
        """Answers and the parameters of each rank, a pair for each version of the weights; or
        None if the engine failed. And what it printed."""
        self._count += 1
        out = self._folder / f"engine{self._count}"
        out.mkdir()
        job = out / "job.json"
        job.write_text(json.dumps({"model": str(model), "updates": list(map(str, updates)),
                                   "options": options, "out": str(out)}))
        done = subprocess.run([sys.executable, __file__, "--job", str(job)], timeout=600,
                              env=self.environment(is_installed, options.get("tp_size", 1)),
                              text=True, errors="replace", stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        if not (out / "results.json").exists():
            return None, done.stdout
        results = json.loads((out / "results.json").read_text())
        return [(answer, weights_of(out / f"weights{i}"))
                for i, answer in enumerate(results)], done.stdout

    def served(self, model):
        """The tokens that `launch_server` gives for the first prompt."""
        port = 30000 + os.getpid() % 5000
        options = [word for key, value in OPTIONS.items()
                   for word in ["--" + key.replace("_", "-")] + [str(value)] * (value is not True)]
        log = self._folder / "server.log"
        with open(log, "w") as out:
            server = subprocess.Popen([sys.executable, "-m", "sglang.launch_server", "--model",
                                       str(model), "--port", str(port), *options], stdout=out,
                                      stderr=out, env=self.environment(), start_new_session=True)
        try:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/generate", headers={"Content-Type": "application/json"},
                data=json.dumps({"input_ids": PROMPTS[0], "sampling_params": SAMPLING}).encode())
            for _ in range(300):
                try:
                    with urllib.request.urlopen(request, timeout=60) as answer:
                        return json.load(answer)["output_ids"], log.read_text()
                except OSError:
                    time.sleep(1)
                if server.poll() is not None:
                    break
            return None, log.read_text()
        finally:
            server.terminate()
            server.wait(60)


def weights_of(folder):
    """Name and bytes of every parameter, by file: each rank writes its own."""
    import torch
    from safetensors.torch import load_file
    return {file.name: {name: (str(tensor.dtype), tuple(tensor.shape),
                               tensor.contiguous().view(torch.uint8).numpy().tobytes())
                        for name, tensor in load_file(file).items()}
            for file in sorted(folder.glob("*.safetensors"))}


def compressed(folder):
    target = folder.with_name(folder.name + ".snug")
    subprocess.run([SNUG, "compress", folder, target], check=True, capture_output=True)
    return target


def damaged(folder, target):
    """A copy with one bit flipped in the middle of the first file's largest tensor."""
    subprocess.run(["cp", "-rL", folder, target], check=True)
    path = sorted(target.glob("*.safetensors"))[0]
    data = bytearray(path.read_bytes())
    size, = struct.unpack("<Q", data[:8])
    places = {name: tensor["data_offsets"] for name, tensor in
              json.loads(data[8:8 + size]).items() if name != "__metadata__"}
    name = max(places, key=lambda name: places[name][1] - places[name][0])
    data[8 + size + sum(places[name]) // 2] ^= 16
    path.chmod(0o644)
    path.write_bytes(data)
    return path.name, name


def other_models(model, folder):
    """A file with all its tensors; a folder with weights of half the size; one with a head whose
    weights are not those of the embedding."""
    from safetensors.torch import save_file
    tensors = load_model(model)
    save_file(tensors, folder / "all.safetensors")
    save_model({name: tensor * 0.5 for name, tensor in tensors.items()}, folder / "other", model)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * 1.25
    save_model(tensors, folder / "untied", model, tie_word_embeddings=False)
    return [folder / name for name in ("all.safetensors", "other", "untied")]


def trial(folder, model):
    engines = Engines(folder)
    (folder / "model").symlink_to(model)
    packed = compressed(folder / "model")
    file, other, untied = other_models(model, folder)
    plain, log = engines.run(model)
    check("a plain folder", plain is not None, log)
    check("  its files are not Snug's", "Snug" not in log, log)
    fresh, log = engines.run(other)
    check("other plain weights give other answers", fresh is not None
          and fresh[0][0] != plain[0][0] and fresh[0][1] != plain[0][1], log)
    found, log = engines.run(packed, [compressed(other), file, other])
    check("a compressed folder: Snug says that it restores", found is not None
          and "Snug: restoring the weights" in log, log)
    names = sum(map(len, plain[0][1].values()))
    check(f"  {names} parameters are equal", names > 5 and found[0][1] == plain[0][1], log)
    check("  tokens and log-probabilities are equal", found[0][0] == plain[0][0], log)
    for i, what, want in ((1, "from a compressed folder", fresh), (2, "from tensors", plain),
                          (3, "from a plain folder", fresh)):
        check(f"  new weights {what}: as a fresh engine", found[i] == want[0], log)
    tokens, log = engines.served(packed)
    check("launch_server gives the same tokens", tokens == plain[0][0][0][0], log)
    two, log = engines.run(untied, tp_size=2)
    check("two ranks, an own head, plain", two is not None and len(two[0][1]) == 2, log)
    found, log = engines.run(compressed(untied), tp_size=2)
    check("two ranks, an own head: parameters, tokens and log-probabilities are equal",
          found == two, log)
    refusals(folder, engines, packed)


def refusals(folder, engines, packed):
    file, tensor = damaged(packed, folder / "damaged")
    for ranks in (1, 2):
        found, log = engines.run(folder / "damaged", tp_size=ranks)
        lines = [line for line in log.splitlines() if "SnugError: corrupt: " in line]
        check(f"a flipped bit, {ranks} rank{'s' * (ranks > 1)}: no start, and one clear line",
              found is None and lines and all(file in line and tensor in line
                                              and "snug verify" in line for line in lines), log)
    print("    " + lines[0])
    config = folder / "damaged" / "config.json"
    config.chmod(0o644)
    config.write_text(re.sub(r'("format":\s*)1', r"\g<1>7", config.read_text()))
    found, log = engines.run(folder / "damaged")
    check("a newer format: no start", found is None and "install a newer snug-llm" in log, log)
    found, log = engines.run(packed, is_installed=False)
    check("without the plugin: no start", found is None
          and "Unknown quantization method: snug" in log, log)


if __name__ == "__main__":
    from trial_model import load_model, make_model, save_model
    if sys.argv[1:2] == ["--job"]:
        run_job(json.loads(Path(sys.argv[2]).read_text()))
        sys.exit()
    with tempfile.TemporaryDirectory() as scratch:
        given = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
        if given is None:
            given = Path(scratch, "made")
            make_model(str(given))
        trial(Path(scratch), given)
