"""A tuning in the report: what was chosen and what it gains, every trial, and which values mattered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import Field, ValidationError

from graft.errors import InputError
from graft.experiments.comparison.comparison import spell
from graft.experiments.record_files import Record, Score
from graft.experiments.reports.charts import trials
from graft.experiments.reports.client_sections import metric_cell
from graft.experiments.reports.pages import Block, Figure, Figures, Heading, Page, Section, Table, Text
from graft.experiments.reports.row_charts import bars
from graft.experiments.reports.series import axis_title, scale_of
from graft.experiments.reports.summary_table import Cell
from graft.federation.metric_names import METRICS, format_metric
from graft.files import printable, read_text

FILE = "tuning.json"
MOST_TRIALS = 500  # in a table
NOT_COMPLETE = {"pruned": "stopped early", "failed": "failed"}


class Default(Record):
    """The values that a method has as it is, and what they score."""

    params: dict[str, Any]
    validation: Score = None
    test: dict[str, Score] | None = None


class Best(Record):
    """The values that were chosen."""

    params: dict[str, Any]
    validation: float
    trial: int | None = None


class Trial(Record):
    """A line of the history."""

    trial: int
    state: str
    params: dict[str, Any]
    validation: Score = None
    rounds: int | None = None
    seconds: float | None = None


class Method(Record):
    """A method in tuning.json."""

    space: dict[str, dict[str, Any]]
    default: Default
    history: list[Trial]
    best: Best | None = None
    importance: dict[str, float] | None = None
    test: dict[str, Score] | None = None


class TuningRecord(Record):
    """What tuning.json holds."""

    metric: str
    trials: int
    methods: dict[str, Method]
    seeds: list[int] | int = Field(default_factory=list)


def read_tuning(folder: Path) -> TuningRecord | None:
    """Returns what tuning.json of a folder holds; None where there is none."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        tuning = TuningRecord.model_validate_json(read_text(path))
        if tuning.metric not in METRICS:
            raise ValueError(f"there is no metric '{tuning.metric}'")
    except ValueError as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise InputError(f"{path} is damaged or not of a tuning: {printable(reason)}.") from None
    return tuning


def tuning_page(tuning: TuningRecord, title: str = "") -> Page:
    """Returns the page of a tuning without runs at its end."""
    return Page(
        title=title or f"Tuning of {', '.join(tuning.methods)}",
        subtitle=subtitle_of(tuning),
        verdict=said_of_tuning(tuning),
        sections=tuning_sections(tuning),
    )


def subtitle_of(tuning: TuningRecord) -> str:
    listed = ", ".join(map(str, tuning.seeds)) if isinstance(tuning.seeds, list) else str(tuning.seeds)
    return f"{tuning.trials} trials a method, on validation nodes, seeds {listed}"


def said_of_tuning(tuning: TuningRecord) -> list[str]:
    """Returns what tuning gained, a sentence a method."""
    return [said_of_method(label, entry, tuning) for label, entry in tuning.methods.items()]


def said_of_method(label: str, entry: Method, tuning: TuningRecord) -> str:
    metric, best, done = tuning.metric, entry.best, len(entry.history)
    if best is None:
        return f"No trial of {label} is complete yet, so nothing was chosen."
    default = entry.default.validation
    reached = f"{format_metric(metric, best.validation)} validation {METRICS[metric].title}"
    if default is None:
        return f"{label} reaches {reached} in {done} trials; its default values were not scored."
    if best.trial == 0 or best.validation == default:
        return f"{label} keeps its default values: none of {done} trials was better than {reached}."
    gain = scale_of(metric) * abs(best.validation - default)
    unit = " points" if METRICS[metric].percent else ""
    better = "above" if METRICS[metric].higher else "below"
    words = f"Tuned, {label} reaches {reached}, {gain:.{1 if unit else 3}f}{unit} {better} its default values"
    return f"{words}, after {done} of {tuning.trials} trials.{said_of_test(entry, metric)}"


def said_of_test(entry: Method, metric: str) -> str:
    """Returns the test scores with the chosen values, on seeds that no trial used, where they are there."""
    scores = mean_of(entry.test)
    before = mean_of(entry.default.test)
    if scores is None:
        return ""
    words = f" On test nodes, which no trial has seen, it reaches {format_metric(metric, scores)}"
    return f"{words} ({format_metric(metric, before)} by default)." if before is not None else f"{words}."


def mean_of(scores: Mapping[str, float | None] | None) -> float | None:
    values = [value for value in (scores or {}).values() if value is not None]
    return fmean(values) if values else None


