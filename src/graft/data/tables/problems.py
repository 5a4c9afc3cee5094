"""What is wrong with tables, collected so that a person sees all of it at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from graft.errors import InputError

MOST_SHOWN = 20
MOST_OF_A_KIND = 5  # that are shown of a column
LONGEST_CELL = 40  # letters of a cell that are shown


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, where it is, and what can be done."""

    file: str
    what: str
    remedy: str
    line: int | None = None
    column: str | None = None

    def __str__(self) -> str:
        line = "" if self.line is None else f", line {self.line}"
        column = "" if self.column is None else f", column {self.column}"
        return f"{self.file}{line}{column}: {self.what}; {self.remedy}"


class TableError(InputError):
    """Tables that cannot be used, with all that is wrong with them."""

    def __init__(self, problems: Sequence[Problem], count: int) -> None:
        self.problems = list(problems)
        self.count = count
        super().__init__(describe(problems, count))


def describe(problems: Sequence[Problem], count: int) -> str:
    """Returns one sentence for one problem, and a list below a sentence for several."""
    if count == 1:
        return f"{problems[0]}."
    files = list(dict.fromkeys(problem.file for problem in problems))
    named = " and ".join(files) if len(files) < 3 else f"{files[0]} and {len(files) - 1} more files"
    shown = [f"  {problem}" for problem in problems[:MOST_SHOWN]]
    rest = [f"  ... and {len(problems) - len(shown)} more like these"] if len(problems) > len(shown) else []
    return "\n".join([f"{named}: {count} problems have to be solved first:", *shown, *rest])


@dataclass
class Problems:
    """Collects problems; of many of one kind the first are kept and all are counted."""

    listed: list[Problem] = field(default_factory=list)
    count: int = 0

    def add(self, file: Path, what: str, remedy: str, line: int | None = None, column: str | None = None) -> None:
        """Adds one problem."""
        self.extend([Problem(str(file), what, remedy, line, column)], 1)

    def extend(self, problems: Iterable[Problem], count: int) -> None:
        """Adds problems of which perhaps only the first are given."""
        self.listed.extend(problems)
        self.count += count

    def raise_if_any(self) -> None:
        """Raises all of them as one error."""
        if self.count:
            raise TableError(self.listed, self.count)


def show(cell: str) -> str:
    """Returns a cell in quotes, cut where it is long."""
    return f"'{cell}'" if len(cell) <= LONGEST_CELL else f"'{cell[:LONGEST_CELL]}...'"
