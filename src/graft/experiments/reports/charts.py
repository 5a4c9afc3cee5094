"""Figures with two axes of numbers, as Vega-Lite; series hide and show with a click on the legend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from graft.experiments.reports.colours import PALETTE
from graft.experiments.reports.vega import Spec

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
HEIGHT = 260  # of a figure with axes, in pixels
SHOWN = {"filter": "indexof(hidden, datum.series) < 0"}
DASHES = ([1, 0], [6, 3], [2, 3])  # from the ninth series on colours repeat, with dashes


class Point(NamedTuple):
    """A point of a curve, perhaps with a band."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


class Mark(NamedTuple):
    """A point that is worth a mark, as the best round."""

    series: str
    x: float
    y: float
    words: str


def curves(
    series: Mapping[str, Sequence[Point]],
    x_title: str,
    y_title: str,
    marks: Sequence[Mark] = (),
    height: int = HEIGHT,
    whole: bool = True,
    band: str = "",
) -> Spec:
    """Returns curves with bands and marks; `whole` says that x counts something, and `band` what the bands are."""
    names = [name for name, points in series.items() if points]
    values = [
        {
            "series": name,
            "x": short(point.x),
            "y": short(point.y),
            **({"low": short(point.low), "high": short(point.high)} if banded(point) else {}),
        }
        for name in names
        for point in series[name]
    ]
    has_bands = any("low" in value for value in values)
    colour = colour_by_series(names)
    x: Spec = {
        "field": "x",
        "type": "quantitative",
        "title": x_title,
        "scale": {"nice": not whole, "zero": not whole},
        "axis": {"tickMinStep": 1, "format": "d", "tickCount": 8} if whole else {"tickCount": 8},
    }
    y: Spec = {"field": "y", "type": "quantitative", "title": y_title, "scale": {"zero": False, "nice": True}}
    tooltip = [
        *([{"field": "series", "title": " "}] if len(names) > 1 else []),
        {"field": "x", "title": x_title},
        {"field": "y", "title": y_title, "format": ".4~g"},
    ]
    if has_bands:
        tooltip += [{"field": end, "title": f"{band}, {end}".strip(", "), "format": ".4~g"} for end in ("low", "high")]
    layers: list[Spec] = []
    if has_bands:
        area = {"y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour}
        layers.append({"mark": {"type": "area", "opacity": 0.16}, "encoding": area})
    dashes = {"strokeDash": dash_by_series(names)} if len(names) > len(PALETTE) else {}
    layers.append({"mark": {"type": "line", "clip": True}, "encoding": {"y": y, "color": colour, **dashes}})
    if marks:
        layers.append(mark_layer(marks, y, colour))
    layers.append(hover_layer(y, colour, tooltip))
    return {
        **figure(height),
        "data": {"values": values},
        "transform": [SHOWN],
        "encoding": {"x": x},
        "layer": layers,
    }


def hover_layer(y: Spec, colour: Spec, tooltip: Sequence[Spec]) -> Spec:
    """Returns the point nearest to the pointer, with what it says."""
    nearest = {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout"}
    return {
        "params": [{"name": "hover", "select": nearest}],
        "mark": {"type": "point", "filled": True, "size": 55},
        "encoding": {
            "y": y,
            "color": colour,
            "opacity": {"condition": {"param": "hover", "empty": False, "value": 1}, "value": 0},
            "tooltip": tooltip,
        },
    }


def mark_layer(marks: Sequence[Mark], y: Spec, colour: Spec) -> Spec:
    """Returns circles at the points that are worth one."""
    return {
        "data": {"values": [mark._asdict() | {"x": short(mark.x), "y": short(mark.y)} for mark in marks]},
        "transform": [SHOWN],
        "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1, "style": "paper-line"},
        "encoding": {"y": y, "color": colour, "tooltip": {"field": "words"}},
    }


def points(rows: Sequence[Mapping[str, Any]], x_title: str, y_title: str) -> Spec:
    """Returns a point with whiskers for each row (series, x, y, low, high), in the colour of its series."""
    names = [str(row["series"]) for row in rows]
    colour = colour_by_series(names)
    colour["legend"] = {"symbolType": "circle"}
    y: Spec = {"field": "y", "type": "quantitative", "title": y_title, "scale": {"zero": False}}
    tooltip = [
        {"field": "series", "title": " "},
        {"field": "x", "title": x_title, "format": ".4~g"},
        {"field": "y", "title": y_title, "format": ".4~g"},
    ]
    whiskers = {"y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour}
    return {
        **figure(HEIGHT),
        "data": {"values": [{**row, **{name: short(row[name]) for name in ("x", "y", "low", "high")}} for row in rows]},
        "transform": [SHOWN],
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "title": x_title, "axis": {"grid": True, "tickCount": 8}}
        },
        "layer": [
            {"mark": {"type": "rule", "strokeWidth": 1.5}, "encoding": whiskers},
            {
                "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
                "encoding": {"y": y, "color": colour, "tooltip": tooltip},
            },
        ],
    }


def trials(dots: Sequence[Mapping[str, Any]], steps: Sequence[tuple[int, float]], y_title: str) -> Spec:
    """Returns a dot for each trial (series, x, y, words), in the colour of its state, and steps of the best so far."""
    states = list(dict.fromkeys(str(dot["series"]) for dot in dots))
    colour = colour_by_series(states)
    colour["legend"] = {"symbolType": "circle"} if len(states) > 1 else None
    y: Spec = {"field": "y", "type": "quantitative", "title": y_title, "scale": {"zero": False}}
    tooltip = [
        {"field": "x", "title": "trial"},
        {"field": "series", "title": "state"},
        {"field": "y", "title": y_title, "format": ".4~g"},
        {"field": "words", "title": "values"},
    ]
    best: Spec = {
        "data": {"values": [{"x": number, "y": short(value)} for number, value in steps]},
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.5, "style": "soft-line"},
        "encoding": {"y": y},
    }
    return {
        **figure(HEIGHT),
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "title": "trial", "axis": {"tickMinStep": 1, "format": "d"}}
        },
        "layer": [
            *([best] if steps else []),
            {
                "data": {"values": [{**dot, "y": short(dot["y"])} for dot in dots]},
                "transform": [SHOWN],
                "mark": {"type": "point", "filled": True, "size": 60, "opacity": 0.9},
                "encoding": {"y": y, "color": colour, "tooltip": tooltip},
            },
        ],
    }


