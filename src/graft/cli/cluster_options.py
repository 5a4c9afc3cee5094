"""The options of commands with many runs that say where these are computed."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

from graft.cli.console import Number, Text
from graft.experiments.run_cluster import (
    CPUS,
    GPUS,
    OF_CLIENTS,
    RAY,
    RunCluster,
    choose_cluster,
    refuse_cluster_of_clients,
)

PANEL = "Engine"
JOBS = "Runs at a time; a core each, 6 on a GPU, or what a cluster has room for, if not given."

# Typer reads these at run time.
Engine = Annotated[
    Text,
    typer.Option(
        help="in_process: runs in processes of this machine; loopback: a process a client; ray: every run is a task "
        "of a Ray cluster. (in_process)",
        rich_help_panel=PANEL,
    ),
]
Address = Annotated[
    Text,
    typer.Option(
        help="Ray cluster to join, as auto or head:6379; one is started here if not given.",
        rich_help_panel=PANEL,
    ),
]
CpusPerRun = Annotated[
    Number, typer.Option(help=f"Cores, and threads, of a run on a Ray cluster. ({CPUS})", rich_help_panel=PANEL)
]
GpusPerRun = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(help=f"GPU of a run on a Ray cluster, as 0.16 for six on one. ({GPUS:g})", rich_help_panel=PANEL),
]


def read_cluster(
    in_file: dict[str, Any],
    flags: dict[str, Any],
    engine: str | None,
    address: str | None,
    cpus: int | None,
    gpus: float | None,
) -> tuple[dict[str, Any], RunCluster | None]:
    """Returns the values of an experiment, flags before what a file has, and the cluster that was asked for."""
    if engine is None:
        refuse_cluster_of_clients("The experiment file", in_file.get("engine"))
    on_cluster = engine == RAY
    dropped = [*OF_CLIENTS, *(["engine"] if engine else []), *([] if on_cluster else ["address"])]
    values = {name: value for name, value in in_file.items() if name not in dropped} | flags
    values |= {name: value for name, value in (("engine", engine), ("address", address)) if value is not None}
    return choose_cluster(values, cpus, gpus)
