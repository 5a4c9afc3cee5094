"""`graft check-method`."""

from __future__ import annotations

import time
from typing import Annotated, Optional

import typer

from graft.cli.console import complain, say
from graft.experiments.experiment import Experiment, check_names
from graft.experiments.make_method import make_method
from graft.methods import METHODS
from graft.options import parse_settings


def check_method(
    method: Annotated[str, typer.Argument(help="A name, or your own as my_method.py:MyMethod.")],
    set_: Annotated[Optional[list[str]], typer.Option("--set", help="A field of the method, as mu=0.1.")] = None,  # noqa: UP045
) -> None:
    """Try whether a method keeps the contract: one line a claim, and exit code 1 if one does not hold."""
    settings = parse_settings(set_ or [])
    check_names(Experiment(method=method, settings=settings))
    instance = make_method(method, settings)
    from graft.testing import claims

    contract, failed = claims(), 0
    for name, claim in contract:
        begun = time.perf_counter()
        try:
            claim(instance)
        except Exception as error:  # a broken method may raise anything
            failed += 1
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            complain(f"failed  {name}: {reason}")
        else:
            say(f"ok      {name} ({time.perf_counter() - begun:.1f} s)")
    if failed:
        complain(f"graft: {METHODS.label(method)} breaks {failed} of the {len(contract)} claims of the contract.")
        raise typer.Exit(1)
    say(f"{METHODS.label(method)} keeps all {len(contract)} claims of the contract.")
