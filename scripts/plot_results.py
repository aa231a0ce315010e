#!/usr/bin/env python3
"""plot_results.py: draws docs/img/*.svg from bench/results. Needs nothing but Python.

    h200_gemm_grid.json              -> weights.svg, weights_grid.svg, tables of h200_gemm.md
    h200_wire.md -> h200_link.json   -> links.svg

gpu_wire_bench prints the table "Every row" of h200_wire.md; its JSON is made from that table.
"plot_results.py tables FILE..." prints the tables of grids that gpu_gemm_bench has written.
"""
import json
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
IMAGES = ROOT / "docs" / "img"

# The image brings its own background, so that text is readable whatever the page around it is.
STYLE = """
  .back { fill: #ffffff; stroke: #d0d7de }
  text { font-family: -apple-system, "Segoe UI", "Liberation Sans", Helvetica, Arial, sans-serif;
         font-size: 13px; fill: #424a53 }
  .title { font-size: 16px; font-weight: 600; fill: #1f2328 }
  .legend { fill: #ffffff } .hint { font-style: italic }
  .grid { stroke: #d8dee4; stroke-width: 1 }
  .axis { stroke: #656d76; stroke-width: 1.5 }
  .even { stroke: #656d76; stroke-width: 1.5; stroke-dasharray: 6 4 }
  .line { fill: none; stroke-width: 2.5; stroke-linejoin: round }
  .band { opacity: 0.18 }
  .s0 { stroke: #0550ae } .f0 { fill: #0550ae }
  .s1 { stroke: #1b7c83 } .f1 { fill: #1b7c83 }
  .s2 { stroke: #bc4c00 } .f2 { fill: #bc4c00 }
  .s3 { stroke: #8250df } .f3 { fill: #8250df }
  .s4 { stroke: #6e7781 } .f4 { fill: #6e7781 }
  .hollow { fill: #ffffff; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    .back { fill: #0d1117; stroke: #30363d }
    text { fill: #c9d1d9 } .title { fill: #f0f6fc }
    .grid { stroke: #262c34 } .axis, .even { stroke: #9198a1 } .band { opacity: 0.25 }
    .s0 { stroke: #58a6ff } .f0 { fill: #58a6ff }
    .s1 { stroke: #39c5cf } .f1 { fill: #39c5cf }
    .s2 { stroke: #f0883e } .f2 { fill: #f0883e }
    .s3 { stroke: #bc8cff } .f3 { fill: #bc8cff }
    .s4 { stroke: #9198a1 } .f4 { fill: #9198a1 }
    .hollow, .legend { fill: #0d1117 }
  }
"""


class Chart:
    """A logarithmic x axis, a linear y axis; shapes are added in data coordinates."""

    WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 800, 400, 64, 24, 56, 56

    def __init__(self, title, x_label, x_ticks, x_range, y_ticks, y_range, y_format):
        self.x_range, self.y_range = x_range, y_range
        self.parts = [f'<rect class="back" x="0.5" y="0.5" width="{self.WIDTH - 1}" '
                      f'height="{self.HEIGHT - 1}" rx="8"/>']
        right, bottom = self.WIDTH - self.RIGHT, self.HEIGHT - self.BOTTOM
        self.text(self.LEFT, 30, title, "title")
        for tick in y_ticks:
            self.rule("grid", self.LEFT, self.y(tick), right, self.y(tick))
            self.text(self.LEFT - 10, self.y(tick) + 4, y_format(tick), anchor="end")
        self.rule("axis", self.LEFT, bottom, right, bottom)
        for tick in x_ticks:
            self.rule("axis", self.x(tick), bottom, self.x(tick), bottom + 5)
            self.text(self.x(tick), bottom + 20, f"{tick}", anchor="middle")
        self.text((self.LEFT + right) / 2, self.HEIGHT - 14, x_label, anchor="middle")

    def x(self, value):
        low, high = (math.log(bound) for bound in self.x_range)
        share = (math.log(value) - low) / (high - low)
        return self.LEFT + share * (self.WIDTH - self.LEFT - self.RIGHT)

    def y(self, value):
        low, high = self.y_range
        inside = self.HEIGHT - self.TOP - self.BOTTOM
        return self.HEIGHT - self.BOTTOM - (value - low) / (high - low) * inside

    def rule(self, css, x1, y1, x2, y2):
        self.parts.append(f'<line class="{css}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" '
                          f'y2="{y2:.1f}"/>')

    def text(self, x, y, text, css="", anchor="start"):
        css = f' class="{css}"' if css else ""
        self.parts.append(
            f'<text{css} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>')

    def level(self, value):
        self.rule("even", self.LEFT, self.y(value), self.WIDTH - self.RIGHT, self.y(value))

    def places(self, points):
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)

    def line(self, points, color):
        self.parts.append(f'<polyline class="line s{color}" points="{self.places(points)}"/>')
        self.dots(points, color)

    def dots(self, points, color, hollow=False):
        css = f"hollow s{color}" if hollow else f"f{color}"
        for x, y in points:
            self.parts.append(
                f'<circle class="{css}" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="4"/>')

    def band(self, points, color):
        """points: (x, low, high)."""
        edge = [(x, high) for x, _, high in points] + [(x, low) for x, low, _ in reversed(points)]
        self.parts.append(f'<polygon class="band f{color}" points="{self.places(edge)}"/>')

    def legend(self, x, y, width, entries):
        """entries: (text, color, "line", "band" or "hollow"), one below the other."""
        self.parts.append(f'<rect class="legend" x="{x - 12}" y="{y - 16}" width="{width}" '
                          f'height="{20 * len(entries) + 12}" rx="6"/>')
        for at, (text, color, kind) in enumerate(entries):
            middle = y + 20 * at
            if kind == "band":
                self.parts.append(f'<rect class="band f{color}" x="{x}" y="{middle - 6}" '
                                  'width="24" height="12"/>')
            if kind == "line":
                self.rule(f"line s{color}", x, middle, x + 24, middle)
            if kind in ("line", "hollow"):
                css = f"f{color}" if kind == "line" else f"hollow s{color}"
                self.parts.append(f'<circle class="{css}" cx="{x + 12}" cy="{middle}" r="4"/>')
            self.text(x + 32, middle + 4.5, text)

    def save(self, name, description):
        IMAGES.mkdir(parents=True, exist_ok=True)
        body = "\n".join(self.parts)
        (IMAGES / name).write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.WIDTH} {self.HEIGHT}" '
            f'width="{self.WIDTH}" height="{self.HEIGHT}" role="img">\n'
            f"<title>{description}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n")
        print(f"{(IMAGES / name).relative_to(ROOT)}")


