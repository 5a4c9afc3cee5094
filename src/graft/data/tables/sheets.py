"""A table as it lies in a file: every cell a text, whatever separator, encoding or compression it was written with."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from graft.data.schema import SEPARATORS, Schema, canonical
from graft.data.tables.problems import MOST_SHOWN, Problem, Problems, show
from graft.data.tables.text_files import read_text
from graft.errors import InputError

SUFFIXES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", ".parquet")
SNIFFED_LINES = 50
BLOCK = 2**22  # bytes that are looked at together


@dataclass
class Sheet:
    """The cells of a table as texts."""

    path: Path
    frame: pl.DataFrame  # columns by their canonical names
    line: Callable[[int], int]  # the line in the file, from 1, of a row, from 0
    notes: list[str] = field(default_factory=list)
    separator: str = ","

    stripped: dict[str, pl.Series] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """Returns the canonical names of the columns."""
        return self.frame.columns

    @property
    def rows(self) -> int:
        """Returns the number of rows."""
        return self.frame.height

    def __getitem__(self, column: str) -> pl.Series:
        """Returns the cells of a column without blanks around them, null where one is empty."""
        if column not in self.stripped:  # most columns of edges are never asked for
            self.stripped[column] = self.frame[column].str.strip_chars().replace("", None)
        return self.stripped[column]


def is_table(path: Path) -> bool:
    """Returns whether a file's name is that of a table."""
    return path.name.lower().endswith(SUFFIXES) and not path.name.startswith(".")


def read_sheet(path: Path, schema: Schema, problems: Problems) -> Sheet | None:
    """Returns the cells of a CSV or Parquet file; None, and a problem more, where there are none to return."""
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path, schema, problems)
    notes: list[str] = []
    text = read_text(path, schema.encoding, notes)
    if not text.strip():
        problems.add(path, "the file is empty", "it needs a header and rows")
        return None
    separator = schema.separator or _sniff_separator(text)
    header = next(_csv_rows(text[: _end_of_header(text)], separator))[1]
    names = _column_names(path, header, schema, problems)
    if names is None:
        return None
    frame, line = _parse(path, text, separator, names, problems)
    frame = frame.drop([name for name in names if name.startswith(_UNNAMED)])
    return Sheet(path, frame, line, notes, separator)


def _read_parquet(path: Path, schema: Schema, problems: Problems) -> Sheet | None:
    try:
        frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path} is not a readable Parquet file: {reason}.") from error
    names = _column_names(path, frame.columns, schema, problems)
    if names is None:
        return None
    frame.columns = names
    for name, kind in frame.schema.items():
        if kind.is_nested() or kind in (pl.Binary, pl.Object):
            problems.add(path, f"its values are {kind}", "write numbers, texts or dates", column=name)
            frame = frame.drop(name)
    texts = [_as_text(frame[name]) for name in frame.columns]
    return Sheet(path, pl.DataFrame(texts), lambda row: row + 1)


def _as_text(values: pl.Series) -> pl.Series:
    if values.dtype.is_float():
        # Whole numbers come out as 1, not 1.0: ids with a hole in them were turned into floats on the way.
        whole = values.is_not_null() & values.is_finite() & (values == values.floor()) & (values.abs() < 2**53)
        numbers = values.is_not_nan().fill_null(False)
        texts = values.cast(pl.String)
        whole_texts = values.set(~whole.fill_null(False), None).cast(pl.Int64).cast(pl.String)
        return pl.DataFrame({"text": texts, "whole": whole_texts, "number": numbers}).select(
            pl.when("number").then(pl.coalesce("whole", "text")).alias(values.name)
        )[values.name]
    return values.cast(pl.String)


def _end_of_header(text: bytes) -> int:
    """Returns where the first line that is not blank ends, with line breaks in quotes belonging to it."""
    end, quotes = 0, 0
    while end < len(text):
        stop = text.find(b"\n", end)
        stop = len(text) if stop < 0 else stop + 1
        quotes += text.count(b'"', end, stop)
        end = stop
        if quotes % 2 == 0 and text[:end].strip():
            break
    return end


def _sniff_separator(text: bytes) -> str:
    """Returns the separator that cuts the first lines into the most cells of the same number."""
    end = 0
    for _ in range(SNIFFED_LINES):
        end = text.find(b"\n", end) + 1
        if not end:
            break
    lines = text[: end or len(text)]
    scores = {}
    for separator in SEPARATORS:
        widths = [len(row) for _, row in _csv_rows(lines, separator)]
        same = sum(width == widths[0] for width in widths) / len(widths)
        scores[separator] = (widths[0] > 1, same if same < 0.8 else 1.0, widths[0])
    return max(scores, key=scores.__getitem__)


