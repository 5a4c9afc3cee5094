"""A sweep: many experiments run together, and what came of them."""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import tomli_w

import graft
from graft.errors import InputError
from graft.experiments.callbacks import Callbacks
from graft.experiments.comparison.comparison import Comparison, mean_std, spell, what_is_tried, what_it_is_tried_on
from graft.experiments.comparison.finished_runs import FinishedRun, find_runs
from graft.experiments.experiment_settings import ExperimentSettings
from graft.experiments.many_runs import Outcome, Report, exclusive, file_name
from graft.experiments.notebook_table import notebook_table
from graft.experiments.progress_log import logged
from graft.experiments.run_cluster import RunCluster, choose_cluster
from graft.experiments.sweep.design import Design
from graft.experiments.sweep.plan import PlannedRun, plan_runs, run_planned, suit
from graft.federation.method import Method
from graft.federation.metric_names import METRICS
from graft.files import explained, printable, read_text, write_text
from graft.options import check_jobs

if TYPE_CHECKING:
    import polars
    from matplotlib.figure import Figure

    from graft.experiments.comparison.differences import Difference

FILE = "sweep.toml"


class Sweep:
    """What the runs of a sweep found out: in rows, by what was tried, and columns, by the data, with seeds inside."""

    def __init__(
        self,
        runs: Sequence[FinishedRun],
        failures: Mapping[str, str] | None = None,
        folder: Path | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        self.runs = list(runs)
        self.failures = dict(failures or {})  # name of a run -> why it failed, in one sentence
        self.folder = folder  # of its records; None where they were not kept
        self.outcome = outcome or Outcome(skipped=len(self.runs))  # how the call went that made it

    @classmethod
    def load(cls, folder: str | Path) -> Sweep:
        """Returns the sweep of a folder, or of any folder with finished runs."""
        return cls(find_runs([Path(folder)]), folder=Path(folder))

    @cached_property
    def comparison(self) -> Comparison:
        """Returns the runs in rows and columns."""
        if not self.runs:
            reasons = f": {next(iter(self.failures.values()))}" if self.failures else "."
            raise InputError(f"No run of this sweep is finished{reasons}")
        return Comparison(self.runs)

    def frame(self) -> polars.DataFrame:
        """Returns a row a run: its place in the comparison, the fields that were varied, scores, bytes and seconds."""
        try:
            import polars
        except ImportError:
            raise InputError("Sweep.frame() makes a polars.DataFrame: pip install polars.") from None
        rows = [
            {"row": row, "column": column, "seed": seed, **varied, **measured(run)}
            for (row, column), cell in self.comparison.cells.items()
            for seed, run in sorted(cell.items())
            for varied in [self._varied_fields[id(run)]]
        ]
        return polars.DataFrame(rows, infer_schema_length=None)

    @cached_property
    def _varied_fields(self) -> dict[int, dict[str, Any]]:
        """Returns for each run, by its id, the fields in which runs differ, lists as text."""
        tables = {
            id(run): {**what_it_is_tried_on(run.experiment), **what_is_tried(run.experiment)} for run in self.runs
        }
        names = dict.fromkeys(name for table in tables.values() for name in table)
        varied = [name for name in names if len({repr(table.get(name)) for table in tables.values()}) > 1]
        texts = {name for name in varied if len({type(table.get(name)) for table in tables.values()} - NUMBERS) > 0}
        return {
            run: {
                name.removeprefix("settings."): as_text(table.get(name)) if name in texts else table.get(name)
                for name in varied
            }
            for run, table in tables.items()
        }

    def compare(self, baseline: str) -> list[Difference]:
        """Returns how each row differs from a baseline, paired by seed and partition, with intervals and p-values."""
        from graft.experiments.comparison.differences import compare_with

        return compare_with(self.comparison, baseline)

    def to_latex(self, **options: Any) -> str:
        """Returns the table as LaTeX; the options are those of `graft compare`."""
        from graft.experiments.reports.latex import to_latex

        return to_latex(self.comparison, **options)

    def plot_scores(self) -> Figure:
        """Returns a figure of the scores of all rows in all columns."""
        from graft.experiments.reports import paper_figures

        return paper_figures.plot_scores(self.comparison)

    def plot_curves(self) -> Figure:
        """Returns a figure of the scores by round, with bands over seeds."""
        from graft.experiments.reports import paper_figures

        return paper_figures.plot_curves(self.comparison)

    def plot_ranks(self) -> Figure:
        """Returns a figure of average ranks over columns, with the critical difference."""
        from graft.experiments.reports import paper_figures

        return paper_figures.plot_ranks(self.comparison)

    def plot_cost(self) -> Figure:
        """Returns a figure of scores against what was sent."""
        from graft.experiments.reports import paper_figures

        return paper_figures.plot_cost(self.comparison)

    def plot_gains(self, baseline: str) -> Figure:
        """Returns a figure of what every client gains over a baseline, on its own test nodes."""
        from graft.experiments.reports import paper_figures

        return paper_figures.plot_gains(self.comparison, baseline)

    def report(self, folder: str | Path | None = None) -> Path:
        """Writes report.html into a folder, or into that of the sweep, or a page of that name; returns its path."""
        out = Path(folder) if folder is not None else self.folder
        if out is None:
            raise InputError("This sweep kept no folder; say where its report goes, as sweep.report('out').")
        from graft.experiments.reports.report import write_comparison_report

        with explained(f"{out} cannot be written to", InputError):
            (out.parent if out.suffix == ".html" else out).mkdir(parents=True, exist_ok=True)
        return write_comparison_report(self.comparison, out)

    def __repr__(self) -> str:
        size = [f"{len(self.runs)} runs"]
        if self.runs:
            rows, columns = self.comparison.rows, self.comparison.columns
            size.append(f"{len(rows)} rows x {len(columns)} columns")
        failed = [f"{len(self.failures)} failed"] if self.failures else []
        return f"Sweep({', '.join(size + failed)})"

    def _repr_html_(self) -> str:
        """Returns a table of means over seeds, for notebooks."""
        failures = [f"Failed: {name}: {why}" for name, why in self.failures.items()]
        if not self.runs:
            return notebook_table(repr(self), notes=failures)
        table, metric = self.comparison, METRICS[self.comparison.metric]
        rows = [
            [row, *(mean_std([*table.values(row, column).values()], table.metric) for column in table.columns)]
            for row in table.rows
        ]
        unit = " in percent" if metric.percent else ""
        title = f"Test {metric.title}{unit}, mean ± standard deviation over seeds"
        return notebook_table(title, ("", *table.columns), rows, failures)


NUMBERS = {int, float, bool, type(None)}


def as_text(value: Any) -> str | None:
    return None if value is None else spell(value)


def measured(run: FinishedRun) -> dict[str, Any]:
    """Returns what a run scored by each metric, what it sent and how long it took; scores are fractions."""
    summary, sent = run.summary, run.summary["communication"]
    metrics = [run.metric, *(name for name in summary.get("metrics", {}) if name != run.metric)]
    scores: dict[str, Any] = {}
    for metric in metrics:
        end = "" if metric == run.metric else f"_{metric}"
        scores |= {f"{kind}{end}": run.score(metric, kind) for kind in ("test", "validation", "test_global")}
    return {
        "metric": run.metric,
        **scores,
        "best_round": summary["best_round"],
        "rounds": summary["rounds"],
        **{name: sent[name] for name in ("up_bytes", "down_bytes", "peer_bytes")},
        "seconds": summary["seconds"]["total"],
        "path": str(run.path) if run.path else None,
    }


def sweep(
    methods: Any = "fedgkc",
    datasets: Any = "digits",
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | Sequence[int] = 5,
    models: Any = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    keep_models: bool = False,
    callbacks: Callbacks = (),
    report: Report | None = None,
    cpus_per_run: int | None = None,
    gpus_per_run: float | None = None,
    **settings: Unpack[ExperimentSettings],
) -> Sweep:
    """Runs every combination of methods, datasets, values of a grid and seeds; without `out` no file is kept.

    A method, a dataset or a model may be an object, as in `run`: then, and where callbacks want to hear of the runs,
    all are run in this process, one after the other; otherwise in `jobs` processes. With `engine="ray"` every run is a
    task of a Ray cluster, objects or not, and `jobs` the most at the same time. With the same `out` it goes on.
    `report` is called with a dictionary after every run.
    """
    values, cluster = choose_cluster(settings, cpus_per_run, gpus_per_run)
    if "seed" in values:
        raise InputError(f"A sweep has seeds: give seeds=[{values['seed']}] instead of seed={values['seed']}.")
    for method in as_list(methods):
        if not isinstance(method, str | Method):
            raise InputError(f"methods has {method!r}; it should be a name or an instance of a Method, as FedAvg().")
    own_graphs = bool(values.get("graphs")) and datasets == "digits"
    chosen = dict(grid or {})
    if models is not None:
        values["models"] = models
    design = Design(
        methods=[] if "method" in chosen and methods == "fedgkc" else as_list(methods),
        datasets=[] if own_graphs or ("dataset" in chosen and datasets == "digits") else as_list(datasets),
        grid={name: as_list(entry) for name, entry in chosen.items()},
        seeds=range(seeds) if isinstance(seeds, int) else list(dict.fromkeys(seeds)),
        settings=values.pop("settings", {}),
        values=values,
        keep_models=keep_models,
    )
    folder = None if out is None else Path(out)
    return run_design(design, folder, jobs=jobs, report=report, callbacks=callbacks, cluster=cluster)


def as_list(value: Any) -> list[Any]:
    """Returns several values as a list, and a single one as a list of one."""
    return list(value) if isinstance(value, list | tuple) else [value]


def run_design(
    design: Design,
    out: Path | None = None,
    *,
    jobs: int | None = None,
    report: Report | None = None,
    callbacks: Callbacks = (),
    cluster: RunCluster | None = None,
) -> Sweep:
    """Runs what is missing of a sweep, in a folder or without one."""
    check_jobs(jobs)
    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graft-sweep-")))
        runs = plan_runs(suit(design.variants()), lambda row, column, seed: run_folder(folder, row, column, seed))
        if out is not None:
            begin_folder(out, design)
        stack.enter_context(exclusive(folder, "graft sweep"))
        tell = logged(folder, len(runs), report)
        outcome = run_planned(
            runs, keep_models=design.keep_models, jobs=jobs, report=tell, callbacks=callbacks, cluster=cluster
        )
        return collect(runs, outcome, out)


def collect(runs: Sequence[PlannedRun], outcome: Outcome, out: Path | None) -> Sweep:
    """Returns what is finished of some planned runs."""
    finished = [run for run in (planned.read() for planned in runs) if run is not None]
    if out is None:  # the files are gone soon
        finished = [replace(run, path=None) for run in finished]
    return Sweep(finished, outcome.failures, out, outcome)


def run_folder(folder: Path, row: str, column: str, seed: int) -> Path:
    return folder / "runs" / file_name(row) / f"{file_name(column)}-seed{seed}"


def begin_folder(out: Path, design: Design) -> None:
    """Puts a sweep on record in its folder; one that holds another sweep or something else is refused.

    More seeds may be added to a sweep.
    """
    description = tomllib.loads(tomli_w.dumps(design.describe()))
    with explained(f"{out} cannot be written to", InputError):
        if out.is_file():
            raise InputError(f"{out} is a file; a sweep needs a directory.")
        if out.is_dir() and any(out.iterdir()):
            check_same(out, description)
        out.mkdir(parents=True, exist_ok=True)
    write_text(out / FILE, tomli_w.dumps({"graft": graft.__version__, **description}))


def check_same(out: Path, description: Mapping[str, Any]) -> None:
    """Refuses a folder that does not hold this sweep."""
    try:
        stored = tomllib.loads(read_text(out / FILE))
    except FileNotFoundError:
        raise InputError(f"{out} holds something else than a sweep; choose another --out.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{out / FILE} cannot be read: {error}.") from None
    there, here = flat(stored), flat(description)
    added = set(stored.get("seeds", [])) <= set(description["seeds"])
    ignored = {"graft", *(("seeds",) if added else ())}
    names = [name for name in {**there, **here} if name not in ignored and there.get(name) != here.get(name)]
    if names:
        differs = "; ".join(
            f"{name} is {shown(there.get(name))} there and {shown(here.get(name))} here" for name in names[:3]
        )
        raise InputError(f"{out} holds another sweep: {differs}. Choose another --out.")


def flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a description, those in tables as table.name."""
    values: dict[str, Any] = {}
    for name, entry in tables.items():
        values |= {f"{name}.{key}": value for key, value in entry.items()} if isinstance(entry, dict) else {name: entry}
    return values


def shown(value: Any) -> str:
    return "not given" if value in (None, []) else printable(spell(value))
