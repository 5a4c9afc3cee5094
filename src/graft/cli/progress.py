"""How far a command is: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from graft.cli.console import out_console, say
from graft.federation.metric_names import format_metric
from graft.files import printable

Tell = Callable[[dict[str, Any]], None]


@contextmanager
def round_progress(rounds: int, label: str) -> Iterator[Tell]:
    """A bar over rounds on a terminal, about ten plain lines elsewhere."""
    if not sys.stdout.isatty():
        every = max(1, rounds // 10)

        def line(record: dict[str, Any]) -> None:
            if record["round"] % every == 0 or record["round"] == rounds:
                say(f"{label}: round {record['round']}/{rounds}{scores(record)}")

        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[scores]}"))
    with Progress(*columns, console=out_console) as bar:
        task = bar.add_task(printable(label), total=rounds, scores="")

        def advance(record: dict[str, Any]) -> None:
            if scores(record):
                bar.update(task, scores=scores(record))
            bar.update(task, completed=record["round"])

        yield advance


def scores(record: dict[str, Any]) -> str:
    """Returns the scores of a round by the first metric; empty where it was not evaluated."""
    metric, values = next(iter(record.get("metrics", {}).items()), ("accuracy", record))
    if values.get("test") is None or values.get("validation") is None:
        return ""
    name = "" if metric == "accuracy" else f"  {metric}"
    shown = {kind: format_metric(metric, values[kind]).removesuffix(" %") for kind in ("validation", "test")}
    return f"{name}  validation {shown['validation']}  test {shown['test']}"


@contextmanager
def study_progress(label: str) -> Iterator[Tell]:
    """A bar over the runs of a study on a terminal, a plain line a run elsewhere."""
    if not sys.stdout.isatty():
        begun = time.perf_counter()

        def line(message: dict[str, Any]) -> None:
            left = (time.perf_counter() - begun) / message["done"] * (message["total"] - message["done"])
            say(f"{message['done']}/{message['total']} {outcome_of(message)}, about {left / 60:.1f} min left")

        yield line
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), *times)
    with Progress(*columns, TextColumn("{task.fields[last]}", markup=False), console=out_console) as bar:
        task = bar.add_task(printable(label), total=None, last="")

        def advance(message: dict[str, Any]) -> None:
            bar.update(task, total=message["total"], completed=message["done"], last=printable(outcome_of(message)))

        yield advance


def outcome_of(message: dict[str, Any]) -> str:
    """Returns what came of one run of a study."""
    if "error" in message:
        return f"{message['cell']}: failed"
    test = message["test"]
    return f"{message['cell']}: {'no score' if test is None else f'{100 * test:.1f} %'} in {message['seconds']:.1f} s"