def _csv_rows(text: bytes, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Returns the rows with their last lines in the file; blank lines are no rows."""
    csv.field_size_limit(2**31 - 1)
    stream = io.TextIOWrapper(io.BytesIO(text), "utf-8", newline="")
    reader = csv.reader(stream, delimiter=separator, skipinitialspace=True)
    for row in reader:
        if row:
            yield reader.line_num, row


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return False
    return True


_UNNAMED = "\0unnamed"


def _column_names(path: Path, header: list[str], schema: Schema, problems: Problems) -> list[str] | None:
    """Returns the canonical names of a header; a nameless column, as pandas writes its index, is left out later."""
    names = [canonical(cell) or f"{_UNNAMED}{column}" for column, cell in enumerate(header)]
    names = [schema.rename.get(name, name) for name in names]
    if len(names) > 1 and 2 * sum(map(_is_number, header)) >= len(header):
        problems.add(path, "the first line holds numbers rather than names", "begin with a line of column names", 1)
        return None
    for column, name in enumerate(names):
        if name in names[:column]:
            earlier = header[names.index(name)]
            problems.add(
                path,
                f"two columns of the header have the same name, {show(earlier)} and {show(header[column])}",
                "rename one; case, blanks, dots and hyphens do not count",
                1,
            )
            return None
    return names


def _parse(
    path: Path, text: bytes, separator: str, names: list[str], problems: Problems
) -> tuple[pl.DataFrame, Callable[[int], int]]:
    """Returns the cells below the header, read by polars where every line has as many cells as the header."""
    start = _end_of_header(text)
    first = text.count(b"\n", 0, start) + 1
    body = text[start:].rstrip(b"\n") if text.endswith(b"\n\n") else text[start:]
    if not body:
        return pl.DataFrame(schema=dict.fromkeys(names, pl.String)), lambda row: first + row
    lines = body.count(b"\n") + (not body.endswith(b"\n"))
    if b"\n\n" not in body and not body.startswith(b"\n"):
        frame = _polars_csv(body, separator, names)
        if frame is not None and _rows_fit(body, separator, len(names), frame.height):
            broken = frame.height < lines  # cells with line breaks
            return frame, lambda row: first + (_line_of(body, separator, row) - 1 if broken else row)
    return _slow_parse(path, body, separator, names, first - 1, problems)


def _polars_csv(body: bytes, separator: str, names: list[str]) -> pl.DataFrame | None:
    try:
        return pl.read_csv(body, has_header=False, new_columns=names, separator=separator, infer_schema=False)
    except pl.exceptions.PolarsError:
        return None


def _rows_fit(body: bytes, separator: str, width: int, rows: int) -> bool:
    """Returns whether separators and line ends outside quotes are as many as rows of that width have; also false where
    blanks stand before a quote, which polars takes for a part of the cell.

    Polars refuses a row with a cell too many: if none is lacking in the whole file, no row has one too few.
    """
    if separator.encode() + b' "' in body or b'\n "' in body:
        return False
    separators, ends, inside = 0, int(not body.endswith(b"\n")), 0
    if b'"' not in body:
        return body.count(separator.encode()) == (width - 1) * rows and body.count(b"\n") + ends == rows
    for start in range(0, len(body), BLOCK):
        block = np.frombuffer(body, np.uint8, min(BLOCK, len(body) - start), start)
        # After an odd number of quotes is inside a cell; a doubled quote in it is a pair that changes nothing.
        quotes = np.cumsum(block == ord('"'), dtype=np.uint8) + np.uint8(inside)
        outside = quotes % 2 == 0
        separators += int(np.count_nonzero(outside & (block == ord(separator))))
        ends += int(np.count_nonzero(outside & (block == ord("\n"))))
        inside = int(quotes[-1]) % 2
    return separators == (width - 1) * rows and ends == rows


def _line_of(body: bytes, separator: str, row: int) -> int:
    rows = _csv_rows(body, separator)
    before = 0
    for index, (line, _) in enumerate(rows):
        if index == row:
            return before + 1
        before = line
    return before + 1


def _slow_parse(
    path: Path, body: bytes, separator: str, names: list[str], offset: int, problems: Problems
) -> tuple[pl.DataFrame, Callable[[int], int]]:
    """Returns the cells of a file with blank lines, odd quotes or rows that are too short or too long."""
    rows: list[list[str]] = []
    lines: list[int] = []
    wrong: list[Problem] = []
    count, width = 0, len(names)
    try:
        for line, row in _csv_rows(body, separator):
            if len(row) == width + 1 and not row[-1].strip():
                row.pop()  # some programs end every line with a separator, but not the header
            if len(row) == width:
                rows.append(row)
                lines.append(line + offset)
                continue
            count += 1
            if len(wrong) < MOST_SHOWN:
                what = f"{len(row)} cells, but {width} columns"
                wrong.append(
                    Problem(str(path), what, "quote cells that hold a separator, or fill the row", line + offset)
                )
    except (csv.Error, UnicodeError) as error:
        raise InputError(f"{path} is not a readable CSV file: {error}.") from error
    problems.extend(wrong, count)
    frame = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row")
    return frame, lambda row: lines[row]
