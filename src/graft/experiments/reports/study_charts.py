"""The figures of studies as Vega-Lite: a panel for each column of a table, all on one sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graft.experiments.reports.charts import SCHEMA, colour_by_series, dash_by_series, short
from graft.experiments.reports.colours import LIGHT, PALETTE
from graft.experiments.reports.vega import Spec

SERIES_WITH_BANDS = 4  # the most for which the shades of deviations can be told apart
OURS, PAPER, LATER = "ours", "paper", "paper, later version"
SHAPES = {OURS: "circle", PAPER: "diamond", LATER: "triangle-up"}
CELL_WIDTH, CELL_HEIGHT = 46, 20  # of a heat map, in pixels
LETTER = 6.2  # the width of one, about
PANEL_WIDTH = 230
LONGEST = 260  # the width of a name, which is cut where it is longer


class Score(NamedTuple):
    """A mean over seeds with its deviation, and the paper's number where there is one."""

    mean: float
    deviation: float = 0.0
    paper: float | None = None
    later: float | None = None  # that of the paper's later version, where it is another


class CurvePoint(NamedTuple):
    """A point of a curve with the deviation over seeds."""

    x: float
    mean: float
    deviation: float = 0.0


Scores = Mapping[str, Score]  # by row of the table
Curves = Mapping[str, Sequence[CurvePoint]]  # by name


@dataclass(frozen=True)
class Heat:
    """A heat map of numbers between 0 and 1; None is left blank."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    labels: Sequence[Sequence[float]] | None = None  # numbers to print in the cells, where they are not the values


@dataclass(frozen=True)
class Panel:
    """One part of a figure: its title, what is drawn, and how large it is on a sheet."""

    title: str
    body: Spec
    width: int | Spec
    height: int | Spec
    margin: int = 36  # what is written to the left of it takes so much, about


def sheet(panels: Sequence[Panel], columns: int = 3, gap: int = 84) -> Spec:
    """Returns all panels as one figure of a fixed size; they share their legend."""
    columns = min(columns, len(panels))
    margin = max(panel.margin for panel in panels)
    return {
        "$schema": SCHEMA,
        "concat": [
            {**panel.body, "title": panel.title, "width": panel.width, "height": panel.height} for panel in panels
        ],
        "columns": columns,
        "bounds": "flush",  # axes stand in line, whatever numbers are written beside them
        "spacing": {"row": gap, "column": margin + 24},
        "resolve": {"scale": {"color": "shared", "strokeDash": "shared", "shape": "shared"}},
        "config": {"legend": {"columns": legend_columns(panels, columns * (PANEL_WIDTH + margin))}},
    }


def legend_columns(panels: Sequence[Panel], width: int) -> int:
    """Returns how many names of series stand beside each other."""
    names = {value.get("series", "") for panel in panels for value in panel.body["data"]["values"]}
    return max(int(width / (LETTER * max(map(len, names)) + 44)), 1)


def score_panels(columns: Mapping[str, Scores], axis: str) -> list[Panel]:
    """Returns for every column a dot with a whisker for each row, and the paper's number beside it."""
    rows = list(dict.fromkeys(row for scores in columns.values() for row in scores))
    everywhere = [score for scores in columns.values() for score in scores.values()]
    of_paper = [PAPER] if any(score.paper is not None for score in everywhere) else []
    of_later = [LATER] if any(score.later is not None for score in everywhere) else []
    series = [OURS, *of_paper, *of_later]
    colour = colour_by_series(series)
    shape = {**colour, "scale": {"domain": series, "range": [SHAPES[name] for name in series]}}
    x = value_axis("x", axis, 4)
    y: Spec = {
        "field": "row",
        "type": "nominal",
        "scale": {"domain": rows},
        "title": None,
        "axis": {"labelLimit": LONGEST},
    }
    words = tooltip({"row": " ", "series": "whose"}, {"x": axis, "deviation": "±"})
    dots = {"mark": {"type": "point", "size": 50, "strokeWidth": 2, "opacity": 1}}
    layers = [
        whiskers("x", x, {"color": colour}),
        {**dots, "encoding": {"x": x, "color": colour, "shape": shape, "tooltip": words}},
    ]
    margin = min(round(LETTER * max(map(len, rows), default=0)), LONGEST) + 12
    return [
        Panel(
            title,
            {"data": {"values": score_values(scores)}, "encoding": {"y": y}, "layer": layers},
            PANEL_WIDTH,
            {"step": 18},
            margin,
        )
        for title, scores in columns.items()
    ]


