"""Small figures of a study as SVG text: a panel a column of the table, bars or curves, deviations as whiskers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#1f6fb4", "#c4622d", "#3d8b57", "#8a5bb0", "#b58a1d", "#5b6675")
GREY, INK = "#e3e8ee", "#5b6675"
LEFT, TOP, HEIGHT, GAP = 44, 30, 190, 24
SPACE_BELOW = 92
PANEL_WIDTH = 300  # of a panel with curves

Bars = Mapping[str, tuple[float, float]]  # label -> mean, deviation
Points = Mapping[str, Sequence[tuple[float, float, float]]]  # curve -> x, mean, deviation
Series = Mapping[str, Sequence[tuple[float, float]]]  # curve -> x, value


def bars(panels: Sequence[tuple[str, Bars]]) -> str:
    """Returns a bar chart of each panel; the axis begins near the lowest bar, so compare tops, not areas."""
    width = max(26 * max(len(values) for _, values in panels) + 10, 150)
    parts: list[str] = []
    for number, (title, values) in enumerate(panels):
        left = panel_left(number, width)
        height = draw_axis(parts, left, width, title, list(values.values()))
        for index, (label, (value, deviation)) in enumerate(values.items()):
            x = left + 8 + 26 * index
            top = height(value)
            parts.append(
                f'<rect x="{x}" y="{top:.1f}" width="18" height="{TOP + HEIGHT - top:.1f}" fill="{colour_of(index)}" '
                f'fill-opacity=".75"><title>{escape(label)}: {value:.2f} ± {deviation:.2f}</title></rect>'
            )
            parts.append(whisker(x + 9, height(value - deviation), height(value + deviation), INK))
            foot = f"{x + 13} {TOP + HEIGHT + 10}"
            parts.append(f'<text transform="translate({foot}) rotate(-60)" text-anchor="end">{escape(label)}</text>')
    longest = max(len(label) for _, values in panels for label in values)
    below = max(SPACE_BELOW, 24 + math.ceil(6.2 * longest))  # they stand at an angle: about 6 units up for a letter
    return picture(parts, len(panels), width, "Test accuracy of each variant, in percent", below)


def lines(panels: Sequence[tuple[str, Points]], axis_label: str) -> str:
    """Curves with whiskers over the values of a setting, which are evenly spaced whatever lies between them."""
    parts: list[str] = []
    names = curve_names(panels)
    for number, (title, curves) in enumerate(panels):
        left = panel_left(number, PANEL_WIDTH)
        height = draw_axis(parts, left, PANEL_WIDTH, title, [point[1:] for curve in curves.values() for point in curve])
        ticks = sorted({point[0] for curve in curves.values() for point in curve})
        spacing = (PANEL_WIDTH - 32) / max(len(ticks) - 1, 1)
        across = {tick: left + 16 + spacing * index for index, tick in enumerate(ticks)}
        label_axis(parts, left, [(x, f"{tick:g}") for tick, x in across.items()], axis_label)
        for name, curve in curves.items():
            index = names.index(name)
            colour = colour_of(index)
            path = " ".join(f"{across[x]:.1f},{height(value):.1f}" for x, value, _ in curve)
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dash_style(index)}/>'
            )
            for x, value, deviation in curve:
                parts.append(whisker(across[x], height(value - deviation), height(value + deviation), colour))
                parts.append(
                    f'<circle cx="{across[x]:.1f}" cy="{height(value):.1f}" r="3" fill="{colour}">'
                    f"<title>{escape(name)}, {escape(axis_label)} {x:g}: {value:.2f} ± {deviation:.2f}</title></circle>"
                )
    below = legend(parts, names)
    return picture(parts, len(panels), PANEL_WIDTH, f"Test accuracy against {axis_label}, in percent", below)


def curves(panels: Sequence[tuple[str, Series]], axis_label: str) -> str:
    """Curves over a plain numeric axis, without whiskers."""
    parts: list[str] = []
    names = curve_names(panels)
    for number, (title, series) in enumerate(panels):
        left = panel_left(number, PANEL_WIDTH)
        values = [(point[1], 0.0) for curve in series.values() for point in curve]
        height = draw_axis(parts, left, PANEL_WIDTH, title, values)
        last = max(point[0] for curve in series.values() for point in curve)
        step = nice_step(last / 5)
        ticks = [(left + PANEL_WIDTH * mark * step / last, f"{mark * step:g}") for mark in range(int(last / step) + 1)]
        label_axis(parts, left, ticks, axis_label)
        for name, curve in series.items():
            index = names.index(name)
            path = " ".join(f"{left + PANEL_WIDTH * x / last:.1f},{height(value):.1f}" for x, value in curve)
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{colour_of(index)}" stroke-width="1.5"'
                f"{dash_style(index)}><title>{escape(name)}</title></polyline>"
            )
    below = legend(parts, names)
    return picture(parts, len(panels), PANEL_WIDTH, f"Test accuracy against {axis_label}, in percent", below)


@dataclass(frozen=True)
class Heat:
    """A heat map of numbers between 0 and 1; None is left white."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    labels: Sequence[Sequence[float]] | None = None  # numbers to print in the cells, where they are not the values


