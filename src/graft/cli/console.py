"""What the commands print: plain text from anywhere, one sentence for a mistake, and the exit code."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, Optional

import typer
from rich.console import Console
from rich.file_proxy import FileProxy
from rich.markup import escape

from graft.errors import GraftError, GraftWarning, InputError
from graft.files import printable

WIDTH_OF_A_FILE = 120  # where output goes into a file or a pipe, and COLUMNS does not say otherwise

out_console = Console(
    highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH_OF_A_FILE
)
error_console = Console(stderr=True, highlight=False)

# Typer reads these at run time.
Text = Optional[str]  # noqa: UP045
Number = Optional[int]  # noqa: UP045


def say(text: str) -> None:
    """Print a line; it may hold names of files and classes, so nothing in it is markup or moves the cursor."""
    out_console.print(printable(text), markup=False, soft_wrap=True)


def complain(text: str) -> None:
    """Print a line to standard error, as `say` does; above a view that is on the same terminal."""
    console = out_console if isinstance(sys.stderr, FileProxy) else error_console
    console.print(printable(text), markup=False, soft_wrap=True)


def safe(value: Any) -> Any:
    """Returns the same values with texts that can be put into a table: without markup and control characters."""
    if isinstance(value, dict):
        return {name: safe(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [safe(entry) for entry in value]
    return escape(printable(value)) if isinstance(value, str) else value


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Ends in one sentence and an exit code whatever a person can get wrong: 2 for bad input, 1 for a failed run."""

    @functools.wraps(command)
    def inner(*arguments: Any, **options: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = functools.partial(show_warning, warnings.showwarning)
                command(*arguments, **options)
        except GraftError as error:
            complain(f"graft: {error}")
            raise typer.Exit(2 if isinstance(error, InputError) else 1) from None

    return inner


def show_warning(default: Callable[..., None], message: Warning | str, category: type[Warning], *where: Any) -> None:
    """Graft's own warnings are one sentence too."""
    if issubclass(category, GraftWarning):
        complain(f"graft: {message}")
    else:
        default(message, category, *where)


def split_names(text: str | None) -> list[str] | None:
    """Returns the parts of a list such as cora,cs; None where nothing was said."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(flag: str, text: str | None) -> list[int] | None:
    """Returns the numbers of a list such as 5,10; None where nothing was said."""
    try:
        return None if text is None else [int(part) for part in split_names(text) or []]
    except ValueError:
        raise InputError(f"{flag} is '{text}'; it should be a list of whole numbers, as 5,10.") from None
