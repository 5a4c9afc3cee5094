"""Columns of nodes with their kinds: declared, or inferred from the cells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from graft.data.schema import Schema
from graft.data.tables.node_table import Column
from graft.data.tables.problems import MOST_OF_A_KIND, Problem, Problems, show
from graft.data.tables.sheets import Sheet
from graft.data.tables.values import (
    DAY,
    Parsed,
    date_formats,
    looks_like_code,
    parse_booleans,
    parse_dates,
    parse_numbers,
    without_missing,
)

ALWAYS_CATEGORIES = 20  # a text column with at most so many different values is one of categories
MOST_CATEGORIES = 5000
REPEATS = 5  # otherwise every category occurs so often on average
LONGEST_CATEGORY = 60  # letters on average
LARGEST_NUMBER = float(np.finfo(np.float32).max)


def read_columns(sheet: Sheet, schema: Schema, problems: Problems) -> dict[str, Column]:
    """Returns the columns that are features, and those of text that could be."""
    reserved = (schema.id, schema.label, schema.split, schema.time)
    columns = {}
    for name in sheet.columns:
        kind = schema.kind_of(name)
        if kind == "ignored" or (name in reserved and kind is None):
            continue
        cells = without_missing(sheet[name], schema.missing_cells)
        columns[name] = READERS[kind](sheet, name, cells, schema, problems)
    return columns


def list_wrong_cells(
    sheet: Sheet, column: str, cells: pl.Series, wrong: pl.Series, what: str, remedy: str, problems: Problems
) -> None:
    """Adds a problem for every wrong cell; `what` follows the cell."""
    rows = wrong.arg_true()
    shown = rows.head(MOST_OF_A_KIND).to_list()
    rest = f" (and {len(rows) - len(shown)} more cells of this column)" if len(rows) > len(shown) else ""
    problems.extend(
        (
            Problem(
                str(sheet.path),
                f"{show(str(cells[row]))} {what}{rest if row == shown[-1] else ''}",
                remedy,
                sheet.line(row),
                column,
            )
            for row in shown
        ),
        len(rows),
    )


def _infer(sheet: Sheet, name: str, cells: pl.Series, schema: Schema, problems: Problems) -> Column:
    present = cells.len() - cells.null_count()
    if not present:
        return Column(name, "empty", texts=cells)
    booleans = parse_booleans(cells)
    if booleans is not None:
        return _numeric(name, "boolean", booleans, texts=cells)
    numbers = parse_numbers(cells, schema.decimal, sheet.separator)
    if 2 * int(numbers.wrong.sum()) < present and not looks_like_code(cells):
        return _number(sheet, name, cells, schema, problems)
    if date_formats(cells):
        return _date(sheet, name, cells, schema, problems)
    return _text(name, cells, present)


def _text(name: str, cells: pl.Series, present: int) -> Column:
    different = cells.drop_nulls().n_unique()
    long = (cells.str.len_chars().mean() or 0) > LONGEST_CATEGORY  # type: ignore[operator]
    few = different <= ALWAYS_CATEGORIES or (different <= MOST_CATEGORIES and different * REPEATS <= present)
    kind = "category" if few and not long else "text"
    return Column(name, kind, texts=cells, constant=different == 1 and present == cells.len())


def _number(sheet: Sheet, name: str, cells: pl.Series, schema: Schema, problems: Problems) -> Column:
    parsed = parse_booleans(cells) or parse_numbers(cells, schema.decimal, sheet.separator)
    too_large = (parsed.numbers.abs() > LARGEST_NUMBER).fill_null(False)
    list_wrong_cells(
        sheet,
        name,
        cells,
        parsed.wrong | too_large,
        "is not a finite number",
        f"correct it, leave it empty, or declare '{name}' as categorical or under ignore",
        problems,
    )
    return _numeric(name, "number", parsed)


def _date(sheet: Sheet, name: str, cells: pl.Series, schema: Schema, problems: Problems) -> Column:
    parsed = read_dates(sheet, name, cells, schema, problems)
    if parsed is None:
        return Column(name, "date", np.full(len(cells), np.nan))
    form = parsed.form if (parsed.form or "").startswith(("%d", "%m")) else None
    return replace(_numeric(name, "date", Parsed(parsed.numbers / DAY, parsed.wrong)), form=form)


def read_dates(sheet: Sheet, name: str, cells: pl.Series, schema: Schema, problems: Problems) -> Parsed | None:
    """Returns dates as seconds since 1970; None, and a problem more, where their form cannot be told."""
    declared = schema.date_formats.get(name)
    if cells.null_count() == len(cells):
        return Parsed(cells.cast(pl.Float64), cells.is_not_null())
    forms = [declared] if declared else date_formats(cells)
    form_remedy = f'declare its form, as date = {{{name} = "%d/%m/%Y"}} in the schema'
    if not forms:
        first = cells.drop_nulls()[0]
        problems.add(sheet.path, f"{show(first)} is not a date in a form that is known", form_remedy, column=name)
        return None
    if len(forms) > 1:
        first = cells.drop_nulls()[0]
        what = f"day and month of dates such as {show(first)} cannot be told apart"
        problems.add(sheet.path, what, form_remedy, column=name)
        return None
    parsed = parse_dates(cells, forms[0])
    list_wrong_cells(
        sheet,
        name,
        cells,
        parsed.wrong,
        f"is not a date like the others ({forms[0]})",
        "correct it or leave it empty",
        problems,
    )
    return parsed


def _category(sheet: Sheet, name: str, cells: pl.Series, schema: Schema, problems: Problems) -> Column:  # noqa: ARG001
    present = cells.len() - cells.null_count()
    constant = present == cells.len() and cells.n_unique() == 1
    return Column(name, "category" if present else "empty", texts=cells, constant=constant)


def _numeric(name: str, kind: str, parsed: Parsed, texts: pl.Series | None = None) -> Column:
    numbers = parsed.numbers
    if numbers.null_count() == len(numbers):
        return Column(name, "empty", texts=pl.Series(name, [None] * len(numbers), dtype=pl.String))
    constant = not numbers.null_count() and numbers.min() == numbers.max()
    values = np.array(numbers.fill_null(float("nan")).to_numpy(), dtype=np.float64)
    return Column(name, kind, values, texts, constant)


READERS = {None: _infer, "number": _number, "date": _date, "category": _category}
