"""Options that take all the words up to the next option, as `--graphs alpha/ beta/ gamma.npz`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

MANY = ("--graphs",)


class ManyValues(TyperCommand):
    """A command whose options in `MANY` may be given once with several values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # Typer's context, or click's
        return super().parse_args(ctx, repeat_options(args))


def repeat_options(words: list[str]) -> list[str]:
    """Returns the words with `--graphs a b` as `--graphs a --graphs b`."""
    repeated: list[str] = []
    option = ""  # that the next word is another value of
    for word, before in zip([*words, "-"], ["", *words], strict=True):
        if before in MANY and word.startswith("-"):
            raise typer.BadParameter(f"{before} needs at least one value.")
        if word.startswith("-"):
            option = word if word in MANY else ""
        elif option and before != option:
            repeated.append(option)
        repeated.append(word)
    return repeated[:-1]
