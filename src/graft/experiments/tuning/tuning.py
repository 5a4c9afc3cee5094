"""What a tuning found out: the chosen values of each method, what they gain, and all that was tried."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import graft
from graft.errors import InputError
from graft.experiments.comparison.comparison import Comparison, spell
from graft.experiments.comparison.finished_runs import FinishedRun, find_runs
from graft.experiments.experiment import Experiment
from graft.experiments.experiment_files import experiment_text, read_experiment
from graft.experiments.many_runs import file_name
from graft.experiments.notebook_table import notebook_table
from graft.federation.metric_names import METRICS, format_difference, format_metric
from graft.files import explained, parse_json, printable, read_text, write_text

if TYPE_CHECKING:
    import polars

FILE = "tuning.json"
EXPERIMENT = "experiment.toml"


class Tuning:
    """The chosen values of every method that was tuned; `summary` is what tuning.json holds."""

    def __init__(
        self,
        summary: Mapping[str, Any],
        experiments: Mapping[str, Experiment],
        runs: Sequence[FinishedRun] = (),
        folder: Path | None = None,
        *,
        failures: Mapping[str, str] | None = None,
        stopped: bool = False,
    ) -> None:
        self.summary = dict(summary)
        self.experiments = dict(experiments)  # by method, with the chosen values
        self.runs = list(runs)  # with the default and the chosen values, on seeds that no trial used
        self.folder = folder  # None where nothing was kept
        self.failures = dict(failures or {})  # of runs at the end -> why, in one sentence
        self.stopped = stopped  # by Ctrl-C, or when the time was over: the same call goes on

    @classmethod
    def load(cls, folder: str | Path) -> Tuning:
        """Returns the tuning of a folder."""
        path = Path(folder) / FILE
        with explained(f"{path} cannot be read", InputError):
            try:
                summary = parse_json(read_text(path))
                labels = [label for label, entry in summary["methods"].items() if entry["best"] is not None]
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path} is damaged or not of a tuning: {printable(error)}.") from error
        files = {label: experiment_file(Path(folder), label, len(summary["methods"])) for label in labels}
        experiments = {label: Experiment(**read_experiment(file)) for label, file in files.items()}
        return cls(summary, experiments, find_runs([Path(folder)]), Path(folder))

    @property
    def metric(self) -> str:
        """Returns the metric that chose."""
        metric: str = self.summary["metric"]
        return metric

    def params(self, method: str | None = None) -> dict[str, Any]:
        """Returns the chosen values of a method; without its name, of the only one."""
        return dict(self._entry(method)["best"]["params"])

    def experiment(self, method: str | None = None) -> Experiment:
        """Returns the experiment of a method with the chosen values; without its name, of the only one."""
        self._entry(method)
        return self.experiments[method or next(iter(self.experiments))]

    def _entry(self, method: str | None) -> dict[str, Any]:
        entries = self.summary["methods"]
        if method is None and len(entries) > 1:
            raise InputError(f"Several methods were tuned; say which: {', '.join(entries)}.")
        if method is not None and method not in entries:
            raise InputError(f"There is no method '{method}' in this tuning: there are {', '.join(entries)}.")
        entry: dict[str, Any] = entries[method or next(iter(entries))]
        if entry["best"] is None:
            raise InputError(f"No trial of {method or next(iter(entries))} is complete, so nothing was chosen.")
        return entry

    @property
    def comparison(self) -> Comparison:
        """Returns the runs at the end, with default and chosen values, in rows and columns."""
        return Comparison(self.runs)

    def frame(self) -> polars.DataFrame:
        """Returns a row a trial: its method, number, state, score, values, rounds and seconds."""
        try:
            import polars
        except ImportError:
            raise InputError("Tuning.frame() makes a polars.DataFrame: pip install polars.") from None
        rows = [
            {"method": label, **{name: value for name, value in row.items() if name != "params"}, **row["params"]}
            for label, entry in self.summary["methods"].items()
            for row in entry["history"]
        ]
        return polars.DataFrame(rows, infer_schema_length=None, strict=False)

    def report(self, folder: str | Path | None = None) -> Path:
        """Writes report.html into a folder, or into that of the tuning, and returns its path."""
        from graft.experiments.reports.report import write_comparison_report

        out = Path(folder) if folder is not None else self.folder
        if out is None:
            raise InputError("This tuning kept no folder; say where its report goes, as tuning.report('out').")
        return Path(write_comparison_report(self.comparison, out))

    def write(self) -> list[Path]:
        """Writes tuning.json and the experiments with the chosen values into its folder; returns the latter."""
        assert self.folder is not None
        write_text(self.folder / FILE, json.dumps({"graft": graft.__version__, **self.summary}, indent=1) + "\n")
        files = []
        for label, experiment in self.experiments.items():
            files.append(experiment_file(self.folder, label, len(self.summary["methods"])))
            write_text(files[-1], experiment_text(experiment))
        return files

    def __repr__(self) -> str:
        parts = []
        for label, entry in self.summary["methods"].items():
            scores = [format_metric(self.metric, value) for value in gains(entry, "validation") if value is not None]
            parts.append(f"{label}: validation {' -> '.join(scores) or 'not scored'}")
        return f"Tuning({printable('; '.join(parts))})"

    def _repr_html_(self) -> str:
        """Returns a table of the chosen values, for notebooks."""
        rows = [
            [
                label,
                *(format_metric(self.metric, value, "-") for kind in KINDS for value in gains(entry, kind)),
                spell_params(entry["best"]["params"]) if entry["best"] else "-",
            ]
            for label, entry in self.summary["methods"].items()
        ]
        head = ("method", *(f"{kind}, {which}" for kind in KINDS for which in WHICH), "chosen")
        return notebook_table(METRICS[self.metric].title, head, rows)


KINDS, WHICH = ("validation", "test"), ("default", "tuned")


def gains(entry: Mapping[str, Any], kind: str) -> tuple[float | None, float | None]:
    """Returns the mean score of a method with its default and with the chosen values, on validation or test nodes."""
    if kind == "validation":
        best = entry["best"]
        return entry["default"]["validation"], None if best is None else best["validation"]
    default, tuned = (mean_score(scores) for scores in (entry["default"].get("test"), entry["test"]))
    return default, tuned


def mean_score(scores: Mapping[str, float | None] | None) -> float | None:
    values = [value for value in (scores or {}).values() if value is not None]
    return fmean(values) if values else None


def spell_params(params: Mapping[str, Any]) -> str:
    """Returns values as a person would type them, rounded for reading."""
    return " ".join(
        f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={spell(value)}"
        for name, value in params.items()
    )


def experiment_file(folder: Path, label: str, methods: int) -> Path:
    """Returns where the experiment with the chosen values of a method is."""
    return folder / (EXPERIMENT if methods == 1 else f"{file_name(label)}.toml")


def gain_on_test(metric: str, entry: Mapping[str, Any]) -> str:
    """Returns by how much the chosen values are better on test nodes, seed by seed, with the 95 % interval of the
    mean."""
    from graft.experiments.comparison.statistics import paired_difference

    before, after = entry["default"].get("test") or {}, entry["test"] or {}
    pairs = [(after[seed], before[seed]) for seed in after if None not in (after[seed], before.get(seed))]
    if not pairs or entry["best"]["trial"] == 0:
        return "-"
    sign = METRICS[metric].sign
    gain = paired_difference([sign * tuned for tuned, _ in pairs], [sign * default for _, default in pairs])
    mean, low, high = (format_difference(metric, value, "") for value in (gain.mean, gain.low, gain.high))
    return f"{mean} ({low} to {high})" if low else mean
