"""`graft example`: data to try things on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graft.cli.console import say
from graft.errors import InputError
from graft.registry import close_to

EXAMPLES = ("banks",)


def example(
    name: Annotated[str, typer.Argument(help="banks: three banks' exports of accounts and payments, made up.")],
    folder: Annotated[Path, typer.Argument(help="Where they go: a new folder.")] = Path("banks"),
    size: Annotated[float, typer.Option(help="How many accounts, as a share of the usual number.")] = 1.0,
) -> None:
    """Write files like those that organisations have, to try Graft on."""
    if name not in EXAMPLES:
        raise InputError(f"There is no example '{name}'{close_to(name, EXAMPLES)}: there is {', '.join(EXAMPLES)}.")
    if not 0.01 <= size <= 100:
        raise InputError(f"--size is {size}; it should be between 0.01 and 100.")
    if folder.exists():
        raise InputError(f"{folder} exists already: name a new folder.")
    from graft.data.example_banks import write_banks

    try:
        written = write_banks(folder, size)
    except OSError as error:
        raise InputError(f"{folder} cannot be written to: {error.strerror}.") from error
    for path in written:
        say(f"{path}: {', '.join(sorted(file.name for file in path.iterdir()))}")
    say(
        "Three banks, each with new accounts beside them. See what is in them: graft check "
        + " ".join(str(path) for path in written if not path.name.endswith("-new"))
    )