def read_table(page, first_column):
    """The rows of the first table of `page` whose first heading is `first_column`."""
    rows = []
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith(f"| {first_column} |") or (rows and line.startswith("|")):
            rows.append(cells)
        elif rows:
            break
    return [dict(zip(rows[0], row)) for row in rows[2:]]


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


CLASSES = [(1, 1), (2, 8), (12, 16), (24, 32), (48, 64), (80, 128), (160, 8192)]
LARGE = 32e6  # bytes of BF16 weights


class Grid:
    """Speeds over cuBLAS by shape (n, k) and rows of x. Policy "speed" uses the dense copy, which
    is cuBLAS, in cells that are not expected to be faster packed."""

    def __init__(self, path, policy="memory"):
        self.speeds = {}
        for row in map(json.loads, path.read_text().splitlines()):
            shape = self.speeds.setdefault((row["n"], row["k"]), {})
            is_packed = policy == "memory" or row["faster_packed"]
            shape[row["m"]] = row["cublas_us"] / row["us"] if is_packed else 1.0
        self.rows = sorted(next(iter(self.speeds.values())))

    def of(self, large, low, high):
        return [speed for (n, k), shape in self.speeds.items() if (2 * n * k >= LARGE) == large
                for m, speed in shape.items() if low <= m <= high]

    def print_classes(self):
        print("| weights in BF16 |", " | ".join(
            f"M={low}" if low == high else f"{low}..{high}" for low, high in CLASSES), "|")
        print("|" + "---|" * (len(CLASSES) + 1))
        for large, name in ((True, "32 MB and more"), (False, "below 32 MB")):
            print(f"| {name} |", " | ".join(
                f"{geometric_mean(v):.2f}x (worst {min(v):.2f}x)"
                for v in (self.of(large, *bounds) for bounds in CLASSES) if v), "|")

    def print_cells(self):
        print("\n| N x K |", " | ".join(map(str, self.rows)), "|")
        print("|" + "---|" * (len(self.rows) + 1))
        for (n, k), shape in self.speeds.items():
            print(f"| {n} x {k} |", " | ".join(f"{shape[m]:.2f}" for m in self.rows), "|")
        means = [geometric_mean([shape[m] for shape in self.speeds.values()]) for m in self.rows]
        print("| **mean** |", " | ".join(f"**{mean:.2f}**" for mean in means), "|")


def plot_weights(grid):
    chart = Chart("Linear layers on packed weights: speed over cuBLAS, one H200",
                  "rows of x (tokens in a step)", [2 ** i for i in range(14)], (0.85, 9600),
                  [0.6, 0.8, 1.0, 1.2, 1.4, 1.6], (0.55, 1.7), lambda y: f"{y:.1f}x")
    entries = []
    for large, color, name in ((True, 0, "32 MB and more"), (False, 2, "less than 32 MB")):
        by_rows = [(m, grid.of(large, m, m)) for m in grid.rows]
        chart.band([(m, min(v), max(v)) for m, v in by_rows], color)
        chart.line([(m, geometric_mean(v)) for m, v in by_rows], color)
        entries.append((f"matrices of {name}, mean of {len(by_rows[0][1])}", color, "line"))
        entries.append(("slowest to fastest of these", color, "band"))
    chart.level(1.0)
    chart.legend(436, 76, 320, entries)
    chart.save("weights.svg", "Speed of linear layers on packed weights over cuBLAS")


