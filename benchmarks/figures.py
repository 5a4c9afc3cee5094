"""The figure of docs/performance.md: how the time of a round grows, from the results of scaling.py and clients.py.

Both axes are logarithmic; the dashed line is linear growth from the first size.
"""

from __future__ import annotations

import argparse
import json
import math
from html import escape
from pathlib import Path
from typing import Any

from graft.experiments.reports.figures import COLOURS, GAP, GREY, HEIGHT, INK, LEFT, TOP, legend, picture

WIDE, COLUMNS = 230, 3
ROW = TOP + HEIGHT + 40  # from one row of panels to the next
TITLES = {"nodes": "nodes", "degree": "mean degree", "clients": "clients", "width": "width"}

Curves = dict[str, list[tuple[float, float]]]


def panel(parts: list[str], number: int, title: str, curves: Curves, names: list[str]) -> None:
    """Draws milliseconds a round against what grows."""
    left = LEFT + number * (WIDE + LEFT + GAP)
    points = [point for curve in curves.values() for point in curve]
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    low = 10 ** math.floor(math.log10(min(y for _, y in points)))
    high = 10 ** math.ceil(math.log10(max(y for _, y in points)))

    def across(x: float) -> float:
        return left + 16 + (WIDE - 32) * math.log(x / first) / math.log(last / first)

    def height(y: float) -> float:
        return TOP + HEIGHT * (1 - math.log(y / low) / math.log(high / low))

    parts.append(f'<text x="{left}" y="{TOP - 12}" font-weight="600">ms a round, by {escape(title)}</text>')
    for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
        y = height(10.0**power)
        parts.append(f'<line x1="{left}" x2="{left + WIDE}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GREY}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for x in sorted({x for x, _ in points}):
        label = f"{x / 1000:g}k" if x >= 10_000 else f"{x:g}"
        parts.append(f'<text x="{across(x):.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{label}</text>')
    for name, curve in curves.items():
        colour = COLOURS[names.index(name) % len(COLOURS)]
        start, base = curve[0]
        stop = min(last, start * high / base)  # where linear growth leaves the panel
        parts.append(
            f'<line x1="{across(start):.1f}" y1="{height(base):.1f}" x2="{across(stop):.1f}" '
            f'y2="{height(base * stop / start):.1f}" stroke="{INK}" stroke-opacity=".35" stroke-dasharray="3 3"/>'
        )
        path = " ".join(f"{across(x):.1f},{height(y):.1f}" for x, y in curve)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        parts += [
            f'<circle cx="{across(x):.1f}" cy="{height(y):.1f}" r="3" fill="{colour}"><title>{escape(name)}, {x:g}: '
            f"{y:.1f} ms</title></circle>"
            for x, y in curve
        ]


def draw(scaling: list[dict[str, Any]], clients: list[dict[str, Any]]) -> str:
    panels: list[tuple[str, Curves]] = [
        (TITLES[row["grows"]], {"fedavg": list(zip(row["sizes"], row["ms"], strict=True))}) for row in scaling
    ]
    if clients:
        by_method: Curves = {row["method"]: list(zip(row["clients"], row["ms"], strict=True)) for row in clients}
        panels.append(("clients, a tenth in a round", by_method))
    names = list(dict.fromkeys(name for _, curves in panels for name in curves))
    parts: list[str] = []
    rows = math.ceil(len(panels) / COLUMNS)
    for row in range(rows):
        parts.append(f'<g transform="translate(0 {row * ROW})">')
        for number, (title, curves) in enumerate(panels[row * COLUMNS : (row + 1) * COLUMNS]):
            panel(parts, number, title, curves, names)
        below = legend(parts, names) if row == rows - 1 else 0
        parts.append("</g>")
    return picture(parts, COLUMNS, WIDE, "Milliseconds a round against what grows", (rows - 1) * ROW + below)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scaling", type=Path, default=Path("benchmarks/out/scaling.json"))
    parser.add_argument("--clients", type=Path, default=Path("benchmarks/out/clients.json"))
    parser.add_argument("--out", type=Path, default=Path("docs/performance-scaling.svg"))
    options = parser.parse_args()
    clients = json.loads(options.clients.read_text())["rows"] if options.clients.exists() else []
    options.out.write_text(draw(json.loads(options.scaling.read_text())["rows"], clients) + "\n")


if __name__ == "__main__":
    main()
