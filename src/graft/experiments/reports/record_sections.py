"""How to repeat a run: its settings, versions and hashes, and the command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from graft.experiments.comparison.comparison import Comparison, spell
from graft.experiments.comparison.finished_runs import DEFAULTS, FinishedRun
from graft.experiments.experiment import GIVEN, GROUPS, Experiment
from graft.experiments.reports.pages import Block, Command, Facts, Table, Text
from graft.experiments.reports.summary_table import Cell
from graft.options import parse_value

MOST_COMMANDS = 40


def run_record(run: FinishedRun) -> list[Block]:
    """Returns the command that repeats a run, all settings, those that are not the default first, versions, hashes."""
    changed = [name for name, value in run.experiment.items() if value != DEFAULTS.get(name) and name != "settings"]
    rest = [name for name in run.experiment if name not in (*changed, "settings")]
    rows = [[Cell(name), Cell(shown(run.experiment[name])), Cell(shown(DEFAULTS.get(name)))] for name in changed]
    settings = [[Cell(name), Cell(shown(value))] for name, value in run.experiment.get("settings", {}).items()]
    blocks: list[Block] = [*command_blocks({"": run})]
    if rows:
        blocks.append(Table(("setting", "value", "default"), rows, 3, "What is not the default"))
    if settings:
        blocks.append(Table(("setting of the method", "value"), settings, 2))
    others = [[Cell(name), Cell(group_of(name)), Cell(shown(run.experiment[name]))] for name in rest]
    blocks.append(Table(("setting", "of", "value"), others, 3, f"The other {len(others)} settings", folded=True))
    return blocks + provenance([run])


def comparison_record(comparison: Comparison) -> list[Block]:
    """Returns the settings in which rows differ, those that all share, versions, hashes, and commands."""
    firsts = {
        row: next(run for (name, _), cell in comparison.cells.items() if name == row for run in cell.values())
        for row in comparison.rows
    }
    flat = {row: flattened(run.experiment) for row, run in firsts.items()}
    names = dict.fromkeys(name for values in flat.values() for name in values)
    varied = [name for name in names if len({repr(values.get(name)) for values in flat.values()}) > 1]
    columns = [name for name in varied if name not in ("seed", "dataset", "graphs")]
    blocks: list[Block] = []
    if columns:
        rows = [
            [Cell(row), *(Cell(shown(values[name]) if name in values else "-") for name in columns)]
            for row, values in flat.items()
        ]
        head = ("row", *(name.removeprefix("settings.") for name in columns))
        blocks.append(
            Table(head, rows, len(head), "Settings in which rows differ", "- is a setting that a method has not.")
        )
    first = flattened(comparison.runs[0].experiment)
    every = [flattened(run.experiment) for run in comparison.runs]
    shared = [name for name in first if all(repr(values.get(name)) == repr(first[name]) for values in every)]
    common = [[Cell(name.removeprefix("settings.")), Cell(shown(first[name]))] for name in shared]
    blocks.append(Table(("setting", "value"), common, 2, f"The {len(common)} settings that all share", folded=True))
    labelled = {
        f"{row}, {column}" if len(comparison.columns) > 1 else row: min(cell.items())[1]
        for (row, column), cell in comparison.cells.items()
    }
    return [*command_blocks(labelled), *blocks, *provenance(comparison.runs)]


def flattened(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of an experiment with the method's own settings among them."""
    values = {name: value for name, value in experiment.items() if name != "settings"}
    return values | {f"settings.{name}": value for name, value in experiment.get("settings", {}).items()}


def provenance(runs: Sequence[FinishedRun]) -> list[Block]:
    """Returns versions and machines, and the hashes of the runs."""
    versions: dict[str, set[str]] = {}
    for run in runs:
        facts = {"graft": run.summary.get("graft", ""), **run.summary.get("versions", {})}
        facts |= {"device": run.summary.get("device", ""), "threads": run.summary.get("threads", "")}
        for name, value in facts.items():
            versions.setdefault(name, set()).add(str(value))
    listed = [(name, ", ".join(sorted(values))) for name, values in versions.items() if any(values)]
    names = list(dict.fromkeys(name for run in runs for name in run.hashes))
    hashed = [
        [Cell(f"{run.summary['method']}, {run.summary['dataset']}, seed {run.seed}")]
        + [Cell(run.hashes.get(name, "-")[:16]) for name in names]
        for run in runs
    ]
    blocks: list[Block] = [Facts(listed, "Versions")]
    if names and len(runs) == 1:
        rows = [[Cell(name), Cell(runs[0].hashes.get(name, "-"))] for name in names]
        blocks.append(Table(("hash of", ""), rows, 2))
    elif names:
        blocks.append(Table(("run", *names), hashed, 1 + len(names), "Hashes of every run", folded=True))
    return blocks


def command_blocks(runs: Mapping[str, FinishedRun]) -> list[Block]:
    """Returns the commands that repeat some runs, by their names; of a sweep, those of the first seeds."""
    texts = {name: command_of(run.experiment) for name, run in runs.items()}
    if any(text is None for text in texts.values()):
        lacking = Text("No command repeats these runs: what they were given in Python is in no file.", "note")
        return [lacking]
    if len(texts) == 1:
        return [Command(str(next(iter(texts.values()))), "The command that repeats it")]
    lines = [f"# {name}\n{text}" for name, text in list(texts.items())[:MOST_COMMANDS]]
    more = f"\n# and {len(texts) - MOST_COMMANDS} more" if len(texts) > MOST_COMMANDS else ""
    return [Command("\n".join(lines) + more, "Commands that repeat the first seed of each row", folded=True)]


def command_of(experiment: Mapping[str, Any]) -> str | None:
    """Returns the command that repeats an experiment; None where something was given in Python."""
    words = ["graft", "run"]
    for field in fields(Experiment):
        value = experiment.get(field.name, DEFAULTS[field.name])
        if GIVEN in str(value):
            return None
        if field.name == "settings":
            words += [word for name, entry in value.items() for word in ("--set", f"{name}={as_toml(entry)}")]
        elif field.name == "method" or value != DEFAULTS[field.name]:
            words += options_of(field.name, value)
    return " ".join(shlex.quote(word) for word in words)


def options_of(name: str, value: Any) -> list[str]:
    """Returns the words of a command that set a field."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{name.replace('_', '-')}"]
    if isinstance(value, list) and isinstance(DEFAULTS[name], list):
        return [word for entry in value for word in (flag, str(entry))]
    return [flag, typed(value)]


def typed(value: Any) -> str:
    """Returns a value of a field as it is typed in a command."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def as_toml(value: Any) -> str:
    """Returns a value of a setting as `--set` reads it: TOML, or a bare text where that means the same."""
    bare = isinstance(value, str) and parse_value(value) == value
    return str(value) if bare else json.dumps(value)


def shown(value: Any) -> str:
    """Returns a value as it is read in a table."""
    return spell(value) if value not in ("", [], None) else "none"


def group_of(name: str) -> str:
    """Returns the group of settings that a field belongs to."""
    group = ""
    for field in fields(Experiment):
        group = GROUPS.get(field.name, group)
        if field.name == name:
            return group.lower()
    return ""