def heat_maps(maps: Sequence[Heat]) -> str:
    """Heat maps one below the other: the darker, the larger the value."""
    cell_width, cell_height, left, top = 64, 20, 120, 46
    parts: list[str] = []
    y, width = 0, 0
    for heat in maps:
        parts.append(f'<text x="8" y="{y + 18}" font-weight="600">{escape(heat.title)}</text>')
        for column, name in enumerate(heat.columns):
            middle = left + cell_width * (column + 0.5)
            size = ' font-size="9"' if len(name) > 6 else ""
            parts.append(f'<text x="{middle}" y="{y + top - 6}" text-anchor="middle"{size}>{escape(name)}</text>')
        for row, (name, values) in enumerate(zip(heat.rows, heat.values, strict=True)):
            row_top = y + top + cell_height * row
            parts.append(f'<text x="{left - 6}" y="{row_top + 14}" text-anchor="end">{escape(name)}</text>')
            for column, value in enumerate(values):
                if value is None:
                    continue
                label = value if heat.labels is None else heat.labels[row][column]
                ink = "#ffffff" if value > 0.55 else INK
                parts.append(
                    f'<rect x="{left + cell_width * column}" y="{row_top}" width="{cell_width - 1}" '
                    f'height="{cell_height - 1}" fill="{COLOURS[0]}" fill-opacity="{0.06 + 0.94 * value:.3f}"/><text '
                    f'x="{left + cell_width * (column + 0.5)}" y="{row_top + 14}" text-anchor="middle" font-size="10" '
                    f'style="fill: {ink}">{short_number(label)}</text>'
                )
        y += top + cell_height * len(heat.rows) + 24
        width = max(width, left + cell_width * len(heat.columns) + 16)
    return svg(parts, width, y, "Maps of the data of each client")


def short_number(value: float) -> str:
    """Returns a number in at most five characters."""
    return f"{value:.0f}" if float(value).is_integer() and value > 1 else f"{value:.2f}"


# The parts of a figure.


def panel_left(number: int, width: float) -> float:
    """Returns the left edge of a panel's axis."""
    return LEFT + number * (width + LEFT + GAP)


def curve_names(panels: Sequence[tuple[str, Points]] | Sequence[tuple[str, Series]]) -> list[str]:
    """Returns the names of all curves, each once, in the order in which they appear."""
    return list(dict.fromkeys(name for _, curves in panels for name in curves))


def colour_of(index: int) -> str:
    """Returns the colour of a curve or bar; colours repeat after six."""
    return COLOURS[index % len(COLOURS)]


def dash_style(index: int) -> str:
    """Returns the dashes of a curve, from the seventh on, where colours repeat."""
    return ' stroke-dasharray="5 3"' if index >= len(COLOURS) else ""


def legend(parts: list[str], names: Sequence[str]) -> int:
    """Name the curves below the figure; returns the space that this takes."""
    width = max(90, 30 + 7 * max(len(name) for name in names))
    columns = max(330 // width, 1)  # no wider than one panel
    for index, name in enumerate(names if len(names) > 1 else []):
        x, y = LEFT + width * (index % columns), TOP + HEIGHT + 54 + 18 * (index // columns)
        parts.append(
            f'<line x1="{x}" x2="{x + 16}" y1="{y - 4}" y2="{y - 4}" stroke="{colour_of(index)}" '
            f'stroke-width="2"{dash_style(index)}/><text x="{x + 22}" y="{y}">{escape(name)}</text>'
        )
    return max(SPACE_BELOW, 54 + 18 * math.ceil(len(names) / columns))


def draw_axis(
    parts: list[str], left: float, width: float, title: str, values: Sequence[tuple[float, ...]]
) -> Callable[[float], float]:
    """Draws a panel's title, grid and vertical axis; returns the function from an accuracy to its y coordinate."""
    low = min(value - deviation for value, deviation in values)
    high = max(value + deviation for value, deviation in values)
    step = nice_step((high - low) / 4)
    bottom, top = step * math.floor(low / step), step * math.ceil(high / step)
    if bottom == top:
        bottom, top = bottom - step, top + step

    def height(value: float) -> float:
        return TOP + HEIGHT * (top - value) / (top - bottom)

    parts.append(f'<text x="{left}" y="{TOP - 12}" font-weight="600">{escape(title)}</text>')
    for mark in range(round((top - bottom) / step) + 1):
        y = height(bottom + mark * step)
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GREY}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{bottom + mark * step:g}</text>')
    return height


def label_axis(parts: list[str], left: float, ticks: Sequence[tuple[float, str]], label: str) -> None:
    """Draws the numbers along a panel's horizontal axis, and its label below them."""
    for x, text in ticks:
        parts.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{text}</text>')
    middle = left + PANEL_WIDTH / 2
    parts.append(f'<text x="{middle}" y="{TOP + HEIGHT + 34}" text-anchor="middle">{escape(label)}</text>')


def nice_step(rough: float) -> float:
    """Returns the smallest of 1, 2 and 5 times a power of ten that is at least so large."""
    power = math.pow(10, math.floor(math.log10(max(rough, 0.05))))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))


def whisker(x: float, low: float, high: float, colour: str) -> str:
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{colour}"/>'


def picture(parts: Sequence[str], panels: int, width: float, label: str, below: int = SPACE_BELOW) -> str:
    """Returns the SVG of panels side by side, with so much space below them."""
    return svg(parts, panels * (width + LEFT + GAP) + GAP, TOP + HEIGHT + below, label)


def svg(parts: Sequence[str], width: float, height: float, label: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(label)}" font-family="system-ui, sans-serif" font-size="12" fill="{INK}">'
        f"{''.join(parts)}</svg>"
    )
