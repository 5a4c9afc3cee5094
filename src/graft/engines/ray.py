"""Workers on a Ray cluster: the one file that knows Ray.

Ray listens on the host's address and sends objects by pickle: it is for one trusted cluster, never for organisations
that do not trust each other.
"""

from __future__ import annotations

import copyreg
import os
import socket
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass
from types import ModuleType
from typing import Any

from graft.engines.arrays import Arrays, count_array_bytes
from graft.engines.failures import ClusterLost, WorkerLost
from graft.engines.worker import Worker
from graft.errors import InputError, RunError

INLINE_BYTES = 90_000  # smaller messages travel with a call (Ray allows 100 KiB), others by the object store
INLINE_IN_ALL = 500_000  # to all workers; a copy for each takes longer than the object store where there are many
START_SECONDS = 300.0  # that a worker may take to be given a place: clusters that grow need minutes for a machine
REACH_SECONDS = 10.0  # that the head of a cluster may take to answer before it is joined
LOOK_SECONDS = 5.0  # between two looks at the head of a cluster
SILENT_SECONDS = 30.0  # after which it is gone: after 60, Ray ends this process with no word of ours
QUIET = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def import_ray() -> Any:
    """Returns Ray, or says how to get it."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise InputError("The engine ray needs the package Ray: pip install 'graft-fgl[ray]'.") from error
    return ray


@dataclass(frozen=True)
class Resources:
    """What each worker, or each run of many, is given on a cluster."""

    cpus: int = 1
    gpus: float = 0.0

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"

    def options(self) -> dict[str, Any]:
        return {"num_cpus": self.cpus, "num_gpus": self.gpus, "scheduling_strategy": "SPREAD"}

    def __str__(self) -> str:
        gpus = f" and {self.gpus:g} GPU" if self.gpus else ""
        return f"{self.cpus} {'core' if self.cpus == 1 else 'cores'}{gpus}"


@contextmanager
def connected(address: str, workers: int, resources: Resources) -> Iterator[Any]:
    """Joins a cluster, or starts one here and stops it in the end; one that was joined before is used as it is."""
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    check_reachable(address)
    local: dict[str, Any] = {} if address else {"num_cpus": workers * resources.cpus, "include_dashboard": False}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **local)
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f"There is no Ray cluster at '{address}'" if address else "Ray does not start here"
        raise InputError(f"{where}: {' '.join(str(error).split())[:200]}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def check_reachable(address: str) -> None:
    """Refuses the address of a machine at which nobody listens: Ray itself would try for twelve minutes."""
    named = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    host, _, port = named.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise InputError(f"There is no Ray cluster at '{named}': {error}.") from error


def send_code(ray: Any, modules: Sequence[ModuleType]) -> None:
    """Has classes of a person's own files travel with their code, since other machines may not have these files."""
    # A field without a default says so by an object that is compared by its identity, which a copy of it has not.
    copyreg.pickle(type(MISSING), lambda _: "MISSING")
    for module in modules:
        ray.cloudpickle.register_pickle_by_value(module)


class RayWorker(Worker):
    """A worker that knows which machine of the cluster it is on."""

    def node(self) -> str:
        node: str = import_ray().get_runtime_context().get_node_id()
        return node


