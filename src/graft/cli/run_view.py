"""How a run looks on a terminal while it goes on: lines of text that fit into its width and height."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from graft.cli.run_state import WAYS, RunState, short_time, size_text
from graft.federation.metric_names import METRICS, format_metric
from graft.files import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

WIDEST = 110  # columns; wider lines are harder to read, not easier
NARROW = 60  # columns below which words no longer stand in a column of their own
LABEL = 14  # columns of the words before each line
MOST_ROWS = 12  # of bars of clients
LONGEST_NAME = 18
ACCENT, FAINT, BEST = "cyan", "dim", "green"


class Glyphs(NamedTuple):
    """What curves and bars are drawn with."""

    done: str
    to_come: str
    heights: str  # of a curve, low to high
    parts: str  # of one cell of a bar, short to full
    spinner: str
    dot: str
    cut: str


UNICODE = Glyphs("━", "─", "▁▂▃▄▅▆▇█", "╸━", "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", " · ", "…")
ASCII = Glyphs("=", "-", "_.-~=*#@", "=", "-\\|/", ", ", "~")


class View:
    """Lines that are drawn anew each time they are rendered, as wide and as many as fit."""

    def __init__(self) -> None:
        self.widths: list[int] = []  # of the lines that were drawn last

    def lines(self, width: int, height: int, glyphs: Glyphs) -> Iterator[Text]:
        """Yields the lines, the most important ones first."""
        raise NotImplementedError

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs = ASCII if options.ascii_only or options.legacy_windows else UNICODE
        width, height = max(min(options.max_width - 1, WIDEST), 10), max(options.size.height - 1, 1)
        lines = list(self.lines(width, height, glyphs))[:height]
        for line in lines:
            line.truncate(width, overflow="ellipsis" if glyphs is UNICODE else "crop")
        self.widths = [line.cell_len for line in lines]
        yield Text("\n").join(lines)


class RunView(View):
    """A run; where there is little room, less is shown of it."""

    def __init__(self, state: RunState) -> None:
        super().__init__()
        self.state = state
        self._chosen: tuple[float, list[int]] = (-math.inf, [])  # which of many clients are shown, and since when

    def lines(self, width: int, height: int, glyphs: Glyphs) -> Iterator[Text]:
        state = self.state
        above = [self.title(width, glyphs)]
        if state.round:
            above.append(self.rounds(width, glyphs))
        below = [*self.scores(width, glyphs), *self.traffic(width)] if state.round else []
        room = height - len(above) - len(below) - 1
        bars = list(self.clients(width, min(room, MOST_ROWS), glyphs)) if room > 0 else []
        yield from above
        yield from below
        if bars:
            yield Text()
            yield from bars

    def title(self, width: int, glyphs: Glyphs) -> Text:
        """Returns what runs, and what it is at."""
        state = self.state
        seconds = time.monotonic() - state.begun
        frame = glyphs.spinner[int(seconds * 3) % len(glyphs.spinner)]
        right = Text.assemble((f"{frame} ", ACCENT), state.phase, (f"  {short_time(int(seconds))}", FAINT))
        left = Text.assemble((printable(state.label), "bold"))
        if state.about:
            left.append(glyphs.dot + state.about.replace(" · ", glyphs.dot), style=FAINT)
        return spread(left, right, width)

    def rounds(self, width: int, glyphs: Glyphs) -> Text:
        """Returns a bar over the rounds, with the time that is left."""
        state = self.state
        pace, left = state.seconds_a_round, state.seconds_left
        times = [f"{short_time(pace)} a round"] if pace is not None and width >= NARROW else []
        if left is not None and state.round < state.rounds:
            times.append(f"{short_time(max(left, 1))} left")
        before = f"round {state.round}/{state.rounds}"
        return progress_bar(before, state.round, state.rounds, glyphs.dot.join(times), width, glyphs)

    def scores(self, width: int, glyphs: Glyphs) -> Iterator[Text]:
        """Yields the scores of the last and the best round by the metric, and the curve of the validation scores."""
        state = self.state
        pieces = [
            Text(f"{kind} ", style=FAINT).append(format_metric(state.metric, value), style="not dim")
            for kind, value in (("validation", state.validation), ("test", state.test))
            if value is not None
        ]
        if not pieces:
            if state.loss is not None:
                yield from packed("loss", [Text(f"{state.loss:.4g}")], width)
            return
        if state.best_round:
            best = Text("best ", style=FAINT).append(
                format_metric(state.metric, state.best_validation), style=f"not dim {BEST}"
            )
            pieces.append(best.append(f" in round {state.best_round}"))
            if state.best_test is not None and width >= 90:
                best.append(f", test {format_metric(state.metric, state.best_test)}")
        yield from packed(METRICS[state.metric].title, pieces, width)
        if len(state.curve) > 1:
            yield self.curve(width, glyphs)

    def curve(self, width: int, glyphs: Glyphs) -> Text:
        """Returns the validation scores so far as a row of columns."""
        state = self.state
        ends = " to ".join(format_metric(state.metric, end) for end in (min(state.curve), max(state.curve)))
        after = f"  {ends}" if width >= NARROW else ""
        indent = LABEL if width >= NARROW else 0
        line = Text(" " * indent)
        line.append(sparkline(state.curve, width - indent - cell_len(after), glyphs), style=ACCENT)
        return line.append(after, style=FAINT)

    def traffic(self, width: int) -> Iterator[Text]:
        """Yields the bytes that were sent so far, and in a round on average."""
        state = self.state
        ways = {WAYS[way]: size for way, size in state.sent.items() if size}
        if ways:
            pieces = [Text(size_text(size)).append(f" {way}", style=FAINT) for way, size in ways.items()]
            mean = Text(f"{size_text(sum(ways.values()) / state.round)} a round", style=FAINT)
            yield from packed("sent", [*pieces, mean], width)

    def clients(self, width: int, rows: int, glyphs: Glyphs) -> Iterator[Text]:
        """Yields a bar a client with its test score: all that fit or, of many, the worst and the best."""
        state = self.state
        names, values = [printable(name) for name in state.names], state.by_client
        if not values or rows < 2:
            return
        name_width = min(max(map(cell_len, names)), LONGEST_NAME if width >= 60 else 10)
        columns = max(1, min(3, width // (name_width + 24)))
        if width >= 60 and len(values) > columns * (rows - 1):
            columns = 2  # the worst and the best beside each other
        entry = (width - 3 * (columns - 1)) // columns
        shown, words = self.choose(len(values), columns * (rows - 1))
        yield Text(f"test {METRICS[state.metric].title} {words}", style=FAINT)
        largest = 1.0 if METRICS[state.metric].percent else max((v for v in values if v is not None), default=1.0)
        bars = [self.bar(names[i], values[i], largest, name_width, entry, glyphs) for i in shown]
        depth = math.ceil(len(bars) / columns)
        for row in range(depth):
            yield Text("   ").join(bars[row::depth])

    def choose(self, clients: int, room: int) -> tuple[list[int], str]:
        """Returns the clients to show, and words about those who are not; of many, seldom others, so that it stays
        calm."""
        if clients <= room:
            return list(range(clients)), "of each client"
        since, chosen = self._chosen
        half, values = room // 2, self.state.by_client
        if time.monotonic() - since > 3 or len(chosen) != 2 * half or max(chosen) >= clients:
            scored = [i for i, value in enumerate(values) if value is not None]
            ranked = sorted(scored, key=lambda i: values[i] or 0.0, reverse=not self.state.higher)
            chosen = [*ranked[:half], *ranked[len(ranked) - half :]] if len(ranked) >= 2 * half else ranked
            self._chosen = (time.monotonic(), chosen)
        return chosen, f"of the worst {half} and best {half} of {clients}"

    def bar(self, name: str, value: float | None, largest: float, names: int, width: int, glyphs: Glyphs) -> Text:
        """Returns a client's name, bar and score, in just this width."""
        text = format_metric(self.state.metric, value, "-").rjust(8)
        length = width - names - 1 - len(text)
        line = Text(f"{fitted(name, names, glyphs)} ")
        share = 0.0 if value is None or not largest else min(max(value / largest, 0.0), 1.0)
        drawn = horizontal_bar(share, length, glyphs)
        line.append(drawn, style=ACCENT).append(" " * (length - cell_len(drawn))).append(text)
        return line


