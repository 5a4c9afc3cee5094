"""The cluster that many runs are asked to be run on. Imports neither PyTorch nor Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graft.errors import InputError

RAY = "ray"
CPUS, GPUS = 1, 0.0  # of a run, where nobody says otherwise
OF_CLIENTS = ("workers", "cpus_per_worker", "gpus_per_worker")  # fields that share the clients of a single run out


@dataclass(frozen=True)
class RunCluster:
    """A Ray cluster on which every one of many runs is a task, and what each of them is given there."""

    address: str = ""  # empty: one is started here, and stopped in the end
    cpus: int = CPUS
    gpus: float = GPUS

    def __post_init__(self) -> None:
        if self.address.startswith("ray://"):
            raise InputError(
                f"address is {self.address}, but Ray's client cannot follow many tasks: give the command on a machine "
                f"of the cluster, with the address auto or HOST:6379, or as a Ray job."
            )
        if self.cpus < 1:
            raise InputError(f"cpus_per_run is {self.cpus}; it must be at least 1.")
        if not 0 <= self.gpus <= 1:
            raise InputError(f"gpus_per_run is {self.gpus:g}; a run uses one GPU or a share of it: from 0 to 1.")


def choose_cluster(
    values: Mapping[str, Any], cpus: int | None, gpus: float | None
) -> tuple[dict[str, Any], RunCluster | None]:
    """Returns the values of many experiments without what is about a cluster, and the cluster that they run on."""
    address = values.get("address", "")
    if values.get("engine") != RAY:
        for name, value in {"address": address or None, "cpus_per_run": cpus, "gpus_per_run": gpus}.items():
            if value is not None:
                raise InputError(f"{name} is about runs on a Ray cluster, so the engine must be ray.")
        return dict(values), None
    for name in OF_CLIENTS:
        if name in values:
            raise InputError(
                f"{name} shares out the clients of a single run; of many runs each is one task: say jobs, cpus_per_run "
                f"and gpus_per_run."
            )
    kept = {name: value for name, value in values.items() if name not in ("engine", "address")}
    check_device(kept.get("device"), gpus or GPUS)
    return kept, RunCluster(address, CPUS if cpus is None else cpus, GPUS if gpus is None else gpus)


def check_device(device: str | None, gpus: float) -> None:
    """Refuses a device that runs on a cluster are not given."""
    if device == "cuda" and not gpus:
        raise InputError("device is cuda, but a run has no GPU of the cluster: say how much of one, as gpus_per_run=1.")
    if device == "cpu" and gpus:
        raise InputError(f"device is cpu, but a run takes {gpus:g} GPU of the cluster: leave one of them out.")


def refuse_cluster_of_clients(where: str, *engines: Any) -> None:
    """Refuses many runs each of which would have its clients on a cluster."""
    if RAY in engines:
        raise InputError(
            f"{where} has engine ray for the clients of a single run; of many runs each is one task: give the engine "
            f"ray to all of them, as --engine ray."
        )
