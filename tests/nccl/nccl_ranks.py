"""Ranks of a torch.distributed job as child processes that take orders.

Used by tests/nccl/nccl_identity.py and bench/nccl/nccl_speed.py. Every rank gets
its own NCCL_HOSTID, so that NCCL uses its network transport even though all
ranks share one machine, and even one GPU. Run as a script, this file is a rank.
"""
import json
import os
import socket
import subprocess
import sys
import time


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def plugin_env(folder, stats_folder=None):
    """The variables that make NCCL use the plugin in `folder`."""
    folder = os.path.abspath(folder)
    env = {"NCCL_NET_PLUGIN": "snug", "LD_LIBRARY_PATH": folder + ":" + os.environ.get("LD_LIBRARY_PATH", "")}
    if stats_folder:
        env["SNUG_NCCL_STATS"] = f"json:{os.path.abspath(stats_folder)}/stats.%p.json"
    return env


SOCKET_ENV = {"NCCL_NET_PLUGIN": "none", "NCCL_NET": "Socket"}


class Group:
    """`size` ranks with the same environment."""

    def __init__(self, size, env):
        self.size = size
        self.ranks = []
        self.nccl = None
        for rank in range(size):
            rank_env = dict(os.environ, NCCL_SOCKET_IFNAME="lo", NCCL_HOSTID=f"snug-{rank}", **env)
            self.ranks.append(subprocess.Popen([sys.executable, os.path.abspath(__file__), str(rank), str(size)],
                                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=rank_env, text=True))

    def wait_until_ready(self):
        """Importing torch takes seconds: start several groups, then wait for all."""
        for rank in self.ranks:
            self._answer(rank)

    def connect(self):
        """Once: NCCL unloads its plugin with the last communicator and does not load it again."""
        if self.nccl is None:
            self.nccl = self.order("init", port=free_port())[0]["nccl"]
        return self.nccl

    def order(self, what, **arguments):
        """Every rank does it; returns their answers."""
        line = json.dumps(dict(arguments, what=what)) + "\n"
        for rank in self.ranks:
            rank.stdin.write(line)
            rank.stdin.flush()
        return [self._answer(rank) for rank in self.ranks]

    def _answer(self, rank):
        for line in rank.stdout:
            if line.startswith("answer "):
                answer = json.loads(line[7:])
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                return answer
        raise RuntimeError(f"a rank ended with status {rank.wait()}")

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            try:
                rank.wait(timeout=20)
            except subprocess.TimeoutExpired:
                rank.kill()


# ---- inside a rank ---------------------------------------------------------------

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2"}
REDUCING = ("all_reduce", "reduce_scatter")
OPS = ("send_recv", "broadcast", "all_gather", "reduce_scatter", "all_reduce", "all_to_all")


