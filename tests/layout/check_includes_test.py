"""Plants one violation of every kind in a small clean tree; check_includes.py must find each."""
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.dont_write_bytecode = True
import check_includes as layout  # noqa: E402

TABLE = f"""| {" | ".join(layout.TABLE_HEADER)} |
|---|---|---|---|---|
| `frame` | `snug` | `snug/tensor.h` | | |
| `codec` | `snug` | `snug/codec.h` | `frame` | |
| `codec/cuda` | `snug_cuda` | | `codec` | |
| `net` | `snug_net` | | | |
| `nccl` | `nccl-snug-workers` | | | |
| `cli` | `snug-cli` | | | all |
| `tests` | | | all | |
"""
CLEAN = {
    "docs/hacking.md": TABLE,
    "include/snug/tensor.h": "#pragma once\n",
    "include/snug/codec.h": '#include "snug/tensor.h"\n',
    "src/frame/frame.h": '#include "snug/tensor.h"\n',
    "src/codec/encode.h": '#include "frame/frame.h"\n',
    "src/codec/cuda/kernel.cuh": '#include <cuda_runtime.h>\n#include "codec/encode.h"\n',
    "src/net/socket.h": "#include <string>\n",
    "src/cli/main.cpp": "#include <snug/codec.h>\n",
    "tests/codec/codec_test.cpp": '#include "codec/encode.h"\n',
    "CMakeLists.txt": "target_link_libraries(snug_cuda PUBLIC snug)\n",
}
LONG_FILE = "\n" * (layout.MAX_FILE_LINES + 1)
LONG_LINE = "word " * layout.MAX_COLUMNS


def problems_with(**changes):
    """What the checker says of the clean tree and {path: content}."""
    with tempfile.TemporaryDirectory() as folder:
        for path, content in {**CLEAN, **changes}.items():
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content)
        return layout.Tree(folder).check()


class CheckIncludesTest(unittest.TestCase):
    def plant(self, path, content, expected):
        problems = problems_with(**{path: content})
        self.assertTrue(any(expected in problem for problem in problems), (expected, problems))

    def test_clean_tree(self):
        self.assertEqual(problems_with(), [])

    def test_includes(self):
        allowed = 'src/frame/frame.h:2: "codec/encode.h" of codec; allowed: frame'
        self.plant("src/frame/frame.h", '\n#include "codec/encode.h"\n', allowed)
        self.plant("src/cli/main.cpp", '#include "codec/encode.h"\n', "src/cli/main.cpp:1: ")
        self.plant("src/net/socket.h", '#include "snug/codec.h"\n', "src/net/socket.h:1: ")
        self.plant("include/snug/tensor.h", "#include <snug/codec.h>\n", "snug/tensor.h:1: ")
        self.plant("src/net/socket.h", '#include "net/none.h"\n', "neither src/ nor include/")
        self.plant("src/net/socket.h", '#include "../net/socket.h"\n', "name the path below src/")
        self.plant("src/codec/decode.h", '#include "codec/encode.h"\n', "never includes encoding")

    def test_places(self):
        self.plant("src/codec/host.cpp", "#include <cuda_runtime.h>\n", "host.cpp:1: <cuda")
        self.plant("src/codec/kernel.cu", "\n", "src/codec/kernel.cu:1: needs nvcc")
        self.plant("src/new/new.h", "\n", "src/new/new.h:1: belongs to no row")
        self.plant("include/snug/new.h", "\n", "include/snug/new.h:1: belongs to no row")

    def test_links(self):
        link = "\ntarget_link_libraries(snug_cuda PUBLIC snug\n  PRIVATE snug_net)\n"
        self.plant("CMakeLists.txt", link, "CMakeLists.txt:2: snug_cuda links snug_net")
        self.plant("cmake/More.cmake", link, "cmake/More.cmake:2: snug_cuda links snug_net")
        workers = "target_link_libraries(nccl-snug-workers PRIVATE snug_net)\n"
        self.plant("cmake/More.cmake", workers, "nccl-snug-workers links snug_net")

    def test_sizes(self):
        self.plant("src/net/long.h", LONG_FILE, f"{layout.MAX_FILE_LINES + 1} lines")
        self.plant("docs/page.md", "\n" + LONG_LINE, "docs/page.md:2: ")
        many = {f"include/snug/h{i}.h": "" for i in range(layout.MAX_PUBLIC_HEADERS - 1)}
        count = f"{layout.MAX_PUBLIC_HEADERS + 1} public headers"
        self.assertTrue(any(count in problem for problem in problems_with(**many)))
        exempt = f"| {LONG_LINE} |\n[a](https://{LONG_LINE.replace(' ', '/')})\n"
        self.assertEqual(problems_with(**{"docs/page.md": exempt}), [])

    def test_references(self):
        self.plant("docs/page.md", "See [it](none.md).\n", "docs/page.md:1: link to none.md")
        self.plant("docs/page.md", "See `src/net/none.h`.\n", "page.md:1: names src/net/none.h")
        self.plant("docs/page.md", "See `none.h`.\n", "page.md:1: names none.h, which is nowhere")
        self.plant("src/net/socket.h", "// docs/none.md says more\n", "names docs/none.md")
        self.plant("src/net/socket.h", "// net/old.h - sockets\n", "calls itself net/old.h")

    def test_table(self):
        unused = TABLE.replace("`snug_net` | | |", "`snug_net` | | `frame` |")
        self.plant("docs/hacking.md", unused, "net: nothing of frame is included")
        unknown = TABLE.replace("`snug_net` | | |", "`snug_net` | | `none` |")
        self.plant("docs/hacking.md", unknown, "net: there is no row none")


if __name__ == "__main__":
    unittest.main()