def score_values(scores: Scores) -> list[Spec]:
    """Returns our numbers with their deviations, then the paper's, then those of its later version."""
    ours = [
        {"row": row, "series": OURS, "x": short(score.mean), **spread(score.mean, score.deviation)}
        for row, score in scores.items()
    ]
    papers = [
        {"row": row, "series": PAPER, "x": short(score.paper)}
        for row, score in scores.items()
        if score.paper is not None
    ]
    later = [
        {"row": row, "series": LATER, "x": short(score.later)}
        for row, score in scores.items()
        if score.later is not None
    ]
    return [*ours, *papers, *later]


def setting_panels(columns: Mapping[str, Curves], setting: str, axis: str) -> list[Panel]:
    """Returns curves with whiskers over the values of a setting, evenly spaced whatever lies between them."""
    names = curve_names(columns)
    look = series_look(names)
    y = value_axis("y", axis, 5)
    words = tooltip({"series": " "} if len(names) > 1 else {}, {"x": setting, "y": axis, "deviation": "±"})
    layers = [
        {"mark": "line", "encoding": {"y": y, **look}},
        whiskers("y", y, {"color": look["color"]}),
        {
            "mark": {"type": "point", "filled": True, "size": 36, "opacity": 1},
            "encoding": {"y": y, "color": look["color"], "tooltip": words},
        },
    ]
    panels = []
    for title, curves in columns.items():
        ticks = sorted({point.x for curve in curves.values() for point in curve})
        x: Spec = {"field": "x", "type": "ordinal", "title": setting, "scale": {"domain": ticks}}
        x["axis"] = {"labelAngle": 0, "labelOverlap": True, "format": "~g"}
        body = {"data": {"values": curve_values(curves)}, "encoding": {"x": x}, "layer": layers}
        panels.append(Panel(title, body, PANEL_WIDTH, 190))
    return panels


def round_panels(columns: Mapping[str, Curves], axis: str) -> list[Panel]:
    """Returns curves over rounds, with bands of one deviation where there are few of them."""
    names = curve_names(columns)
    look = series_look(names)
    y = value_axis("y", axis, 5)
    x: Spec = {"field": "x", "type": "quantitative", "title": "round", "scale": {"nice": False, "zero": False}}
    x["axis"] = {"tickMinStep": 1, "format": "d", "tickCount": 6}
    words = tooltip({"series": " "} if len(names) > 1 else {}, {"x": "round", "y": axis, "deviation": "±"})
    band = {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "area", "opacity": 0.14},
        "encoding": {
            "y": {**y, "field": "low"},
            "y2": {"field": "high"},
            "color": look["color"],
        },
    }
    lines = {"mark": {"type": "line", "strokeWidth": 1.8}, "encoding": {"y": y, **look, "tooltip": words}}
    layers = [*([band] if len(names) <= SERIES_WITH_BANDS else []), lines]
    return [
        Panel(
            title, {"data": {"values": curve_values(curves)}, "encoding": {"x": x}, "layer": layers}, PANEL_WIDTH, 190
        )
        for title, curves in columns.items()
    ]


