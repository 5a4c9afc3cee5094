"""Cells as numbers, truth values and dates."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

TRUE_WORDS = {"true": "false", "yes": "no", "y": "n", "t": "f", "ja": "nein", "oui": "non", "si": "no", "sí": "no"}
DATE_FORMATS = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M",
    "%Y/%m/%d",
    "%Y/%m/%d %H:%M:%S",
    "%d.%m.%Y",
    "%d.%m.%Y %H:%M:%S",
    "%d.%m.%Y %H:%M",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d/%m/%Y %H:%M:%S",
    "%m/%d/%Y %H:%M:%S",
    "%d/%m/%Y %H:%M",
    "%m/%d/%Y %H:%M",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%d %b %Y",
    "%d %B %Y",
    "%b %d, %Y",
)
SAMPLE = 2000
DAY = 86_400.0  # seconds
_OFFSET = r"(?:Z|[+-]\d{2}:?\d{2})$"  # of a time zone
_THOUSANDS = {".": r"^[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?$", ",": r"^[+-]?\d{1,3}(?:[. ]\d{3})+(?:,\d*)?$"}
_DECIMAL_COMMA = r"^[+-]?\d*,\d+(?:[eE][+-]?\d+)?$"


@dataclass(frozen=True)
class Parsed:
    """Cells as numbers; null where there is none, and where a cell is not a number or date."""

    numbers: pl.Series  # float64
    wrong: pl.Series  # whether a cell holds something that is none
    form: str | None = None  # of dates


def without_missing(cells: pl.Series, missing: tuple[str, ...]) -> pl.Series:
    """Returns the cells with null for those that say that there is no value."""
    words = [word for word in missing if word]
    if not words:
        return cells
    longest = max(map(len, words))
    short = cells.str.len_chars() <= longest
    if not short.any():
        return cells
    gone = short & cells.str.to_lowercase().is_in(words)
    return cells.set(gone.fill_null(False), None) if gone.any() else cells


def parse_numbers(cells: pl.Series, decimal: str | None, separator: str) -> Parsed:
    """Returns cells as numbers; a decimal comma is tried where the file's separator is none, or when declared."""
    numbers = cells.cast(pl.Float64, strict=False)
    if decimal == ",":
        numbers = _comma_numbers(cells)
    wrong = cells.is_not_null() & numbers.is_null()
    if wrong.any() and decimal is None and separator != ",":
        with_comma = _comma_numbers(cells)
        numbers = with_comma if with_comma.null_count() < numbers.null_count() else numbers
    elif wrong.any() and decimal != ",":
        grouped = cells.str.contains(_THOUSANDS["."]).fill_null(False)
        plain = cells.str.replace_all(",", "", literal=True).cast(pl.Float64, strict=False)
        numbers = numbers.zip_with(~grouped, plain)
    numbers = numbers.set(~numbers.is_finite().fill_null(False), None)
    return Parsed(numbers, cells.is_not_null() & numbers.is_null())


def _comma_numbers(cells: pl.Series) -> pl.Series:
    grouped = cells.str.contains(_THOUSANDS[","]).fill_null(False)
    ungrouped = cells.str.replace_all(r"[. ]", "")
    cells = cells.zip_with(~grouped, ungrouped)
    comma = cells.str.contains(_DECIMAL_COMMA).fill_null(False)
    return cells.zip_with(~comma, cells.str.replace(",", ".", literal=True)).cast(pl.Float64, strict=False)


def parse_booleans(cells: pl.Series) -> Parsed | None:
    """Returns truth values as 1 and 0; None where the cells are no pair of words such as yes and no."""
    if cells.head(SAMPLE).drop_nulls().str.len_chars().max() not in range(1, 6):
        return None
    words = cells.str.to_lowercase()
    different = set(words.drop_nulls().unique().to_list())
    for true, false in TRUE_WORDS.items():
        if different <= {true, false}:
            numbers = (words == true).cast(pl.Float64)
            return Parsed(numbers, pl.repeat(False, len(cells), dtype=pl.Boolean, eager=True))
    return None


def looks_like_code(cells: pl.Series) -> bool:
    """Returns whether digits are a code rather than a number: 01 is, 0.1 and 10 are not."""
    return bool(cells.str.contains(r"^0\d").any())


def date_formats(cells: pl.Series) -> list[str]:
    """Returns the forms of dates that fit the most of the first cells, at least half of them; several where day and
    month cannot be told apart."""
    sample = cells.drop_nulls().head(SAMPLE).str.replace(_OFFSET, "")
    if not len(sample) or not sample.str.contains(r"\d").any():
        return []
    parsed = {form: _datetimes(sample, form) for form in DATE_FORMATS}
    best = max(len(sample) - dates.null_count() for dates in parsed.values())
    if 2 * best < len(sample):
        return []
    forms = [form for form, dates in parsed.items() if len(sample) - dates.null_count() == best]
    return [forms[0], *(form for form in forms[1:] if not parsed[form].equals(parsed[forms[0]]))]


def parse_dates(cells: pl.Series, form: str) -> Parsed:
    """Returns dates as seconds since 1970, in universal time where they name their offset."""
    offsets = cells.str.extract(f"({_OFFSET})")
    plain = cells.str.replace(_OFFSET, "") if offsets.null_count() < len(cells) else cells
    seconds = _datetimes(plain, form).dt.timestamp("us").cast(pl.Float64) / 1e6
    if offsets.null_count() < len(cells):
        digits = offsets.str.replace_all(r"[Z:+-]", "")
        hours = digits.str.slice(0, 2).cast(pl.Float64, strict=False).fill_null(0)
        minutes = digits.str.slice(2, 2).cast(pl.Float64, strict=False).fill_null(0)
        sign = offsets.str.starts_with("-").fill_null(False).cast(pl.Float64) * -2 + 1
        seconds = seconds - sign * (hours * 3600 + minutes * 60)
    return Parsed(seconds, cells.is_not_null() & seconds.is_null(), form)


def _datetimes(cells: pl.Series, form: str) -> pl.Series:
    kind: type[pl.Date] | pl.Datetime = pl.Datetime("us") if "%H" in form else pl.Date
    try:
        parsed = cells.str.strptime(kind, form, strict=False, exact=True)
    except pl.exceptions.PolarsError:
        return pl.Series([None] * len(cells), dtype=pl.Datetime("us"))
    return parsed.cast(pl.Datetime("us"))