def tuning_sections(tuning: TuningRecord) -> list[Section]:
    """Returns the chosen values, all trials and the importance of each value."""
    methods, metric = tuning.methods, tuning.metric
    several = len(methods) > 1
    history: list[Block] = []
    for label, entry in methods.items():
        figures = [history_figure(entry, metric)]
        if entry.importance:
            shares = dict(sorted(entry.importance.items(), key=lambda item: -item[1]))
            figures.append(Figure("Which values mattered", bars(shares, "share of the differences between trials")))
        history += [*([Heading(label)] if several else []), Figures([figure for figure in figures if figure])]
        history.append(trial_table(entry, metric))
    note = Text(
        "Every trial is scored on validation nodes alone; trials that were far behind were stopped early.", "note"
    )
    return [
        Section("Chosen values", [gain_table(methods, metric), *map(value_table, methods, methods.values())], "Chosen"),
        Section("Trials", [*history, note]),
    ]


def gain_table(methods: Mapping[str, Method], metric: str) -> Table:
    """Returns the scores with default and chosen values."""
    rows = []
    for label, entry in methods.items():
        scores = (entry.default.validation, entry.best.validation if entry.best else None)
        tests = (mean_of(entry.default.test), mean_of(entry.test))
        states = [row.state for row in entry.history]
        counts = [states.count(state) for state in ("complete", "pruned", "failed")]
        rows.append(
            [
                Cell(label),
                *(metric_cell(metric, score) for score in (*scores, *tests)),
                *(Cell(str(count), count) for count in counts),
            ]
        )
    head = ("method", "validation, default", "validation, tuned", "test, default", "test, tuned")
    return Table((*head, "trials", "stopped early", "failed"), rows)


def value_table(label: str, entry: Method) -> Table:
    """Returns the values of a method: where they were looked for, the default and the chosen ones."""
    best = entry.best.params if entry.best else {}
    default, importance = entry.default.params, entry.importance or {}
    rows = [
        [
            Cell(name),
            Cell(range_words(space)),
            Cell(value_words(default.get(name))),
            Cell(value_words(best.get(name)), best=name in best and best[name] != default.get(name)),
            Cell(f"{100 * importance[name]:.0f} %" if name in importance else "-", importance.get(name)),
        ]
        for name, space in entry.space.items()
    ]
    return Table(("setting", "searched", "default", "chosen", "importance"), rows, 4, label, "Bold: not the default.")


def range_words(space: Mapping[str, Any]) -> str:
    """Returns where a value was looked for."""
    if "choices" in space:
        return ", ".join(map(str, space["choices"]))
    if "low" in space and "high" in space:
        return f"{space['low']:g} to {space['high']:g}{', by its logarithm' if space.get('log') else ''}"
    return json.dumps(space)


def value_words(value: Any) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else spell(value)


def history_figure(entry: Method, metric: str) -> Figure | None:
    """Returns the validation score of every trial, and the best one so far."""
    scale, higher = scale_of(metric), METRICS[metric].higher
    best, steps, dots = None, [], []
    for row in entry.history:
        if row.validation is None:
            continue
        value = scale * row.validation
        state = NOT_COMPLETE.get(row.state, row.state)
        dots.append({"series": state, "x": row.trial, "y": value, "words": values_line(row.params)})
        if row.state == "complete":
            best = value if best is None else max(best, value) if higher else min(best, value)
            steps.append((row.trial, best))
    if not dots:
        return None
    return Figure("Trials one after the other", trials(dots, steps, axis_title(metric, "validation")))


def values_line(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value_words(value)}" for name, value in params.items())


def trial_table(entry: Method, metric: str) -> Table:
    """Returns all trials with their values."""
    names, chosen = list(entry.space), entry.best.trial if entry.best else None
    rows = [
        [
            Cell(str(row.trial), row.trial, row.trial == chosen),
            Cell(NOT_COMPLETE.get(row.state, row.state)),
            metric_cell(metric, row.validation),
            *(Cell(value_words(row.params.get(name)), row.params.get(name)) for name in names),
            Cell("-" if row.rounds is None else str(row.rounds), row.rounds),
            Cell("-" if row.seconds is None else f"{row.seconds:.1f}", row.seconds),
        ]
        for row in entry.history[:MOST_TRIALS]
    ]
    head = ("trial", "state", "validation", *names, "rounds", "seconds")
    more = f"The first {MOST_TRIALS} of {len(entry.history)}." if len(entry.history) > MOST_TRIALS else ""
    return Table(head, rows, 2, f"All {len(entry.history)} trials", more, folded=True)
