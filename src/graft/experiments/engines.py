"""Where the clients of a run live: opens what the engine of an experiment runs on, this process or a cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass

from graft.engines.cluster import Cluster
from graft.engines.failures import Result, persist
from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.engines.memory import budget
from graft.engines.on_demand import OnDemand
from graft.experiments.experiment import Experiment
from graft.federation.clients import Engine
from graft.federation.setup import Setup
from graft.registry import FILE_MODULE


@dataclass(frozen=True)
class Host:
    """What an engine runs on."""

    device: str  # that clients train on
    memory: Callable[[], int]  # bytes that the clients of one process may use, where an experiment does not say
    open_engine: Callable[[Setup], Engine]
    threads: int = 0  # of every process, where an experiment does not say; 0: one for every free core


@contextmanager
def this_process(experiment: Experiment) -> Iterator[Host]:
    device = experiment.torch_device()
    yield Host(device.type, lambda: budget(device), lambda setup: (OnDemand if setup.on_demand else InProcess)(setup))


@contextmanager
def process_a_client(experiment: Experiment) -> Iterator[Host]:
    device = experiment.torch_device()
    yield Host(device.type, lambda: budget(device), Loopback)


@contextmanager
def ray_cluster(experiment: Experiment) -> Iterator[Host]:
    """Joins a Ray cluster, or starts one here, with as many workers as are wanted."""
    from graft.engines.ray import RayPool, Resources, connected, send_code

    resources = Resources(experiment.cpus_per_worker, experiment.gpus_per_worker)
    with connected(experiment.address, experiment.workers, resources) as ray:
        send_code(ray, [module for name, module in list(sys.modules.items()) if name.startswith(FILE_MODULE)])
        workers = min(experiment.workers, experiment.clients)
        allowed = experiment.max_failures
        pool = persist(lambda: RayPool(ray, workers, resources, experiment.precision), lambda: None, allowed)
        with closing(pool):

            def insist(action: Callable[[], Result]) -> Result:
                return persist(action, pool.replace_lost, allowed)

            yield Host(
                resources.device,
                lambda: insist(pool.memory),
                lambda setup: insist(lambda: Cluster(setup, pool)),
                resources.cpus,
            )


HOSTS: dict[str, Callable[[Experiment], AbstractContextManager[Host]]] = {
    "in_process": this_process,
    "loopback": process_a_client,
    "ray": ray_cluster,
}