def heat_panels(maps: Sequence[Heat]) -> list[Panel]:
    """Returns heat maps with a number in every cell: the darker, the larger the value."""
    panels = []
    for heat in maps:
        values = [
            {"row": row, "column": column, "value": short(value), "label": short_number(label)}
            for i, row in enumerate(heat.rows)
            for j, column in enumerate(heat.columns)
            if (value := heat.values[i][j]) is not None
            and (label := value if heat.labels is None else heat.labels[i][j]) is not None
        ]
        across: Spec = {"field": "column", "type": "nominal", "title": None, "scale": {"domain": list(heat.columns)}}
        across["axis"] = {"orient": "top", "labelAngle": 0, "domain": False, "labelPadding": 4}
        down: Spec = {"field": "row", "type": "nominal", "title": None, "scale": {"domain": list(heat.rows)}}
        down["axis"] = {"grid": False}
        fill = {"field": "value", "type": "quantitative", "legend": None, "scale": {"domain": [0, 1], "range": RAMP}}
        ink = {"condition": {"test": "datum.value > 0.55", "value": "white"}, "value": LIGHT["ink"]}
        body: Spec = {
            "data": {"values": values},
            "encoding": {
                "x": across,
                "y": down,
                "tooltip": tooltip({"row": "client", "column": " ", "label": " "}, {}),
            },
            "layer": [
                {"mark": {"type": "rect", "stroke": LIGHT["paper"]}, "encoding": {"color": fill}},
                {"mark": {"type": "text", "fontSize": 10}, "encoding": {"text": {"field": "label"}, "color": ink}},
            ],
        }
        widest = max(CELL_WIDTH, LETTER * max(len(name) for name in heat.columns) + 6)
        panels.append(Panel(heat.title, body, {"step": widest}, {"step": CELL_HEIGHT}))
    return panels


RAMP = [LIGHT["low"], LIGHT["high"]]


# The parts of a panel.


def value_axis(field: str, title: str, ticks: int) -> Spec:
    """Returns an axis from near the lowest value to a tick at its end, so that titles of panels stand in line."""
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": {"zero": False, "nice": ticks},
        "axis": {"grid": True, "tickCount": ticks, "labelOverlap": True},
    }


def curve_names(columns: Mapping[str, Curves]) -> list[str]:
    """Returns the names of all curves, each once, in the order in which they appear."""
    return list(dict.fromkeys(name for curves in columns.values() for name in curves))


def series_look(names: Sequence[str]) -> Spec:
    """Returns colours by the order of the names and, where these repeat, dashes."""
    dashes = {"strokeDash": dash_by_series(names)} if len(names) > len(PALETTE) else {}
    return {"color": colour_by_series(names), **dashes}


def curve_values(curves: Curves) -> list[Spec]:
    return [
        {"series": name, "x": short(point.x), "y": short(point.mean), **spread(point.mean, point.deviation)}
        for name, curve in curves.items()
        for point in curve
    ]


def spread(mean: float, deviation: float) -> Spec:
    """Returns the ends of a whisker; where there is one seed only, there is none."""
    if not deviation:
        return {}
    return {"deviation": short(deviation), "low": short(mean - deviation), "high": short(mean + deviation)}


def whiskers(along: str, scale: Spec, look: Spec) -> Spec:
    """Returns lines of one deviation to either side, along x or y."""
    ends = {along: {**scale, "field": "low"}, f"{along}2": {"field": "high"}}
    return {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.6},
        "encoding": {**ends, **look},
    }


def tooltip(words: Mapping[str, str], numbers: Mapping[str, str]) -> list[Spec]:
    """Returns the fields that a pointer shows, with their titles."""
    named: list[Spec] = [{"field": field, "type": "nominal", "title": title} for field, title in words.items()]
    return named + [
        {"field": field, "type": "quantitative", "title": title, "format": ".4~g"} for field, title in numbers.items()
    ]


def short_number(value: float) -> str:
    """Returns a count as it is, and any other number with two decimals."""
    return str(value) if isinstance(value, int) else f"{value:.2f}"
