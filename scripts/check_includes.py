#!/usr/bin/env python3
"""check_includes.py [ROOT]: compares the tree with the table of folders in docs/hacking.md.

The table says which library a folder belongs to, which public headers are its own, and what it
may include. Includes, links between libraries and the place of CUDA code must agree with it;
an arrow that nothing uses is an error too. So are files that pages or comments name and that are
not there, too many public headers, and too long source files and lines of pages. Prints file:line
of every violation.
"""
import os
import re
import sys
from pathlib import Path

MAX_PUBLIC_HEADERS = 16
MAX_FILE_LINES = 350
MAX_COLUMNS = 100
TABLE_HEADER = ["folder", "library", "its public headers", "may include", "public headers only"]
SOURCES = {".h", ".c", ".cpp", ".cu", ".cuh"}
EXTERNAL = ("hwy/",)  # included in quotes, but not ours
NAMED_FILE = re.compile(r"\b((?:src|include|docs|tests|bench|scripts|python)/[\w./-]+\.\w+)")
SOURCE_NAME = re.compile(r"`([a-z0-9_/.-]+\.(?:h|cuh|c|cpp|cu|py|sh))`")
CUDA_HEADER = re.compile(r"cuda|cublas|cooperative_groups")


class Folder:
    """One row of the table. A folder may always include itself."""

    def __init__(self, path, library, headers, includes, public_only, line):
        self.path, self.library, self.line = path, library, line
        self.headers, self.includes, self.public_only = headers, includes, public_only
        self.unused = includes | public_only

    def may_include(self, other, is_public):
        allowed = self.includes | (self.public_only if is_public else set())
        self.unused.discard(other.path)
        return other is self or "all" in allowed or other.path in allowed

    def allowed(self):
        public = [f"public headers of {name}" for name in sorted(self.public_only)]
        return ", ".join([self.path, *sorted(self.includes), *public])