# The parts of a figure.


def figure(height: int) -> Spec:
    """Returns what all figures have: the width of their place, and the names of series that are hidden."""
    return {
        "$schema": SCHEMA,
        "width": "container",
        "height": height,
        "params": [{"name": "hidden", "value": []}],
    }


def colour_by_series(names: Sequence[str]) -> Spec:
    """Returns colours by the order of the names, which stay when others are hidden; one name needs no legend."""
    scale = {"domain": list(names), "range": [PALETTE[index % len(PALETTE)] for index in range(len(names))]}
    return {
        "field": "series",
        "type": "nominal",
        "scale": scale,
        "legend": {"symbolOpacity": 1} if len(names) > 1 else None,
    }


def dash_by_series(names: Sequence[str]) -> Spec:
    """Returns dashes by the order of the names, so that no two have both the same colour and the same dashes."""
    dashes = [DASHES[index // len(PALETTE) % len(DASHES)] for index in range(len(names))]
    return {"field": "series", "type": "nominal", "scale": {"domain": list(names), "range": dashes}}


def banded(point: Point) -> bool:
    return point.low is not None and point.high is not None


def short(value: float | None) -> float:
    """Returns a number with five digits that count, for a small page."""
    return float(f"{value:.5g}") if value is not None else math.nan