class Rank:
    def __init__(self, rank, size):
        import torch
        import torch.distributed as dist
        self.torch, self.dist, self.rank, self.size = torch, dist, rank, size
        torch.cuda.set_device(0)
        self.weights = None
        self.data = {}

    def init(self, port):
        self.dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=self.rank, world_size=self.size,
                                     device_id=self.torch.device("cuda", 0))
        self.dist.barrier()
        return {"nccl": ".".join(map(str, self.torch.cuda.nccl.version()))}

    # One operation on `x`, whose elements all ranks have; returns what it wrote.
    def run(self, op, x, out):
        dist, torch = self.dist, self.torch
        if op == "send_recv":  # from every even rank to the next
            if self.rank % 2 == 0:
                dist.send(x, self.rank + 1)
            else:
                dist.recv(out, self.rank - 1)
        elif op == "broadcast":
            dist.broadcast(x if self.rank == 0 else out, 0)
        elif op == "all_gather":
            dist.all_gather_into_tensor(out, x.chunk(self.size)[self.rank])
        elif op == "reduce_scatter":
            dist.reduce_scatter_tensor(out.chunk(self.size)[self.rank], x)
        elif op == "all_reduce":
            dist.all_reduce(x)
            return x
        elif op == "all_to_all":
            dist.all_to_all_single(out, x)
        return x if op in ("send_recv", "broadcast") and self.rank == 0 else out

    def digest(self, x):
        """Two sums over all 64-bit words, one of them weighted by position."""
        torch = self.torch
        words = x.view(torch.uint8)
        words = words[: words.numel() // 8 * 8].view(torch.int64)
        if self.weights is None or self.weights.numel() < words.numel():
            self.weights = torch.arange(1, words.numel() + 1, device="cuda", dtype=torch.int64) * 0x9E3779B1 + 7
        return [int(words.sum()), int((words * self.weights[: words.numel()]).sum())]

    def make(self, dtype, num_bytes, seed):
        torch = self.torch
        kind = getattr(torch, DTYPES[dtype])
        n = num_bytes // torch.empty(0, dtype=kind).element_size()
        generator = torch.Generator("cuda").manual_seed(seed)
        scale = 0.02 if dtype in ("bf16", "f16", "f32") else 1.0
        return (torch.randn(n, generator=generator, device="cuda") * scale).to(kind)

    def identity(self, ops, dtypes, sizes):
        torch = self.torch
        digests = {}
        for dtype in dtypes:
            for size in sizes:
                x = self.make(dtype, size, seed=1000 * self.rank + size % 997)
                for op in ops:
                    key = f"{op} {dtype} {size}"
                    out = torch.zeros_like(x.view(torch.uint8)).view(x.dtype)
                    try:
                        result = self.run(op, x.clone(), out)
                    except (RuntimeError, ValueError, TypeError) as error:
                        if op in REDUCING and dtype.startswith("f8"):  # torch refuses some FP8 sums by itself
                            digests[key] = f"refused: {type(error).__name__}"
                            continue
                        raise
                    digests[key] = self.digest(result)
        torch.cuda.synchronize()
        return {"digests": digests}

    # Sums of these BF16 values are exact: they are the same in every order.
    def exact(self, n, rank):
        torch = self.torch
        return ((torch.arange(n, device="cuda") * 7 + rank * 3) % 64).to(torch.bfloat16)

    def hostile(self, habit, num_bytes, times):
        """All-reduces while the program does what has made plugins hang that call CUDA."""
        n = num_bytes // 2
        total = sum(self.exact(n, r).float() for r in range(self.size)).to(self.torch.bfloat16)
        wrong = getattr(Habits(self), habit)(n, total, times)
        self.torch.cuda.synchronize()
        return {"wrong": wrong}

    def train(self, steps):
        """A small network under DistributedDataParallel; every bit of it counts."""
        torch = self.torch
        torch.manual_seed(1)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.use_deterministic_algorithms(True, warn_only=True)
        width = 1024
        layers = [m for _ in range(4) for m in (torch.nn.Linear(width, width), torch.nn.GELU())]
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Sequential(*layers, torch.nn.Linear(width, 16)).cuda().bfloat16(), device_ids=[0])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        generator = torch.Generator("cuda").manual_seed(100 + self.rank)
        losses = []
        for _ in range(steps):
            x = torch.randn(64, width, generator=generator, device="cuda").bfloat16()
            target = x[:, :16].roll(1, 1)
            loss = torch.nn.functional.mse_loss(model(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        parameters = torch.cat([p.detach().flatten() for p in model.parameters()])
        losses = torch.stack(losses).float()
        return {"losses": self.digest(losses), "weights": self.digest(parameters), "first": float(losses[0]), "last": float(losses[-1])}

    def load(self, name, path, num_bytes):
        """Values of a safetensors file, repeated to num_bytes; path "random": random bits."""
        torch = self.torch
        if path == "random":
            generator = torch.Generator("cuda").manual_seed(5)
            data = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator, device="cuda")
            data = data.view(torch.bfloat16)
        elif path == "gaussian":
            data = self.make("bf16", num_bytes, 3)
        else:
            from safetensors import safe_open
            parts = []
            for file in path.split(","):
                with safe_open(file, "pt") as tensors:
                    parts += [tensors.get_tensor(key).flatten() for key in sorted(tensors.keys())]
            data = torch.cat([p for p in parts if p.dtype == torch.bfloat16]).cuda()
            data = data.repeat(num_bytes // 2 // data.numel() + 1)[: num_bytes // 2]
        self.data[name] = data.contiguous()
        return {}

    def speed(self, op, data, warm_up, runs):
        """Seconds of each run, from a barrier to the end of the slowest rank."""
        torch, dist = self.torch, self.dist
        x = self.data[data].clone()
        out = torch.empty_like(x)
        seconds = []
        for i in range(warm_up + runs):
            if op == "all_reduce":
                x.copy_(self.data[data])  # sums would grow
            dist.barrier()
            torch.cuda.synchronize()
            start = time.perf_counter()
            self.run(op, x, out)
            torch.cuda.synchronize()
            mine = torch.tensor([time.perf_counter() - start], device="cuda")
            dist.all_reduce(mine, op=dist.ReduceOp.MAX)
            if i >= warm_up:
                seconds.append(float(mine))
        return {"seconds": seconds}


class Habits:
    """What a program does beside an operation. Each returns how many results were wrong."""

    def __init__(self, rank):
        self.rank, self.torch, self.dist = rank, rank.torch, rank.dist

    def _reduce(self, n, total, times, meanwhile):
        wrong = 0
        for i in range(times):
            x = self.rank.exact(n, self.rank.rank)
            work = self.dist.all_reduce(x, async_op=True)
            meanwhile(i, x, work)
            work.wait()
            self.torch.cuda.synchronize()
            wrong += not self.torch.equal(x, total)
        return wrong

    def item(self, n, total, times):
        return self._reduce(n, total, times, lambda i, x, work: (work.wait(), x[:8].float().sum().item(), x[-4:].cpu()))

    def empty_cache(self, n, total, times):
        torch = self.torch

        def meanwhile(i, x, work):
            y = torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
            del y
            torch.cuda.empty_cache()  # cudaFree
            torch.empty(3 << 24, device="cuda", dtype=torch.uint8)
            torch.empty(1 << 22, pin_memory=True)
        return self._reduce(n, total, times, meanwhile)

    def new_kernels(self, n, total, times):
        """Operations that nobody has used before: their kernels are loaded now."""
        torch = self.torch
        a = torch.rand(256, 256, device="cuda") + 0.1
        news = [torch.erf, torch.special.i0, torch.fft.fft, lambda t: torch.sort(t)[0], lambda t: torch.cumsum(t, 0),
                lambda t: torch.topk(t, 5)[0], lambda t: t.half() @ t.half(), torch.digamma, torch.histc, torch.linalg.inv]
        return self._reduce(n, total, times, lambda i, x, work: news[i % len(news)](a))

    def queue(self, n, total, times):
        def meanwhile(i, x, work):
            work.wait()  # the stream waits for NCCL
            y = x[:1024]
            for _ in range(3000):
                y = y + 0
        return self._reduce(n, total, min(times, 5), meanwhile)

    def gemm(self, n, total, times):
        a = self.torch.randn(4096, 4096, device="cuda", dtype=self.torch.bfloat16)
        return self._reduce(n, total, times, lambda i, x, work: [a @ a for _ in range(10)])

    def many_streams(self, n, total, times):
        torch = self.torch
        streams = [torch.cuda.Stream() for _ in range(40)]
        y = torch.zeros(1 << 16, device="cuda")

        def meanwhile(i, x, work):
            for stream in streams:
                with torch.cuda.stream(stream):
                    y + 1
        return self._reduce(n, total, times, meanwhile)

    def two_groups(self, n, total, times):
        dist, wrong = self.dist, 0
        if not hasattr(self.rank, "second"):
            self.rank.second = dist.new_group(list(range(self.rank.size)))
        for _ in range(times):
            x, y = self.rank.exact(n, self.rank.rank), self.rank.exact(n, self.rank.rank)
            works = [dist.all_reduce(x, async_op=True), dist.all_reduce(y, group=self.rank.second, async_op=True)]
            for work in works:
                work.wait()
            self.torch.cuda.synchronize()
            wrong += (not self.torch.equal(x, total)) + (not self.torch.equal(y, total))
        return wrong

    def graph(self, n, total, times):
        torch, dist, wrong = self.torch, self.dist, 0
        start = self.rank.exact(n, self.rank.rank)
        x, y = start.clone(), start.clone()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            dist.all_reduce(x.clone())
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            x.copy_(start)
            dist.all_reduce(x)
        for i in range(times):
            graph.replay()
            if i % 4 == 3:  # one outside beside it
                y.copy_(start)
                dist.all_reduce(y)
            torch.cuda.synchronize()
            wrong += not torch.equal(x, total)
            wrong += i % 4 == 3 and not torch.equal(y, total)
            x.zero_()
        return wrong


HABITS = ("item", "empty_cache", "new_kernels", "queue", "gemm", "many_streams", "two_groups", "graph")


def serve():
    rank = Rank(int(sys.argv[1]), int(sys.argv[2]))
    print("answer {}", flush=True)
    for line in sys.stdin:  # until the parent closes it
        order = json.loads(line)
        try:
            answer = getattr(rank, order.pop("what"))(**order)
        except Exception as error:  # told to the parent, which stops everything
            answer = {"error": f"rank {rank.rank}: {type(error).__name__}: {error}"}
        print("answer " + json.dumps(answer), flush=True)
    if rank.dist.is_initialized():
        rank.dist.destroy_process_group()


if __name__ == "__main__":
    serve()
