"""How figures for papers look: sizes, fonts that embed, colours, and series that can be told apart. Draws nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from graft.errors import InputError
from graft.experiments.reports.colours import LIGHT, PALETTE

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ONE_COLUMN, TWO_COLUMNS = 3.25, 6.75  # inches: a column, and the page, of a paper with two columns
PANELS_ABREAST = 3
DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
INK, SOFT, RULE = LIGHT["ink"], LIGHT["soft"], LIGHT["rule"]
STYLE: Any = {  # Matplotlib's types list every setting by name
    "pdf.fonttype": 42,  # TrueType, embedded: conferences refuse the default, Type 3
    "ps.fonttype": 42,
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",  # comes with Matplotlib, so that a figure is the same on every machine
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "text.parse_math": False,  # names of methods and data are text, whatever they hold
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.unicode_minus": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.6,
    "legend.frameon": False,
    "savefig.dpi": 300,
    "figure.dpi": 150,
}

Given = ParamSpec("Given")
Drawn = TypeVar("Drawn")


def styled(draw: Callable[Given, Drawn]) -> Callable[Given, Drawn]:
    """Gives a function that draws the style of papers; settings of whoever calls it stay as they were."""

    @wraps(draw)
    def inner(*arguments: Given.args, **options: Given.kwargs) -> Drawn:
        with rc_context():
            return draw(*arguments, **options)

    return inner


def rc_context() -> Any:
    """Returns a context with the style of papers."""
    try:
        import matplotlib
    except ImportError:
        raise InputError(
            "Figures for papers need Matplotlib: pip install matplotlib. Tables (--latex, --csv) do without it."
        ) from None
    return matplotlib.rc_context(STYLE)


@dataclass(frozen=True)
class Look:
    """How one series is drawn."""

    colour: str
    dash: Any
    marker: str


def looks(rows: Sequence[str], references: Sequence[str] = ()) -> dict[str, Look]:
    """Returns a look for every row, no two of them the same: at most eight are solid, the next eight dashed, and
    references grey dashes."""
    grey = {
        row: Look(SOFT, DASHES[1 + index % (len(DASHES) - 1)], MARKERS[-1 - index % len(MARKERS)])
        for index, row in enumerate(references)
    }
    return grey | {
        row: Look(
            PALETTE[index % len(PALETTE)],
            DASHES[index // len(PALETTE) % len(DASHES)],
            MARKERS[(index + index // len(PALETTE)) % len(MARKERS)],
        )
        for index, row in enumerate(rows)
    }


def panels(
    titles: Sequence[str], height: float, width: float | None = None, abreast: int = PANELS_ABREAST
) -> tuple[Figure, list[Axes]]:
    """Returns a figure with a panel a title: as wide as a column for one, as wide as the page for more."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from graft.experiments.reports.paper_figure import PaperFigure

    down = math.ceil(len(titles) / abreast)
    across = math.ceil(len(titles) / down)
    size = (width or (ONE_COLUMN if len(titles) == 1 else TWO_COLUMNS), height * down)
    engine = ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, wspace=0.03, hspace=0.06)
    figure = PaperFigure(figsize=size, layout=engine)
    axes = figure.subplots(down, across, squeeze=False).flatten().tolist()
    for extra in axes[len(titles) :]:
        extra.remove()
    for panel, title in zip(axes, titles, strict=False):
        panel.set_title(title if len(titles) > 1 else "")
    return figure, axes[: len(titles)]


def legend_below(figure: Figure, handles: Sequence[Any], names: Sequence[str], width: float) -> None:
    """Puts one legend for all panels below them, in as many columns as there is room for."""
    longest = max(map(len, names), default=1)
    abreast = max(1, min(len(names), int(width / (0.36 + 0.058 * longest))))
    figure.legend(handles, names, loc="outside lower center", ncols=abreast, handlelength=2.2, columnspacing=1.2)


def shorten(name: str, longest: int = 34) -> str:
    """Returns a name that fits beside a figure: its end gives way."""
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