class HeatMap(Chart):
    """One cell for each shape and number of rows: blue is faster than cuBLAS, orange slower."""

    CELL_WIDTH, CELL_HEIGHT = 35, 20

    def __init__(self, grid, title):
        shapes = sorted(grid.speeds, key=lambda shape: shape[0] * shape[1])
        self.LEFT, self.TOP = 116, 72
        self.WIDTH = self.LEFT + self.CELL_WIDTH * len(grid.rows) + 16
        self.HEIGHT = self.TOP + self.CELL_HEIGHT * len(shapes) + 16
        self.parts = [f'<rect class="back" x="0.5" y="0.5" width="{self.WIDTH - 1}" '
                      f'height="{self.HEIGHT - 1}" rx="8"/>']
        self.text(16, 30, title, "title")
        self.text(self.LEFT - 10, 60, "N x K \u00a0 rows", anchor="end")
        for column, m in enumerate(grid.rows):
            x = self.LEFT + self.CELL_WIDTH * column
            self.text(x + self.CELL_WIDTH / 2, 60, str(m), anchor="middle")
            for row, shape in enumerate(shapes):
                self.cell(x, self.TOP + self.CELL_HEIGHT * row, grid.speeds[shape][m])
        for row, (n, k) in enumerate(shapes):
            self.text(self.LEFT - 10, self.TOP + self.CELL_HEIGHT * row + 14.5, f"{n} x {k}",
                      anchor="end")

    def cell(self, x, y, speed):
        strength = min(abs(math.log(speed)) / math.log(1.5), 1)
        full = (5, 80, 174) if speed >= 1 else (188, 76, 0)
        color = "".join(f"{round(255 + (c - 255) * strength):02x}" for c in full)
        text = "#ffffff" if strength > 0.55 else "#1f2328"
        self.parts.append(f'<rect x="{x}" y="{y}" width="{self.CELL_WIDTH - 1}" '
                          f'height="{self.CELL_HEIGHT - 1}" fill="#{color}"/>'
                          f'<text x="{x + self.CELL_WIDTH / 2 - 0.5}" y="{y + 14}" '
                          f'text-anchor="middle" style="font-size: 11px; fill: {text}">'
                          f"{speed:.2f}</text>")


def plot_grid(grid):
    chart = HeatMap(grid, "Linear layers on packed weights: speed over cuBLAS in every cell, "
                          "one H200")
    chart.save("weights_grid.svg", "Speed of linear layers on packed weights over cuBLAS: grid")


def link_rows():
    rows = []
    for row in read_table(RESULTS / "h200_wire.md", "data"):
        low, high = row["95 %"].split(" to ")
        rows.append({"data": row["data"],
                     "link_gbps": None if row["link GB/s"] == "none" else float(row["link GB/s"]),
                     "mb": int(row["MB"]), "pairs": int(row["pairs"]),
                     "raw_us": float(row["raw us"]), "snug_us": float(row["Snug us"]),
                     "gain_percent": float(row["gain"].rstrip(" %")),
                     "low_percent": float(low), "high_percent": float(high),
                     "bytes": float(row["bytes"])})
    return rows


def plot_links():
    path = RESULTS / "h200_link.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in link_rows()))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    chart = Chart("GPU link: gain over sending BF16 weights raw, by message size",
                  "message size, MB (paced link between two processes on one H200)",
                  [2 ** i for i in range(11)], (0.9, 1150),
                  [0, 10, 20, 30, 40, 50], (-4, 52), lambda y: f"{y:+d} %" if y else "0 %")
    chart.level(0)
    entries = []
    for color, rate in enumerate([12.5, 25.0, 50.0, 100.0, None]):
        points = [(row["mb"], row["gain_percent"]) for row in rows
                  if row["data"] == "weights" and row["link_gbps"] == rate]
        chart.line(points, color)
        name = f"link of {rate:g} GB/s" if rate else "not paced: on one GPU"
        entries.append((name, color, "line"))
    chart.legend(540, 206, 220, entries)
    chart.save("links.svg", "Gain of the GPU link over raw transfers against message size")


if __name__ == "__main__":
    if sys.argv[1:2] == ["tables"]:
        for path in map(Path, sys.argv[2:]):
            for policy in ("memory", "speed"):
                print(f"\n{path}, policy {policy}:\n")
                Grid(path, policy).print_classes()
            Grid(path).print_cells()
    else:
        published = Grid(RESULTS / "h200_gemm_grid.json")
        plot_weights(published)
        plot_grid(published)
        plot_links()