def packed(label: str, pieces: Sequence[Text], width: int) -> Iterator[Text]:
    """Yields lines with a word in front and as many whole pieces as fit into each."""
    line = Text(f"{label:{LABEL - 1}} " if width >= NARROW else f"{label} ")
    indent, empty = (LABEL if width >= NARROW else 0), True
    for piece in pieces:
        gap = 0 if empty else 3
        if line.cell_len + gap + piece.cell_len > width and line.plain.strip():
            yield line
            line, gap = Text(" " * indent), 0
        line.append(" " * gap).append_text(piece)
        empty = False
    yield line


def progress_bar(before: str, done: int, total: int, after: str, width: int, glyphs: Glyphs) -> Text:
    """Returns a bar of what is done between two texts."""
    line = Text(f"{before} ")
    if width >= NARROW:
        line.pad_right(LABEL - line.cell_len)
    after = f"  {after}" if after else ""
    length = max(width - line.cell_len - cell_len(after), 5)
    filled = min(round(length * done / max(total, 1)), length)
    line.append(glyphs.done * filled, style=ACCENT).append(glyphs.to_come * (length - filled), style=FAINT)
    return line.append(after, style=FAINT)


def spread(left: Text, right: Text, width: int) -> Text:
    """Returns a line with one text at each end; the left one is cut where both do not fit."""
    room = width - right.cell_len - 2
    left.truncate(max(room, 8), overflow="ellipsis")
    return Text.assemble(left, " " * max(width - left.cell_len - right.cell_len, 2), right)


def fitted(name: str, width: int, glyphs: Glyphs) -> str:
    """Returns a name in just this width."""
    if cell_len(name) > width:
        name = set_cell_size(name, width - 1).rstrip() + glyphs.cut
    return set_cell_size(name, width)


def sparkline(values: Sequence[float], width: int, glyphs: Glyphs) -> str:
    """Returns values as columns of eight heights, lowest to highest; where there are more than fit, means of some."""
    count = max(min(width, len(values)), 1)
    edges = [len(values) * k // count for k in range(count + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(glyphs.heights) - 1) / (high - low) if high > low else 0.0
    return "".join(glyphs.heights[round((value - low) * scale)] for value in means)


def horizontal_bar(share: float, width: int, glyphs: Glyphs) -> str:
    """Returns a bar of a share of the width, to half a cell where the terminal can."""
    steps = len(glyphs.parts)
    full, rest = divmod(round(share * width * steps), steps)
    return glyphs.parts[-1] * full + (glyphs.parts[rest - 1] if rest else "")