class RayPool:
    """Workers that are Ray actors."""

    def __init__(self, ray: Any, workers: int, resources: Resources, precision: str = "float32") -> None:
        self._ray, self._resources, self._precision = ray, resources, precision
        self._closed = False
        self._head = Head(ray)
        self._actors: list[Any] = [None] * workers
        try:
            self._start(range(workers))
        except BaseException:
            self.close()
            raise

    def _start(self, workers: Sequence[int]) -> None:
        ray, resources = self._ray, self._resources
        actor = ray.remote(RayWorker).options(max_restarts=0, max_task_retries=0, **resources.options())
        for worker in workers:
            self._actors[worker] = actor.remote(resources.cpus, self._precision, resources.device)
        begun = {self._actors[worker].describe.remote(): worker for worker in workers}
        waiting, until = list(begun), time.monotonic() + START_SECONDS
        while waiting and time.monotonic() < until:
            self._head.check()
            if not any(node["Alive"] for node in ray.nodes()):
                raise ClusterLost("The Ray cluster is gone: none of its machines is left.")
            timeout = min(LOOK_SECONDS, max(until - time.monotonic(), 0.0))
            _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=timeout)
        for call in waiting:  # or they would take a place that comes free later
            ray.kill(self._actors[begun[call]])
        if waiting:
            raise ClusterLost(
                f"The cluster has no place for {len(waiting)} of {len(self._actors)} workers with {resources} each: it "
                f"has {describe_resources(ray)} in all."
            )
        self.gather(list(begun))

    def __len__(self) -> int:
        return len(self._actors)

    def share(self, arrays: Arrays | None) -> Any:
        limit = min(INLINE_BYTES, INLINE_IN_ALL / len(self))
        return arrays if count_array_bytes(arrays) < limit else self._ray.put(arrays)

    def call(self, worker: int, name: str, *arguments: Any) -> Any:
        if self._closed:
            return None
        return getattr(self._actors[worker], name).remote(*arguments)

    def gather(self, calls: Sequence[Any]) -> list[Any]:
        errors = self._ray.exceptions
        while True:
            self._head.check()
            try:
                results: list[Any] = self._ray.get(list(calls), timeout=LOOK_SECONDS)
                return results
            except errors.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, Exception) else RunError(str(error))) from None
            except errors.GetTimeoutError:
                continue
            except (errors.RayActorError, errors.ObjectLostError, errors.NodeDiedError, errors.WorkerCrashedError) as e:
                raise WorkerLost(f"A worker of the cluster has ended: {one_sentence(e)}") from e
            except (errors.RayError, ConnectionError) as error:
                raise ClusterLost(f"The Ray cluster cannot be used any more: {one_sentence(error)}") from error

    def replace_lost(self) -> list[int]:
        """Starts a new worker for each that has ended; a worker that cannot be reached is ended first."""
        lost = []
        for worker, actor in enumerate(self._actors):
            try:
                self.gather([self.call(worker, "describe")])
            except WorkerLost:
                with suppress(Exception):
                    self._ray.kill(actor)
                lost.append(worker)
        self._start(lost)
        return lost

    def nodes(self) -> list[str]:
        """Returns which machine of the cluster each worker is on."""
        return self.gather([self.call(worker, "node") for worker in range(len(self))])

    def memory(self) -> int:
        """Returns how many bytes each worker may use: they share the memory of their machines, or of a GPU."""
        told = self.gather([self.call(worker, "describe") for worker in range(len(self))])
        nodes, gpus = self.nodes(), self._resources.gpus
        sharing = [max(1, int(1 / gpus)) if gpus else nodes.count(node) for node in nodes]
        budgets: list[int] = [entry["budget"] for entry in told]
        return min(budget // count for budget, count in zip(budgets, sharing, strict=True))

    def processes(self) -> list[int]:
        """Returns the process numbers of all workers."""
        told = self.gather([self.call(worker, "describe") for worker in range(len(self))])
        return [entry["process"] for entry in told]

    def close(self) -> None:
        """Ends all workers."""
        self._closed = True
        for actor in self._actors:
            with suppress(Exception):
                self._ray.kill(actor)


class Head:
    """The process of a cluster that knows all others. Workers answer for a while without it, and then all ends."""

    def __init__(self, ray: Any) -> None:
        self._address: tuple[str, int] | None = None  # not known where a proxy is between the cluster and this process
        with suppress(Exception):
            host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
            self._address = host.strip("[]"), int(port)
        self._looked = self._seen = time.monotonic()

    def check(self) -> None:
        """Raises `ClusterLost` where the head has not been reached for a while; looks only now and then."""
        now = time.monotonic()
        if self._address is None or now - self._looked < LOOK_SECONDS:
            return
        try:
            socket.create_connection(self._address, timeout=LOOK_SECONDS).close()
            self._seen = now
        except OSError as error:
            if now - self._seen > SILENT_SECONDS:
                raise ClusterLost(f"The Ray cluster is gone: nobody answers at {self._address[0]}.") from error
        self._looked = now


def one_sentence(error: Exception) -> str:
    """Returns what is worth knowing of what Ray says: why a worker died, or what it failed of while it started."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if "creation task" in lines[0]:
        return lines[-1][:200]
    reason = next((line for line in lines if line.startswith("The actor is dead because")), lines[0])
    return reason.partition(". ")[0].rstrip(".")[:200] + "."


def describe_resources(ray: Any) -> str:
    """Returns the cores and GPUs of a cluster in words."""
    total = ray.cluster_resources()
    gpus = total.get("GPU", 0)
    return f"{total.get('CPU', 0):g} cores" + (f" and {gpus:g} GPUs" if gpus else "")
