"""Small pictures of a study as SVG text: a panel a column of the table, bars or curves, deviations as whiskers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#1f6fb4", "#c4622d", "#3d8b57", "#8a5bb0", "#b58a1d", "#5b6675")
GREY, INK = "#e3e8ee", "#5b6675"
LEFT, TOP, HEIGHT, GAP = 44, 30, 190, 24
SPACE_BELOW = 92

Bars = Mapping[str, tuple[float, float]]  # label -> mean, deviation
Curves = Mapping[str, Sequence[tuple[float, float, float]]]  # curve -> place, mean, deviation


def bars(panels: Sequence[tuple[str, Bars]]) -> str:
    """A bar a method; the axis begins where it is worth looking, so compare tops, not areas."""
    wide = max(26 * max(len(values) for _, values in panels) + 10, 150)
    parts: list[str] = []
    for number, (title, values) in enumerate(panels):
        left = LEFT + number * (wide + LEFT + GAP)
        height = axis(parts, left, wide, title, list(values.values()))
        for place, (label, (value, spread)) in enumerate(values.items()):
            x = left + 8 + 26 * place
            top, colour = height(value), COLOURS[place % len(COLOURS)]
            parts.append(
                f'<rect x="{x}" y="{top:.1f}" width="18" height="{TOP + HEIGHT - top:.1f}" fill="{colour}" '
                f'fill-opacity=".75"><title>{escape(label)}: {value:.2f} ± {spread:.2f}</title></rect>'
            )
            parts.append(whisker(x + 9, height(value - spread), height(value + spread), INK))
            foot = f"{x + 13} {TOP + HEIGHT + 10}"
            parts.append(f'<text transform="translate({foot}) rotate(-60)" text-anchor="end">{escape(label)}</text>')
    longest = max(len(label) for _, values in panels for label in values)
    below = max(SPACE_BELOW, 24 + math.ceil(6.2 * longest))  # they stand at an angle: about 6 units up for a letter
    return picture(parts, len(panels), wide, "Test accuracy of each variant, in percent", below)


def lines(panels: Sequence[tuple[str, Curves]], axis_label: str) -> str:
    """A curve a series; the tried values stand evenly spaced, whatever lies between them."""
    wide = 300
    parts: list[str] = []
    names = list(dict.fromkeys(name for _, curves in panels for name in curves))
    for number, (title, curves) in enumerate(panels):
        left = LEFT + number * (wide + LEFT + GAP)
        height = axis(parts, left, wide, title, [point[1:] for points in curves.values() for point in points])
        tried = sorted({point[0] for points in curves.values() for point in points})
        across = {value: left + 16 + (wide - 32) * at / max(len(tried) - 1, 1) for at, value in enumerate(tried)}
        for value, x in across.items():
            parts.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{value:g}</text>')
        middle = left + wide / 2
        parts.append(f'<text x="{middle}" y="{TOP + HEIGHT + 34}" text-anchor="middle">{escape(axis_label)}</text>')
        for name, points in curves.items():
            place = names.index(name)
            colour = COLOURS[place % len(COLOURS)]
            path = " ".join(f"{across[x]:.1f},{height(value):.1f}" for x, value, _ in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dash(place)}/>')
            for x, value, spread in points:
                parts.append(whisker(across[x], height(value - spread), height(value + spread), colour))
                parts.append(
                    f'<circle cx="{across[x]:.1f}" cy="{height(value):.1f}" r="3" fill="{colour}">'
                    f"<title>{escape(name)}, {escape(axis_label)} {x:g}: {value:.2f} ± {spread:.2f}</title></circle>"
                )
    below = legend(parts, names)
    return picture(parts, len(panels), wide, f"Test accuracy against {axis_label}, in percent", below)


def curves(panels: Sequence[tuple[str, Mapping[str, Sequence[tuple[float, float]]]]], axis_label: str) -> str:
    """A curve a series over a plain numeric axis, without whiskers."""
    wide = 300
    parts: list[str] = []
    names = list(dict.fromkeys(name for _, series in panels for name in series))
    for number, (title, series) in enumerate(panels):
        left = LEFT + number * (wide + LEFT + GAP)
        height = axis(parts, left, wide, title, [(point[1], 0.0) for points in series.values() for point in points])
        last = max(point[0] for points in series.values() for point in points)
        step = nice_step(last / 5)
        for mark in range(int(last / step) + 1):
            x = left + wide * mark * step / last
            parts.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{mark * step:g}</text>')
        middle = left + wide / 2
        parts.append(f'<text x="{middle}" y="{TOP + HEIGHT + 34}" text-anchor="middle">{escape(axis_label)}</text>')
        for name, points in series.items():
            path = " ".join(f"{left + wide * x / last:.1f},{height(value):.1f}" for x, value in points)
            colour = COLOURS[names.index(name) % len(COLOURS)]
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dash(names.index(name))}>'
                f"<title>{escape(name)}</title></polyline>"
            )
    below = legend(parts, names)
    return picture(parts, len(panels), wide, f"Test accuracy against {axis_label}, in percent", below)


@dataclass(frozen=True)
class Heat:
    """A map of numbers between 0 and 1; None is left white."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    labels: Sequence[Sequence[float]] | None = None  # what to write there, where it is not the value


