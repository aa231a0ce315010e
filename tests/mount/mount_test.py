"""snug mount: the original files, byte for byte, whoever reads them and however it ends."""

import contextlib
import errno
import hashlib
import json
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import threading
import time
import unittest
from pathlib import Path

from mount_common import (CLI, PATIENCE, UNMOUNT, MountTest, compress, drop_pages, files_below,
                          is_mounted, main, snug, unmount, wait_until)

SHARD = "model-00001-of-00002.safetensors"


def sha256(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def stored_places(path):
    """Where each tensor of a safetensors file is: name -> (begin, end)."""
    data = Path(path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    return {name: tuple(start + at for at in entry["data_offsets"])
            for name, entry in header.items() if name != "__metadata__"}


class Content(MountTest):
    def test_every_file_is_the_original(self):
        with self.mounted():
            self.assertEqual(files_below(self.plain), files_below(self.target))
            for name in files_below(self.plain):
                self.assertEqual(sha256(self.plain / name), sha256(self.target / name), name)
                want, got = (self.plain / name).stat(), (self.target / name).stat()
                self.assertEqual(want.st_size, got.st_size, name)
                self.assertEqual(want.st_mode & ~0o222, got.st_mode, name)
                self.assertEqual(want.st_mtime_ns, got.st_mtime_ns, name)
            self.assertTrue((self.target / "empty").is_dir())
            self.assertFalse((self.target / "absent").exists())
            self.assertGreater(shutil.disk_usage(self.target).total, 27 << 20)

    def test_config_loses_the_mark(self):
        with self.mounted():
            self.assertNotEqual((self.plain / "config.json").read_bytes(),
                                (self.compressed / "config.json").read_bytes())
            self.assertEqual((self.plain / "config.json").read_bytes(),
                             (self.target / "config.json").read_bytes())

    def test_one_file(self):
        with self.mounted(source=self.compressed / SHARD):
            self.assertEqual([SHARD], os.listdir(self.target))
            self.assertEqual(sha256(self.plain / SHARD), sha256(self.target / SHARD))

    def test_one_file_loses_its_suffix(self):
        single = self.root / "x.snug.safetensors"
        compress(self.plain / SHARD, single)
        with self.mounted(source=single):
            self.assertEqual(["x.safetensors"], os.listdir(self.target))

    def test_reads_at_any_place(self):
        data, rng = (self.plain / SHARD).read_bytes(), random.Random(1)
        with self.mounted("--cache", "16MiB", "-t", "2"):
            drop_pages(self.target / SHARD)
            fd = os.open(self.target / SHARD, os.O_RDONLY)
            for _ in range(300):
                at, size = rng.randrange(len(data) + 10), rng.choice([1, 100, 5000, 1 << 20])
                self.assertEqual(os.pread(fd, size, at) == data[at:at + size], True, (at, size))
            os.close(fd)

    def test_maps_shared_and_private(self):
        data, rng = (self.plain / SHARD).read_bytes(), random.Random(2)
        with self.mounted():
            with open(self.target / SHARD, "rb") as file:
                for flags, protection in [(mmap.MAP_SHARED, mmap.PROT_READ),
                                          (mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)]:
                    drop_pages(self.target / SHARD)
                    with mmap.mmap(file.fileno(), 0, flags=flags, prot=protection) as view:
                        for _ in range(500):
                            at = rng.randrange(len(data))
                            self.assertEqual(view[at:at + 64], data[at:at + 64])
                        if flags == mmap.MAP_PRIVATE:
                            view[5:8] = b"new"
                            self.assertEqual(view[4:9], data[4:5] + b"new" + data[8:9])

    def test_24_readers_at_once(self):
        data = (self.plain / SHARD).read_bytes()
        wrong = []

        def read(seed):
            rng = random.Random(seed)
            with open(self.target / SHARD, "rb", buffering=0) as file:
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
                    for turn in range(40):
                        at = rng.randrange(len(data))
                        size = rng.choice([1, 4096, 300_000])
                        got = view[at:at + size] if turn % 2 else os.pread(file.fileno(), size, at)
                        if got != data[at:at + size]:
                            wrong.append((seed, at, size))
                        if turn % 10 == 0:
                            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

        with self.mounted("--cache", "16MiB", "-t", "2"):
            readers = [threading.Thread(target=read, args=(seed,)) for seed in range(24)]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join(PATIENCE)
                self.assertFalse(reader.is_alive(), "a reader hangs")
        self.assertEqual([], wrong)

    def test_24_processes_at_once(self):
        with self.mounted("--cache", "16MiB", "-t", "2"):
            readers = [subprocess.Popen(["sha256sum", self.target / SHARD],
                                        stdout=subprocess.PIPE, text=True) for _ in range(24)]
            sums = {reader.communicate(timeout=PATIENCE)[0].split()[0] for reader in readers}
            self.assertEqual({sha256(self.plain / SHARD)}, sums)

    def test_is_read_only(self):
        refused = (errno.EROFS, errno.EACCES, errno.EPERM)
        with self.mounted():
            shown = self.target / SHARD
            self.assert_errno(refused, lambda: open(shown, "r+b"))
            self.assert_errno(refused, lambda: open(shown, "wb"))
            self.assert_errno(refused, lambda: open(self.target / "new", "wb"))
            self.assert_errno(refused, os.unlink, shown)
            self.assert_errno(refused, os.truncate, shown, 1)
            self.assert_errno(refused, os.rename, shown, self.target / "other")
            self.assert_errno(refused, os.mkdir, self.target / "folder")
            self.assert_errno(refused, os.chmod, shown, 0o777)
            self.assertEqual(sha256(self.plain / SHARD), sha256(shown))


class CopyTest(MountTest):
    """With a compressed folder that the test may change."""

    def setUp(self):
        super().setUp()
        self.copy = self.root / "copy.snug"
        shutil.copytree(self.compressed, self.copy)
        self.addCleanup(shutil.rmtree, self.copy)


class OtherUsers(CopyTest):
    @unittest.skipIf(os.geteuid() != 0, "only root may always use --allow-other")
    def test_the_mask_of_an_acl_is_no_right_of_the_group(self):
        nobody = 0xFFFFFFFF
        acl = struct.pack("<I", 2) + b"".join(
            struct.pack("<HHI", *entry)
            for entry in [(1, 6, nobody), (2, 5, 1234), (4, 0, nobody), (16, 5, nobody),
                          (32, 0, nobody)])  # owner, a named user, group, mask, others
        for name in ("tokenizer.bin", "empty"):
            try:
                os.setxattr(self.copy / name, "system.posix_acl_access", acl)
            except OSError as error:
                self.skipTest(f"no ACLs here: {error}")
            self.assertEqual(0o650, (self.copy / name).stat().st_mode & 0o777)
        for options, mode in [(["--allow-other"], 0o400), ([], 0o450)]:
            with self.mounted(*options, source=self.copy):
                for name in ("tokenizer.bin", "empty"):
                    self.assertEqual(mode, (self.target / name).stat().st_mode & 0o777)


class Damage(CopyTest):
    def test_damaged_blocks_are_errors_for_their_readers(self):
        data = (self.plain / SHARD).read_bytes()
        places, plain = stored_places(self.copy / SHARD), stored_places(self.plain / SHARD)
        name = max(plain, key=lambda tensor: plain[tensor][1] - plain[tensor][0])
        begin, end = places[name]
        with open(self.copy / SHARD, "r+b") as file:  # in its last block
            file.seek(end - 100)
            byte = file.read(1)
            file.seek(end - 100)
            file.write(bytes([byte[0] ^ 1]))
        with self.mounted(source=self.copy) as mounted:
            fd = os.open(self.target / SHARD, os.O_RDONLY)
            bad = plain[name][1] - 50
            for _ in range(3):
                self.assert_errno(errno.EIO, os.pread, fd, 10, bad)
            with open(self.target / SHARD, "rb") as file:
                self.assert_errno(errno.EIO, file.read)
            for other, (first, last) in plain.items():
                if other != name:  # all others can be read, but for the page that they share
                    first += mmap.PAGESIZE
                    got = os.pread(fd, max(0, last - first), first)
                    self.assertEqual(got == data[first:max(first, last)], True)
            first = plain[name][0]
            self.assertEqual(os.pread(fd, 1000, first), data[first:first + 1000])
            os.close(fd)
            log = mounted.log()
        first, last = plain[name]
        block = first + (last - first - 1) // (256 << 10) * (256 << 10)
        self.assertIn(f"{SHARD}: bytes {block} to {last - 1}: ", log)
        self.assertIn(f'tensor "{name}"', log)
        self.assertEqual(1, log.count("corrupt"), log)

    def test_files_that_change_are_refused(self):
        with self.mounted(source=self.copy) as mounted:
            self.assertEqual(sha256(self.plain / SHARD), sha256(self.target / SHARD))
            with open(self.copy / SHARD, "r+b") as file:
                file.seek(1000)
                file.write(b"changed")
            self.assert_errno(errno.EIO, lambda: open(self.target / SHARD, "rb"))
            replaced = self.copy / "tokenizer.bin"
            shutil.copy(replaced, str(replaced) + ".new")
            os.rename(str(replaced) + ".new", replaced)
            self.assert_errno(errno.EIO, lambda: open(self.target / "tokenizer.bin", "rb"))
            (self.copy / "nothing").unlink()
            self.assert_errno(errno.EIO, lambda: open(self.target / "nothing", "rb"))
            self.assertIn("changed since it was mounted; unmount and mount again", mounted.log())

    def test_files_that_become_shorter_while_they_are_open(self):
        with self.mounted(source=self.copy):
            with open(self.target / SHARD, "rb", buffering=0) as file:
                file.read(10)
                os.truncate(self.copy / SHARD, 200_000)
                self.assert_errno(errno.EIO, os.pread, file.fileno(), 10, 20 << 20)


    def test_nobody_reads_the_messages(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        self.addCleanup(os.close, writer)
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(mmap.PAGESIZE))
        os.set_blocking(writer, True)
        with self.mounted("--quiet", source=self.copy, stderr=writer) as mounted:
            for name in ("tokenizer.bin", "nothing"):
                (self.copy / name).unlink()
                self.assert_errno(errno.EIO, lambda: open(self.target / name, "rb"))
            self.assertEqual(sha256(self.plain / SHARD), sha256(self.target / SHARD))
            self.assertEqual(0, mounted.end())
            self.assertFalse(is_mounted(self.target))


class Ends(MountTest):
    def test_signals_unmount(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.mounted() as mounted:
                held = open(self.target / SHARD, "rb")
                held.read(100)
                self.assertEqual(0, mounted.end(number))
                self.assertFalse(is_mounted(self.target))
                self.assertEqual([], os.listdir(self.target))
                self.assertIn(f"unmount with: Ctrl-C, or {' '.join(UNMOUNT)} {self.target}", mounted.log())
                with contextlib.suppress(OSError):  # the mount has gone
                    held.close()

    def test_unmounting_ends_the_process(self):
        with self.mounted() as mounted:
            (self.target / SHARD).read_bytes()
            subprocess.run([*UNMOUNT, self.target], check=True, timeout=PATIENCE)
            self.assertEqual(0, mounted.process.wait(timeout=PATIENCE))

    def test_killed(self):
        with self.mounted() as mounted:
            (self.target / "config.json").read_bytes()
            mounted.end(signal.SIGKILL)
            self.assertTrue(is_mounted(self.target))
            self.assert_errno(errno.ENOTCONN, os.listdir, self.target)
            again = snug("mount", self.compressed, self.target)
            self.assertEqual(7, again.returncode)
            self.assertEqual(f"snug: io: {self.target}: a mount whose process has died is there; "
                             f"remove it with: {' '.join(UNMOUNT)} {self.target}\n", again.stderr)
            unmount(self.target)
        with self.mounted():
            self.assert_same(self.plain, self.target)

    def test_background(self):
        done = snug("mount", "--background", "--json", self.compressed, self.target)
        self.assertEqual(0, done.returncode, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(str(self.target), report["folder"])
        self.assertEqual(len(files_below(self.plain)), report["files"])
        self.assertEqual(sum((self.plain / name).stat().st_size
                             for name in files_below(self.plain)), report["raw_bytes"])
        self.assert_same(self.plain, self.target)
        os.kill(report["pid"], signal.SIGTERM)
        wait_until(lambda: not is_mounted(self.target), "the end")

    def test_background_reports_errors(self):
        done = snug("mount", "--background", self.compressed, self.root / "absent")
        self.assertEqual(9, done.returncode)
        self.assertEqual(1, done.stderr.count("\n"), done.stderr)

    def test_a_signal_while_it_opens(self):
        num_tensors = 200_000
        header = ",".join(f'"{i:06}":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{i + 1}]}}'
                          for i in range(num_tensors)).encode()
        plain, wide = self.root / "tiny.safetensors", self.root / "wide"
        plain.write_bytes((len(header) + 2).to_bytes(8, "little") + b"{" + header + b"}" +
                          bytes(num_tensors))
        compress(plain, self.root / "tiny.snug.safetensors")
        wide.mkdir()
        for i in range(32):  # it takes some seconds to read their headers
            os.link(self.root / "tiny.snug.safetensors", wide / f"{i}.snug.safetensors")
        for options in ([], ["--background"]):
            process = subprocess.Popen([CLI, "mount", *options, wide, self.target])
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            self.assertEqual(130, process.wait(timeout=PATIENCE), options)
            self.assertFalse(is_mounted(self.target))

    def test_background_without_a_report_is_an_error(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([CLI, "mount", "--background", "--json", self.compressed,
                                   self.target], stdout=full, timeout=PATIENCE)
        self.assertEqual(7, done.returncode)
        self.assertFalse(is_mounted(self.target))


class Errors(MountTest):
    def refuse(self, code, text, *args):
        done = snug("mount", *args)
        self.assertEqual(code, done.returncode, done.stderr)
        self.assertIn(text, done.stderr)
        self.assertEqual(1, done.stderr.count("\n"), done.stderr)

    def test_arguments(self):
        self.refuse(9, "no such folder; make it first", self.compressed, self.root / "absent")
        self.refuse(8, "not empty", self.compressed, self.plain)
        self.refuse(2, "not a folder", self.compressed, self.plain / "config.json")
        self.refuse(3, "plain safetensors, not compressed by Snug", self.plain, self.target)
        self.refuse(9, "cannot open", self.root / "absent", self.target)
        self.refuse(3, "", self.plain / "config.json", self.target)
        self.refuse(9, "no .safetensors file", self.plain / "original" / "deep", self.target)
        self.refuse(2, "into itself", self.compressed, self.compressed / "empty")
        self.refuse(2, "at least 16MiB", self.compressed, self.target, "--cache", "1MiB")
        self.assertFalse(is_mounted(self.target))

    def test_headers_that_take_much_memory(self):
        tensor = b'"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
        header = b'{"__metadata__":{"k":"' + b"x" * (60 << 20) + tensor
        plain, packed = self.root / "long", self.root / "long.snug"
        plain.mkdir()
        for name in "ab":
            (plain / f"{name}.safetensors").write_bytes(
                struct.pack("<Q", len(header)) + header + b"1")
        compress(plain, packed)
        self.refuse(2, "headers of more than 48 MiB; mount fewer", packed, self.target)

    def test_mounted_already(self):
        with self.mounted():
            self.refuse(8, "something is mounted there already", self.compressed, self.target)
            second = self.root / "second"
            second.mkdir()
            self.refuse(3, "plain safetensors", self.target, second)
            second.rmdir()


if __name__ == "__main__":
    main()
