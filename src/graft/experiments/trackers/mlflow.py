"""MLflow: a server, or without one a database on the disk, as MLFLOW_TRACKING_URI or MLflow's own default says."""

from __future__ import annotations

import re
import time
from typing import Any

from graft.experiments.callbacks import RunStart
from graft.experiments.trackers.tracker import (
    FAILED,
    FINISHED,
    STOPPED,
    Kept,
    Numbers,
    Tracker,
    links_of,
    parameters_of,
    run_name,
)

EXPERIMENT = "graft"
LONGEST_VALUE = 500  # characters of a parameter that every version takes
MOST_AT_ONCE = 100  # parameters in one call
STATUS = {FINISHED: "FINISHED", STOPPED: "KILLED", FAILED: "FAILED"}
NOT_IN_KEYS = re.compile(r"[^\w\-. /]")


class MLflow(Tracker):
    """Logs every run to an experiment of MLflow, at a tracking URI or where MLflow logs by itself."""

    name = "mlflow"
    package = "mlflow"

    def __init__(self, uri: str | None = None, *, experiment: str = EXPERIMENT) -> None:
        super().__init__(uri)
        self.experiment = experiment

    def begin(self, start: RunStart, kept: Kept) -> Kept:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=self.destination)
        run_id = kept.get("run_id")
        if isinstance(run_id, str):
            self._run_id = run_id
            self._client.update_run(run_id, status="RUNNING")
            return {"run_id": run_id}
        group = self._client.get_experiment_by_name(self.experiment)
        number = group.experiment_id if group else self._client.create_experiment(self.experiment)
        run = self._client.create_run(number, tags=links_of(start), run_name=run_name(start))
        self._run_id = run.info.run_id
        self._log_parameters(parameters_of(start))
        return {"run_id": self._run_id}

    def _log_parameters(self, parameters: dict[str, Any]) -> None:
        from mlflow.entities import Param

        entries = [Param(name, str(value)[:LONGEST_VALUE]) for name, value in parameters.items()]
        for first in range(0, len(entries), MOST_AT_ONCE):
            self._client.log_batch(self._run_id, params=entries[first : first + MOST_AT_ONCE])

    def log(self, numbers: Numbers, step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        entries = [Metric(key_of(name), value, now, step) for name, value in numbers.items()]
        self._client.log_batch(self._run_id, metrics=entries)

    def end(self, summary: Numbers, status: str) -> None:
        if summary:
            last = int(summary.get("rounds", 0))
            self.log({f"result/{name}": value for name, value in summary.items()}, last)
        self._client.set_terminated(self._run_id, STATUS[status])


def key_of(name: str) -> str:
    """Returns a name as MLflow takes it: other characters than letters, digits and a few become underscores."""
    return NOT_IN_KEYS.sub("_", name)