def heat_maps(maps: Sequence[Heat]) -> str:
    """Maps one below the other: the darker, the more."""
    cell_wide, cell_high, left, top = 64, 20, 120, 46
    parts: list[str] = []
    y, width = 0, 0
    for one in maps:
        parts.append(f'<text x="8" y="{y + 18}" font-weight="600">{escape(one.title)}</text>')
        for at, name in enumerate(one.columns):
            middle = left + cell_wide * (at + 0.5)
            size = ' font-size="9"' if len(name) > 6 else ""
            parts.append(f'<text x="{middle}" y="{y + top - 6}" text-anchor="middle"{size}>{escape(name)}</text>')
        for down, (row, values) in enumerate(zip(one.rows, one.values, strict=True)):
            place = y + top + cell_high * down
            parts.append(f'<text x="{left - 6}" y="{place + 14}" text-anchor="end">{escape(row)}</text>')
            for at, value in enumerate(values):
                if value is None:
                    continue
                said = value if one.labels is None else one.labels[down][at]
                ink = "#ffffff" if value > 0.55 else INK
                parts.append(
                    f'<rect x="{left + cell_wide * at}" y="{place}" width="{cell_wide - 1}" height="{cell_high - 1}" '
                    f'fill="{COLOURS[0]}" fill-opacity="{0.06 + 0.94 * value:.3f}"/><text '
                    f'x="{left + cell_wide * (at + 0.5)}" y="{place + 14}" text-anchor="middle" font-size="10" '
                    f'style="fill: {ink}">{brief(said)}</text>'
                )
        y += top + cell_high * len(one.rows) + 24
        width = max(width, left + cell_wide * len(one.columns) + 16)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}" role="img" '
        f'aria-label="Maps of the data of each client" font-family="system-ui, sans-serif" font-size="12" '
        f'fill="{INK}">{"".join(parts)}</svg>'
    )


def brief(value: float) -> str:
    """A number in at most five characters."""
    return f"{value:.0f}" if float(value).is_integer() and value > 1 else f"{value:.2f}"


def dash(place: int) -> str:
    """Colours come round again after six; then lines are dashed."""
    return ' stroke-dasharray="5 3"' if place >= len(COLOURS) else ""


def legend(parts: list[str], names: Sequence[str]) -> int:
    """Name the curves below the picture; gives the space that this takes."""
    wide = max(90, 30 + 7 * max(len(name) for name in names))
    columns = max(330 // wide, 1)  # no wider than one panel
    for place, name in enumerate(names if len(names) > 1 else []):
        x, y = LEFT + wide * (place % columns), TOP + HEIGHT + 54 + 18 * (place // columns)
        parts.append(
            f'<line x1="{x}" x2="{x + 16}" y1="{y - 4}" y2="{y - 4}" stroke="{COLOURS[place % len(COLOURS)]}" '
            f'stroke-width="2"{dash(place)}/><text x="{x + 22}" y="{y}">{escape(name)}</text>'
        )
    return max(SPACE_BELOW, 54 + 18 * math.ceil(len(names) / columns))


def axis(
    parts: list[str], left: float, wide: float, title: str, values: Sequence[tuple[float, ...]]
) -> Callable[[float], float]:
    """Draw a panel's title, grid and vertical axis; what comes back turns an accuracy into a height."""
    low, high = min(value - spread for value, spread in values), max(value + spread for value, spread in values)
    step = nice_step((high - low) / 4)
    bottom, top = step * math.floor(low / step), step * math.ceil(high / step)
    if bottom == top:
        bottom, top = bottom - step, top + step

    def height(value: float) -> float:
        return TOP + HEIGHT * (top - value) / (top - bottom)

    parts.append(f'<text x="{left}" y="{TOP - 12}" font-weight="600">{escape(title)}</text>')
    for mark in range(round((top - bottom) / step) + 1):
        y = height(bottom + mark * step)
        parts.append(f'<line x1="{left}" x2="{left + wide}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GREY}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{bottom + mark * step:g}</text>')
    return height


def nice_step(rough: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is at least so large."""
    power = math.pow(10, math.floor(math.log10(max(rough, 0.05))))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))


def whisker(x: float, low: float, high: float, colour: str) -> str:
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{colour}"/>'


def picture(parts: Sequence[str], panels: int, wide: float, label: str, below: int = SPACE_BELOW) -> str:
    width, height = panels * (wide + LEFT + GAP) + GAP, TOP + HEIGHT + below
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(label)}" font-family="system-ui, sans-serif" font-size="12" fill="{INK}">'
        f"{''.join(parts)}</svg>"
    )
