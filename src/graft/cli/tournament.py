"""`graft reproduce tournament`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from graft.cli.console import complain, say
from graft.cli.tune import check_numbers, tuning_progress
from graft.errors import InputError
from graft.experiments.tuning.optuna_study import check_optuna
from graft.options import parse_seeds

if TYPE_CHECKING:
    from graft.experiments.tournament.plan import Event
    from graft.experiments.tournament.tournament import Tournament

FOLDER = Path("reproductions") / "tournament"


def hold(
    parts: Mapping[str, Any],
    clients: Sequence[int] | None,
    seeds: str | None,
    jobs: int | None,
    out: Path | None,
    timeout: float | None,
    run: bool,
) -> None:
    """Plan a tournament, or the part of it that was asked for, and run what is missing of it."""
    from graft.experiments.tournament.plan import FINAL_SEEDS, plan_events

    if clients is not None and len(clients) != 1:
        raise InputError("A tournament has one number of clients, as --clients 10.")
    own = {"clients": clients and clients[0], "seeds": seeds and parse_seeds(seeds)}
    given = {name: value for name, value in {**parts, **own}.items() if value is not None}
    check_numbers(given.get("final_seeds", FINAL_SEEDS), jobs, timeout)
    check_optuna()
    events = plan_events(**given)
    for event in events:  # whatever was typed is checked before anything begins
        event.design.candidates()
    run_events(events, out or FOLDER, jobs, timeout, run)


def run_events(events: Sequence[Event], folder: Path, jobs: int | None, timeout: float | None, run: bool) -> None:
    """Run what is missing, write the page, and say what failed."""
    from graft.experiments.tournament.page import write_tournament
    from graft.experiments.tournament.tournament import run_tournament

    with tuning_progress("tournament") as tell:
        tournament = run_tournament(events, folder, jobs=jobs, timeout=timeout, report=tell, run=run)
    tell_result(tournament, write_tournament(tournament, folder))


def tell_result(tournament: Tournament, files: Sequence[Path]) -> None:
    """Say how far it is, and end the command with 1 where it was stopped or a run failed."""
    for name, reason in tournament.failures.items():
        complain(f"failed: {name}: {reason}")
    done, searches = tournament.searches
    say(f"{done} of {searches} searches are done. Written: {', '.join(map(str, files))}")
    if tournament.stopped:
        say("Stopped; the same command goes on from here.")
    if tournament.stopped or tournament.failures:
        raise typer.Exit(1)
