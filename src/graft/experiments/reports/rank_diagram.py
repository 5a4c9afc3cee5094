"""The critical-difference diagram of Demsar (2006), drawn in inches so that nothing can leave the picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graft.experiments.comparison.comparison import Comparison
from graft.experiments.comparison.differences import Ranking, rank_rows
from graft.experiments.reports.paper_style import INK, ONE_COLUMN, SOFT, looks, shorten, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LETTER = 0.066  # inches that a letter of a name takes at most, on average
LINE, BAR, ABOVE = 0.17, 0.085, 0.62  # inches: between names, between bars, and above the axis
CROWDED = 12  # rows beyond which only every other rank is written
THIN: dict[str, Any] = {"linewidth": 0.8, "solid_capstyle": "butt"}


@dataclass(frozen=True)
class RankDiagram:
    """Where everything stands: the axis of ranks at height 0, bars and names below it."""

    ranking: Ranking
    width: float

    @property
    def names(self) -> dict[str, str]:
        """Returns the rows, from the best on, with the names that are shown."""
        return {row: shorten(row, 30) for row in self.ranking.ranks}

    @property
    def margin(self) -> float:
        """Returns the room for the longest name and its rank."""
        return LETTER * (6 + max(map(len, self.names.values())))

    @property
    def bars(self) -> float:
        return BAR * len(self.ranking.groups) + 0.06

    @property
    def left(self) -> int:
        """Returns how many rows, the better ones, are named on the left."""
        return (len(self.names) + 1) // 2

    @property
    def depth(self) -> float:
        return self.bars + LINE * self.left + 0.06

    def x(self, rank: float) -> float:
        return self.margin + (self.width - 2 * self.margin) * (rank - 1) / (len(self.names) - 1)

    def draw_axis(self, panel: Axes) -> None:
        """Draws the scale of ranks, and above it how far they must be apart."""
        panel.plot([self.x(1), self.x(len(self.names))], [0, 0], color=INK, **THIN)
        for tick in range(1, len(self.names) + 1):
            panel.plot([self.x(tick)] * 2, [0, 0.06], color=INK, **THIN)
            if len(self.names) <= CROWDED or tick % 2 == 1:
                panel.text(self.x(tick), 0.09, str(tick), ha="center", va="bottom", fontsize=7)
        difference = self.ranking.critical_difference
        longest = len(self.names) - 1  # ranks differ no more than that
        start, end = self.x(1), self.x(1 + min(difference, longest))
        panel.plot([start, end], [0.33, 0.33], color=SOFT, linewidth=1.6, solid_capstyle="butt")
        if difference <= longest:
            for edge in (start, end):
                panel.plot([edge, edge], [0.30, 0.36], color=SOFT, **THIN)
        more = ", wider than the axis" if difference > longest else ""
        panel.text(start, 0.39, f"CD = {difference:.2f}{more}", ha="left", va="bottom", fontsize=7, color=SOFT)

    def draw_row(self, panel: Axes, index: int, row: str) -> None:
        """Draws a rank and leads it to its name."""
        rank, better = self.ranking.ranks[row], index < self.left
        level = -self.bars - LINE * (0.5 + (index if better else len(self.names) - 1 - index))
        edge = self.margin - 0.06 if better else self.width - self.margin + 0.06
        panel.plot([self.x(rank), self.x(rank), edge], [0, level, level], color=SOFT, **THIN)
        panel.plot([self.x(rank)], [0], "o", color=looks([row])[row].colour, markersize=4.2, zorder=3)
        words = (self.names[row], f"{rank:.2f}")
        text = "  ".join(words if better else reversed(words))
        panel.text(
            edge + (-0.04 if better else 0.04), level, text, ha="right" if better else "left", va="center", fontsize=7.5
        )

    def draw_groups(self, panel: Axes) -> None:
        """Draws a bar below rows that cannot be told apart."""
        for index, group in enumerate(self.ranking.groups):
            ranks = [self.ranking.ranks[row] for row in group]
            ends = [self.x(min(ranks)) - 0.05, self.x(max(ranks)) + 0.05]
            panel.plot(ends, [-BAR * (index + 1)] * 2, color=INK, linewidth=2.6, solid_capstyle="round")


def plot_ranks(comparison: Comparison, width: float | None = None) -> Figure:
    """Draws average ranks over columns, the best on the left; a bar joins rows that cannot be told apart (Nemenyi)."""
    return draw_ranking(rank_rows(comparison), width)


@styled
def draw_ranking(ranking: Ranking, width: float | None = None) -> Figure:
    """Draws a ranking as `plot_ranks` does."""
    from graft.experiments.reports.paper_figure import PaperFigure

    widest = RankDiagram(ranking, 0).margin
    diagram = RankDiagram(ranking, width or max(ONE_COLUMN, 2 * widest + max(1.4, 0.15 * len(ranking.ranks))))
    height = diagram.depth + ABOVE
    figure = PaperFigure(figsize=(diagram.width, height))
    panel = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    panel.set_axis_off()
    panel.set_xlim(0, diagram.width)
    panel.set_ylim(-diagram.depth, ABOVE)
    diagram.draw_axis(panel)
    for index, row in enumerate(ranking.ranks):
        diagram.draw_row(panel, index, row)
    diagram.draw_groups(panel)
    return figure
