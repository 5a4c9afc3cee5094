"""The figure of docs/performance.md: how the time of a round grows, from the results of scaling.py and clients.py.

Both axes are logarithmic; the dashed line is linear growth from the first size.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graft.experiments.reports.study_charts import (
    PANEL_WIDTH,
    CurvePoint,
    Curves,
    Panel,
    curve_names,
    curve_values,
    series_look,
    sheet,
)
from graft.experiments.reports.vega import Spec, to_svg

TITLES = {"nodes": "nodes", "degree": "mean degree", "clients": "clients", "width": "width"}
LOG: Spec = {"type": "log", "nice": False}


def growth_panel(title: str, curves: Curves, names: list[str]) -> Panel:
    """Returns milliseconds a round against what grows."""
    sizes = sorted({point.x for curve in curves.values() for point in curve})
    slowest = max(point.mean for curve in curves.values() for point in curve)
    x: Spec = {"field": "x", "type": "quantitative", "title": None, "scale": {**LOG, "domain": [sizes[0], sizes[-1]]}}
    x["axis"] = {"values": sizes, "format": "~s", "labelOverlap": True}
    y: Spec = {"field": "y", "type": "quantitative", "title": "ms a round", "scale": {"type": "log", "nice": True}}
    y["axis"] = {"format": "~s", "values": [10.0**power for power in range(-3, 7)]}
    look = series_look(names)
    linear = {
        "data": {"values": [point for name, curve in curves.items() for point in linear_growth(name, curve, slowest)]},
        "mark": {"type": "line", "strokeDash": [3, 3], "strokeWidth": 1, "style": "soft", "opacity": 0.6},
        "encoding": {"y": y, "detail": {"field": "of"}},
    }
    measured = {"mark": {"type": "line", "point": {"filled": True, "size": 36}}, "encoding": {"y": y, **look}}
    body = {"data": {"values": curve_values(curves)}, "encoding": {"x": x}, "layer": [linear, measured]}
    return Panel(f"by {title}", body, PANEL_WIDTH, 190)


def linear_growth(name: str, curve: Sequence[CurvePoint], highest: float) -> list[Spec]:
    """Returns both ends of a line that grows as what is measured against, up to the top of the panel."""
    first, last = curve[0], curve[-1]
    end = min(last.x, first.x * highest / first.mean)
    return [{"of": name, "x": x, "y": first.mean * x / first.x} for x in (first.x, end)]


def draw(scaling: list[dict[str, Any]], clients: list[dict[str, Any]]) -> str:
    """Returns the figure as SVG."""
    columns: dict[str, Curves] = {TITLES[row["grows"]]: {"fedavg": points(row["sizes"], row["ms"])} for row in scaling}
    if clients:
        columns["clients, a tenth in a round"] = {row["method"]: points(row["clients"], row["ms"]) for row in clients}
    names = curve_names(columns)
    return to_svg(sheet([growth_panel(title, curves, names) for title, curves in columns.items()]))


def points(sizes: list[float], milliseconds: list[float]) -> list[CurvePoint]:
    return [CurvePoint(size, time) for size, time in zip(sizes, milliseconds, strict=True)]


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
