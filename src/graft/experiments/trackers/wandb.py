"""Weights & Biases. WANDB_MODE=offline keeps everything on the disk, in WANDB_DIR or ./wandb, for `wandb sync`."""

from __future__ import annotations

from typing import Any

from graft.experiments.callbacks import RunStart
from graft.experiments.trackers.tracker import (
    FINISHED,
    Kept,
    Numbers,
    Tracker,
    links_of,
    parameters_of,
    run_name,
)

PROJECT = "graft"


class WandB(Tracker):
    """Logs every run to a project of Weights & Biases; further options are those of `wandb.init`."""

    name = "wandb"
    package = "wandb"

    def __init__(self, project: str | None = None, **options: Any) -> None:
        super().__init__(project)
        self.options = options

    def begin(self, start: RunStart, kept: Kept) -> Kept:
        import wandb

        config = {**parameters_of(start), **links_of(start)}
        chosen = {"name": run_name(start), "job_type": start.experiment.label, **self.options}
        resumed = {"id": kept["id"], "resume": "allow"} if isinstance(kept.get("id"), str) else {}
        # Its copy of the terminal's output would hold every frame of a live view.
        settings = wandb.Settings(console="off")
        self._run = wandb.init(
            project=self.destination or PROJECT, config=config, settings=settings, **{**chosen, **resumed}
        )
        return {"id": self._run.id}

    def log(self, numbers: Numbers, step: int) -> None:
        self._run.log(numbers, step=step)

    def end(self, summary: Numbers, status: str) -> None:
        self._run.summary.update({**{f"result/{name}": value for name, value in summary.items()}, "status": status})
        self._run.finish(exit_code=0 if status == FINISHED else 1)