def read_table(guide):
    def names(cell):
        return set(re.findall(r"`([^`]+)`", cell)) | ({"all"} if "all" in cell.split() else set())

    folders, inside = {}, False
    for number, line in enumerate(guide.read_text().splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells == TABLE_HEADER:
            inside = True
        elif inside and not line.startswith("|"):
            break
        elif inside and not set(line) <= set("|-: "):
            path, library = (cell.strip("`") for cell in cells[:2])
            folders[path] = Folder(path, library, *(names(cell) for cell in cells[2:5]), number)
    if not folders:
        raise SystemExit(f"{guide}: no table with the columns {' | '.join(TABLE_HEADER)}")
    return folders


class Tree:
    def __init__(self, root):
        self.root = Path(root)
        self.guide = self.root / "docs" / "hacking.md"
        self.folders = read_table(self.guide)
        self.header_owner = {h: f for f in self.folders.values() for h in f.headers}
        self.problems = []

    def report(self, path, line, text):
        self.problems.append(f"{path.relative_to(self.root)}:{line}: {text}")

    def files(self, top, suffixes):
        for folder, below, found in os.walk(self.root / top):
            below.sort()
            paths = (Path(folder, name) for name in sorted(found))
            yield from (path for path in paths if path.suffix in suffixes)

    def pages(self):
        return [*self.root.glob("*.md"), *self.files("docs", {".md"}),
                *self.files("bench", {".md"})]

    def parts(self, path):
        return path.relative_to(self.root).parts

    def folder_of(self, path):
        """The row of a file: its owner's for a public header, else the nearest folder's."""
        parts = self.parts(path)
        if parts[0] == "include":
            return self.header_owner.get("/".join(parts[1:]))
        if parts[0] != "src":
            return self.folders.get(parts[0])
        candidates = ("/".join(parts[1:end]) for end in range(len(parts) - 1, 1, -1))
        return next((self.folders[name] for name in candidates if name in self.folders), None)

    def resolve(self, source, name):
        bases = [self.root / "src", self.root / "include", source.parent]
        if self.parts(source)[0] in ("tests", "bench"):
            bases += [self.root / "tests", self.root / "bench"]
        return next((base / name for base in bases if (base / name).is_file()), None)

    def check_includes(self):
        for top in ("include", "src", "tests", "bench"):
            for source in self.files(top, SOURCES):
                owner = self.folder_of(source)
                if owner is None:
                    self.report(source, 1, "belongs to no row of the table in docs/hacking.md")
                    continue
                for number, line in enumerate(source.read_text().splitlines(), 1):
                    match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
                    if match:
                        self.check_include(source, number, owner, *match.groups())

    def check_include(self, source, number, owner, quote, name):
        if quote == "<" and not name.startswith("snug/"):
            if CUDA_HEADER.match(name) and not self.is_gpu_code(source):
                self.report(source, number, f"<{name}>: CUDA belongs below cuda/ or src/gpu")
            return
        if name.startswith(EXTERNAL):
            return
        if ".." in Path(name).parts:
            self.report(source, number, f'"{name}": name the path below src/ instead')
            return
        target = self.resolve(source, name)
        if target is None:
            self.report(source, number, f'"{name}" is in neither src/ nor include/')
            return
        other = self.folder_of(target)
        is_public = self.parts(target)[0] == "include"
        if other is not None and not owner.may_include(other, is_public):
            self.report(source, number, f'"{name}" of {other.path}; allowed: {owner.allowed()}')
        if self.parts(source)[0] == "src" and "decode" in str(source) and "encode" in name:
            self.report(source, number, f'"{name}": decoding never includes encoding')

    def is_gpu_code(self, path):
        parts = self.parts(path)
        return (parts[0] in ("tests", "bench") or "cuda" in parts[1:-1] or
                parts[:2] == ("src", "gpu") or "/".join(parts).startswith("src/capi/gpu_"))

    def check_cuda_files(self):
        for source in self.files("src", {".cu", ".cuh"}):
            if not self.is_gpu_code(source):
                self.report(source, 1, "needs nvcc: belongs below cuda/ or src/gpu")

    def check_links(self):
        """A library may link those that its folders may include, also through other folders."""
        libraries = {}
        for folder in self.folders.values():
            libraries.setdefault(folder.library, []).append(folder)
        for path in [self.root / "CMakeLists.txt", *self.files("cmake", {".cmake"})]:
            text = path.read_text() if path.is_file() else ""
            for call in re.finditer(r"target_link_libraries\(\s*([\w-]+)([^()]*)", text):
                if call.group(1) not in libraries:
                    continue
                allowed = self.linkable(libraries[call.group(1)])
                for other in sorted(set(call.group(2).split()) & libraries.keys() - allowed):
                    line = text.count("\n", 0, call.start()) + 1
                    self.report(path, line, f"{call.group(1)} links {other}: no arrow leads there")

    def linkable(self, folders):
        """The libraries of all folders that arrows lead to."""
        reached, waiting = set(), list(folders)
        while waiting:
            folder = waiting.pop()
            if folder.path not in reached:
                reached.add(folder.path)
                names = folder.includes | folder.public_only
                waiting += self.folders.values() if "all" in names else [
                    self.folders[name] for name in names & self.folders.keys()]
        return {self.folders[path].library for path in reached}

    def check_sizes(self):
        headers = list(self.files("include", {".h"}))
        if len(headers) > MAX_PUBLIC_HEADERS:
            limit = f"{len(headers)} public headers, at most {MAX_PUBLIC_HEADERS}"
            self.report(headers[-1].parent, 0, limit)
        for source in [*self.files("src", SOURCES), *self.files("include", SOURCES)]:
            lines = len(source.read_text().splitlines())
            if lines > MAX_FILE_LINES:
                self.report(source, lines, f"{lines} lines, at most {MAX_FILE_LINES}")

    def check_columns(self):
        """Tables are exempt, and so are the targets of links."""
        for page in self.pages():
            for number, line in enumerate(page.read_text().splitlines(), 1):
                width = len(re.sub(r"\]\([^)]*\)", "]", line))
                if width > MAX_COLUMNS and not line.lstrip().startswith("|"):
                    self.report(page, number, f"{width} columns, at most {MAX_COLUMNS}")

    def check_references(self):
        """Files that pages and comments name are there; a header's first line names itself."""
        tops = ("include", "src", "tests", "bench", "python", "scripts", "examples")
        sources = {path.name for top in tops for path in self.files(top, SOURCES | {".py", ".sh"})}
        for page in [*self.pages(), *self.files("include", SOURCES), *self.files("src", SOURCES)]:
            for number, line in enumerate(page.read_text().splitlines(), 1):
                links = re.findall(r"\]\((?!\w+:)([^)#\s]+)", line) if page.suffix == ".md" else []
                for name in links:
                    if not (page.parent / name).exists():
                        self.report(page, number, f"link to {name}, which is not there")
                for name in NAMED_FILE.findall(line):
                    if not (self.root / name).exists():
                        self.report(page, number, f"names {name}, which is not there")
                for name in SOURCE_NAME.findall(line) if self.parts(page)[0] == "docs" else []:
                    if Path(name).name not in sources and not NAMED_FILE.match(name):
                        self.report(page, number, f"names {name}, which is nowhere")
        for header in self.files("src", {".h", ".cuh"}):
            first = re.match(r"// ([\w/.-]+) - ", header.read_text())
            if first and self.root / "src" / first.group(1) != header:
                self.report(header, 1, f"calls itself {first.group(1)}")

    def check_table(self):
        for row in self.folders.values():
            for name in sorted((row.includes | row.public_only) - self.folders.keys() - {"all"}):
                self.report(self.guide, row.line, f"{row.path}: there is no row {name}")
            for name in sorted(row.unused & self.folders.keys()):
                self.report(self.guide, row.line, f"{row.path}: nothing of {name} is included")

    def check(self):
        self.check_includes()
        self.check_table()
        self.check_cuda_files()
        self.check_links()
        self.check_sizes()
        self.check_columns()
        self.check_references()
        return self.problems


def main():
    tree = Tree(sys.argv[1] if sys.argv[1:] else Path(__file__).resolve().parent.parent)
    for problem in tree.check():
        print(problem)
    print(f"check_includes: {len(tree.folders)} folders, {len(tree.problems)} violations")
    return 1 if tree.problems else 0


if __name__ == "__main__":
    sys.exit(main())
