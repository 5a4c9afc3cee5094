"""Figures with a row a name, as Vega-Lite: bars, pairs of dots, maps and spreads; and histograms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from graft.experiments.reports.charts import SHOWN, colour_by_series, figure, short
from graft.experiments.reports.colours import PALETTE
from graft.experiments.reports.vega import Spec

STEP = 24  # a row of bars or of a heat map, in pixels


def bars(values: Mapping[str, float], x_title: str, words: Mapping[str, str] | None = None) -> Spec:
    """Returns a horizontal bar for each name, in their order."""
    rows = [{"name": name, "x": short(value), "words": (words or {}).get(name, "")} for name, value in values.items()]
    tooltip: list[Spec] = [{"field": "name", "title": " "}, {"field": "x", "title": x_title, "format": ".4~g"}]
    tooltip += [{"field": "words", "title": " "}] if words else []
    return {
        **figure(STEP * max(len(rows), 1)),
        "data": {"values": rows},
        "mark": {"type": "bar", "color": PALETTE[0], "height": {"band": 0.62}},
        "encoding": {
            "y": {"field": "name", "type": "nominal", "sort": None, "title": None, "axis": {"grid": False}},
            "x": {"field": "x", "type": "quantitative", "title": x_title, "axis": {"grid": True, "tickCount": 6}},
            "tooltip": tooltip,
        },
    }


def pairs(rows: Sequence[tuple[str, float | None, float | None]], names: tuple[str, str], x_title: str) -> Spec:
    """Returns two dots for each name with a line between them, as alone and together."""
    values = [
        {"name": name, "series": names[side], "x": short(score)}
        for name, *scores in rows
        for side, score in enumerate(scores)
        if score is not None
    ]
    spans = [{"name": name, "x": short(a), "to": short(b)} for name, a, b in rows if None not in (a, b)]
    y: Spec = {
        "field": "name",
        "type": "nominal",
        "sort": None,
        "title": None,
        "scale": {"domain": [row[0] for row in rows]},
    }
    x: Spec = {
        "field": "x",
        "type": "quantitative",
        "title": x_title,
        "scale": {"zero": False},
        "axis": {"grid": True, "tickCount": 8},
    }
    sides = [name for name in names if any(value["series"] == name for value in values)]
    colour = colour_by_series(sides)
    colour["scale"]["range"] = [PALETTE[7], PALETTE[0]][-len(sides) :]
    colour["legend"] = {"symbolType": "circle"} if len(sides) > 1 else None
    tooltip = [
        {"field": "name", "title": " "},
        {"field": "series", "title": "model"},
        {"field": "x", "title": x_title, "format": ".4~g"},
    ]
    lines: Spec = {
        "data": {"values": spans},
        "transform": [{"filter": "length(hidden) == 0"}],
        "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.5, "style": "soft"},
        "encoding": {"x2": {"field": "to"}},
    }
    return {
        **figure(STEP * len(rows)),
        "encoding": {"y": y, "x": x},
        "layer": [
            *([lines] if spans else []),
            {
                "data": {"values": values},
                "transform": [SHOWN],
                "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
                "encoding": {"color": colour, "tooltip": tooltip},
            },
        ],
    }


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    table: Sequence[Sequence[float | None]],
    titles: tuple[str, str, str],
    labels: Sequence[Sequence[str]] | None = None,
) -> Spec:
    """Returns a map of numbers between 0 and 1, the darker the larger; `titles` are of rows, columns and values."""
    values = [
        {"row": row, "column": column, "value": short(value), "label": labels[i][j] if labels else ""}
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
        if (value := table[i][j]) is not None
    ]
    tooltip = [{"field": field, "title": title} for field, title in zip(("row", "column"), titles, strict=False)]
    tooltip.append({"field": "value", "title": titles[2], "format": ".3~g"})
    tooltip += [{"field": "label", "title": "nodes"}] if labels else []
    return {
        **figure(max(STEP * 20 // max(len(rows), 20), 8) * len(rows)),
        "data": {"values": values},
        "mark": {"type": "rect", "cornerRadius": 2},
        "encoding": {
            "y": {
                "field": "row",
                "type": "nominal",
                "sort": None,
                "title": titles[0],
                "axis": {"grid": False, "labelOverlap": True},
            },
            "x": {
                "field": "column",
                "type": "nominal",
                "sort": None,
                "title": titles[1],
                "axis": {"labelAngle": 0, "domain": False, "labelOverlap": True},
            },
            "color": {
                "field": "value",
                "type": "quantitative",
                "scale": {"domain": [0, 1]},
                "legend": {"title": titles[2], "type": "gradient", "gradientLength": 140, "tickCount": 3},
            },
            "tooltip": tooltip,
        },
    }


def histogram(values: Sequence[float], x_title: str, counted: str = "clients") -> Spec:
    """Returns how many of the values lie where."""
    return {
        **figure(180),
        "data": {"values": [{"x": short(value)} for value in values]},
        "mark": {"type": "bar", "color": PALETTE[0], "binSpacing": 1},
        "encoding": {
            "x": {"field": "x", "bin": {"maxbins": 30}, "title": x_title},
            "y": {"aggregate": "count", "title": counted},
            "tooltip": [
                {"field": "x", "bin": {"maxbins": 30}, "title": x_title},
                {"aggregate": "count", "title": counted},
            ],
        },
    }


def spreads(groups: Mapping[str, Sequence[float]], x_title: str, zero: bool = False) -> Spec:
    """Returns for each name the range, the middle half and the median of its values."""
    rows = [{"name": name, **quartiles(values)} for name, values in groups.items() if values]
    y: Spec = {"field": "name", "type": "nominal", "sort": None, "title": None}
    x: Spec = {
        "field": "low",
        "type": "quantitative",
        "title": x_title,
        "scale": {"zero": zero},
        "axis": {"grid": True},
    }
    tooltip = [
        {"field": "name", "title": " "},
        *({"field": field, "format": ".4~g"} for field in ("low", "q1", "median", "q3", "high")),
        {"field": "n", "title": "clients and seeds"},
    ]
    return {
        **figure(STEP * len(rows)),
        "data": {"values": rows},
        "encoding": {"y": y, "tooltip": tooltip},
        "layer": [
            {"mark": {"type": "rule", "style": "soft"}, "encoding": {"x": x, "x2": {"field": "high"}}},
            {
                "mark": {"type": "bar", "color": PALETTE[0], "height": {"band": 0.5}, "cornerRadius": 2},
                "encoding": {"x": {**x, "field": "q1"}, "x2": {"field": "q3"}},
            },
            {"mark": {"type": "tick", "thickness": 2, "style": "paper"}, "encoding": {"x": {**x, "field": "median"}}},
            *(
                [{"mark": {"type": "rule", "strokeDash": [3, 3], "style": "soft"}, "encoding": {"x": {"datum": 0}}}]
                if zero
                else []
            ),
        ],
    }


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Returns the range, the quartiles and the number of some values."""
    ordered = sorted(values)

    def at(share: float) -> float:
        position = share * (len(ordered) - 1)
        below = math.floor(position)
        above = min(below + 1, len(ordered) - 1)
        return short(ordered[below] + (position - below) * (ordered[above] - ordered[below]))

    return {"low": at(0), "q1": at(0.25), "median": at(0.5), "q3": at(0.75), "high": at(1), "n": len(ordered)}
