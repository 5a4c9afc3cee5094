"""`graft check-method`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from graft.cli.console import complain, say
from graft.methods import METHODS


def check_method(
    method: Annotated[str, typer.Argument(help="A name, or your own as my_method.py:MyMethod.")],
) -> None:
    """Try whether a method keeps the contract: one line a claim, and exit code 1 if one does not hold."""
    METHODS.check(method)
    kind = METHODS[method]
    from graft.testing import claims

    failed = 0
    for name, claim in claims():
        begun = time.perf_counter()
        try:
            claim(kind)
        except Exception as error:  # a broken method may raise anything
            failed += 1
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            complain(f"failed  {name}: {reason}")
        else:
            say(f"ok      {name}  {time.perf_counter() - begun:.1f} s")
    if failed:
        complain(f"graft: {METHODS.label(method)} breaks {failed} of the {len(claims())} claims of the contract.")
        raise typer.Exit(1)
    say(f"{METHODS.label(method)} keeps the contract: {len(claims())} claims.")
