"""What makes two runs the same experiment: the whole resolved experiment, its hash, and hashes of what it names."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from graft.experiments.experiment import Experiment, own_files
from graft.files import canonical, checksum

if TYPE_CHECKING:
    from graft.data.federation import FederationData
    from graft.federation.setup import Setup

NOT_COMPARED = (  # how a run is computed, not what
    "device",
    "engine",
    "workers",
    "cpus_per_worker",
    "gpus_per_worker",
    "address",
    "max_failures",
    "threads",
    "memory",
    "checkpoint_every",
)
PACKAGES = ("torch", "torch_geometric", "numpy", "scipy", "scikit-learn")


def comparable(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of an experiment that decide its result, as JSON would give them back."""
    kept: dict[str, Any] = json.loads(
        json.dumps({name: value for name, value in experiment.items() if name not in NOT_COMPARED})
    )
    return kept


def experiment_hash(experiment: Mapping[str, Any]) -> str:
    """Returns a hash that runs share if all that decides their results is the same, the seed included."""
    return checksum(canonical(comparable(experiment)))


def identify(experiment: Experiment, setup: Setup, federation: FederationData) -> dict[str, Any]:
    """Returns what result.json holds of the experiment, its data, models and code, and of the versions it ran on."""
    from graft.models.assigned import models_checksum  # which imports PyTorch: comparisons do without

    values = asdict(experiment)
    return {
        "experiment": values,
        "hashes": {
            "experiment": experiment_hash(values),
            "graph": federation.graph_hash,
            "partition": federation.hash,
            "models": models_checksum(setup.models),
            "code": checksum(*(file.read_bytes() for file in own_files(experiment))),
        },
        "versions": {"python": platform.python_version(), **installed_versions()},
    }


def installed_versions() -> dict[str, str]:
    """Returns the versions of the packages that results depend on."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # as of a PyTorch that was built by hand
            versions[name] = "unknown"
    return versions
