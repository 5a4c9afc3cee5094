"""Pages as data: sections of tables, figures and sentences, that templates turn into one HTML file without links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from graft import __version__
from graft.errors import InputError
from graft.experiments.reports.colours import DARK, LIGHT
from graft.experiments.reports.summary_table import Cell
from graft.experiments.reports.vega import THEME, Spec, javascript

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Block:
    """A part of a section; its `template` is a file of templates/blocks."""

    template: ClassVar[str]


@dataclass(frozen=True)
class Text(Block):
    """A paragraph."""

    template: ClassVar[str] = "text"
    text: str
    kind: str = ""  # note, or warning


@dataclass(frozen=True)
class Heading(Block):
    """A heading within a section."""

    template: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True)
class Table(Block):
    """A table that is sorted by a click on its head; the first columns hold words, all others numbers."""

    template: ClassVar[str] = "table"
    head: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    words: int = 1
    title: str = ""
    note: str = ""
    folded: bool = False  # shown when somebody opens it

    @property
    def cells(self) -> list[list[Cell]]:
        """Returns all cells with the values that they are sorted by."""
        return [[cell if isinstance(cell, Cell) else Cell(str(cell), str(cell)) for cell in row] for row in self.rows]


@dataclass(frozen=True)
class Facts(Block):
    """Names and values in two columns."""

    template: ClassVar[str] = "facts"
    facts: Sequence[tuple[str, str]]
    title: str = ""


@dataclass(frozen=True)
class Figure(Block):
    """A Vega-Lite figure, as wide as there is room."""

    template: ClassVar[str] = "figure"
    title: str
    spec: Spec
    note: str = ""


@dataclass(frozen=True)
class Figures(Block):
    """Small figures side by side, as many as there is room for."""

    template: ClassVar[str] = "figures"
    figures: Sequence[Figure]
    small: bool = False


@dataclass(frozen=True)
class Picture(Block):
    """SVG that was made here, with all names in it escaped."""

    template: ClassVar[str] = "picture"
    svg: Sequence[str]
    title: str = ""
    note: str = ""


@dataclass(frozen=True)
class Command(Block):
    """A text to copy."""

    template: ClassVar[str] = "command"
    text: str
    title: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Confusions(Block):
    """Confusion matrices, of which one is shown at a time; rows are true classes."""

    template: ClassVar[str] = "confusions"
    matrices: dict[str, list[list[int]]]  # by client
    classes: Sequence[str]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A heading with what belongs below it; one without blocks is left out."""

    title: str
    blocks: Sequence[Block]
    short: str = ""  # in the table of contents

    @property
    def anchor(self) -> str:
        return "-".join("".join(char if char.isalnum() else " " for char in self.title.lower()).split())


@dataclass(frozen=True)
class Page:
    """A whole page: what was run, the verdict, and all sections."""

    title: str
    verdict: Sequence[str] = ()  # sentences, the first of which is the largest
    sections: Sequence[Section] = ()
    subtitle: str = ""
    warnings: Sequence[str] = ()
    made_by: str = field(default=f"Graft {__version__}")

    @property
    def shown(self) -> list[Section]:
        return [section for section in self.sections if section.blocks]


def figures_of(blocks: Iterable[Block]) -> Iterator[Figure]:
    """Returns all figures in some blocks."""
    for block in blocks:
        if isinstance(block, Figure):
            yield block
        elif isinstance(block, Figures):
            yield from block.figures


def render(page: Page) -> str:
    """Returns the HTML of a page, which needs nothing but itself; without vl-convert a sentence stands for figures."""
    script, missing = "", ""
    if any(True for section in page.shown for _ in figures_of(section.blocks)):
        try:
            script = javascript()
        except InputError as error:
            missing = str(error)
    context: dict[str, Any] = {"page": page, "missing": missing, "light": LIGHT, "dark": DARK, "theme": THEME}
    return environment().get_template("page.html").render(context, bundle=script)


@cache
def environment() -> Environment:
    """Returns the templates; what they are given is escaped, and a name that is missing is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return made
