"""What the tests of mounts share: a model folder, and mounts of it that end with the test."""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

CLI = os.environ.get("SNUG_CLI", "")
DATA = Path(os.environ.get("SNUG_TEST_DATA", Path(__file__).resolve().parents[1] / "data"))
SKIPPED = 77
# Far more than anything takes, also on a slow machine with sanitizers.
PATIENCE = 120
UNMOUNT = ["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]


def snug(*args, **kwargs):
    return subprocess.run([CLI, *map(str, args)], capture_output=True, text=True,
                          timeout=PATIENCE, **kwargs)


def compress(source, target):
    done = snug("compress", source, target, "--quiet")
    assert done.returncode == 0, done.stderr


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited in vain: {what}")
        time.sleep(0.02)


def is_mounted(folder):
    """Whether something is mounted there. Asks the kernel's table, not the mount."""
    wanted = str(Path(folder).parent.resolve() / Path(folder).name)
    table = Path("/proc/self/mountinfo").read_text()
    return any(line.split()[4] == wanted for line in table.splitlines())


def unmount(folder):
    lazy = "-l" if os.geteuid() == 0 else "-z"
    subprocess.run([*UNMOUNT, lazy, str(folder)], capture_output=True, timeout=PATIENCE)


class Mounted:
    """snug mount in the foreground. Its messages are in `log`, or go to `stderr`."""

    def __init__(self, source, folder, *options, stderr=None):
        self.folder = Path(folder)
        self.log_path = Path(tempfile.mkstemp(suffix=".log")[1])
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen([CLI, "mount", str(source), str(folder), *options],
                                            stderr=log if stderr is None else stderr)
        wait_until(lambda: is_mounted(folder) or self.process.poll() is not None, "the mount")
        if self.process.poll() is not None:
            raise AssertionError(f"snug mount ended: {self.log()}")

    def log(self):
        return self.log_path.read_text()

    def end(self, with_signal=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
        return self.process.wait(timeout=PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
        if is_mounted(self.folder):
            unmount(self.folder)
        self.log_path.unlink()


def why_not():
    """A sentence, if nothing can be mounted here."""
    if not os.access(CLI, os.X_OK):
        return "SNUG_CLI does not name the tool"
    with tempfile.TemporaryDirectory() as folder:
        compressed, target = Path(folder, "x.snug.safetensors"), Path(folder, "dir")
        compress(DATA / "sample.safetensors", compressed)
        target.mkdir()
        process = subprocess.Popen([CLI, "mount", compressed, target], stderr=subprocess.PIPE,
                                   text=True)
        wait_until(lambda: is_mounted(target) or process.poll() is not None, "the first mount")
        if process.poll() is not None:
            return process.stderr.read().strip()
        process.terminate()
        process.wait(timeout=PATIENCE)
        if is_mounted(target):
            unmount(target)
    return None


def drop_pages(path):
    """Lets the kernel forget what it has read of a file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*")
                  if path.is_file())


def make_model(folder):
    """A folder with tensors of all kinds and sizes, other files, and folders."""
    folder = Path(folder)
    (folder / "original" / "deep").mkdir(parents=True)
    (folder / "empty").mkdir()
    for name, size, seed in [("model-00001-of-00002.safetensors", "24MiB", 1),
                             ("model-00002-of-00002.safetensors", "3MiB", 2)]:
        made = snug("sample", folder / name, "--size", size, "--seed", seed)
        assert made.returncode == 0, made.stderr
    shutil.copy(DATA / "sample.safetensors", folder / "original" / "sample.safetensors")
    (folder / "config.json").write_text('{\n  "model_type": "llama",\n  "x": [1, 2]\n}\n')
    (folder / "tokenizer.bin").write_bytes(random.Random(1).randbytes(2_500_001))
    (folder / "original" / "deep" / "größe und mehr.txt").write_text("ä\n")
    (folder / "nothing").write_bytes(b"")
    os.chmod(folder / "tokenizer.bin", 0o640)
    return folder


class MountTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.root = Path(cls.scratch.name).resolve()
        cls.plain = make_model(cls.root / "model")
        cls.compressed = cls.root / "model.snug"
        compress(cls.plain, cls.compressed)

    def setUp(self):
        self.target = self.root / "dir"
        self.target.mkdir()

    def tearDown(self):
        if is_mounted(self.target):
            unmount(self.target)
        self.target.rmdir()

    def mounted(self, *options, source=None, **kwargs):
        return Mounted(source or self.compressed, self.target, *options, **kwargs)

    def assert_same(self, plain, shown):
        self.assertEqual(files_below(plain), files_below(shown))
        for name in files_below(plain):
            self.assertEqual((plain / name).read_bytes() == (shown / name).read_bytes(), True, name)

    def assert_errno(self, number, call, *args):
        with self.assertRaises(OSError) as caught:
            call(*args)
        numbers = number if isinstance(number, tuple) else (number,)
        self.assertIn(caught.exception.errno, numbers,
                      [errno.errorcode[n] for n in numbers])


def main():
    reason = why_not()
    if reason is not None:
        print(f"skipped: cannot mount here: {reason}")
        sys.exit(SKIPPED)
    unittest.main()
