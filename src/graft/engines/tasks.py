"""Many calls on a Ray cluster: each a task with its resources, run again elsewhere where a worker dies.

A task is given several items and tells of each when it is done with it; Ray's handle comes from `ray.connected`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from graft.engines.ray import START_SECONDS, Resources, connected, describe_resources, import_ray, one_sentence
from graft.errors import InputError, RunError

RETRIES = 3  # times that an item is begun again whose worker has died
POLL_SECONDS = 0.2  # between two looks at whether somebody has pressed Ctrl-C
ASK_SECONDS = 1.0  # between two questions of a task whether it shall stop

Item = TypeVar("Item")
Stop = Callable[[], bool]
Share = Callable[[Hashable, Callable[[], Any]], Any]  # makes what many tasks are given once, under a name
# Called with a Stop and what was packed of some items; gives the version that it runs on, and then a result an item.
Function = Callable[..., Iterator[Any]]


@dataclass(frozen=True)
class Lost:
    """What came of an item whose worker died every time."""

    reason: str


@contextmanager
def cluster_for_tasks(address: str, most: int, resources: Resources) -> Iterator[Any]:
    """Joins a cluster, or starts one here that has room for so many tasks; one that has room for none is refused."""
    with connected(address, most, resources) as ray:
        if not address and not capacity(ray, resources):
            raise InputError(no_place(ray, resources))
        yield ray


def capacity(ray: Any, resources: Resources) -> int:
    """Returns how many tasks the machines of a cluster have room for at the same time."""
    needs = {"CPU": resources.cpus, "GPU": resources.gpus}
    return sum(
        min(math.floor(node["Resources"].get(name, 0) / amount + 1e-6) for name, amount in needs.items() if amount)
        for node in ray.nodes()
        if node["Alive"]
    )


def no_place(ray: Any, resources: Resources) -> str:
    return f"No machine of the cluster has {resources} for a run: there are {describe_resources(ray)} in all."


def start_switch(ray: Any) -> Any:
    """Starts an actor that says on all machines whether the tasks of a call shall stop."""

    class Switch:  # in a function it travels as it is, and its process imports no PyTorch
        def __init__(self) -> None:
            self.stopped = False

        def stop(self) -> None:
            self.stopped = True

        def is_stopped(self) -> bool:
            return self.stopped

    return ray.remote(Switch).options(num_cpus=0, max_restarts=-1).remote()


def ask_now_and_then(switch: Any) -> Stop:
    """Returns a function that says whether a switch is off; it never waits for the answer, so it may be late."""
    ray = import_ray()
    asked: list[Any] = []  # the question that is under way
    answers = [(-math.inf, False)]  # when the last answer came, and what it was

    def stop() -> bool:
        since, stopped = answers[-1]
        if stopped or time.monotonic() - since < ASK_SECONDS:
            return stopped
        if not asked:
            asked.append(switch.is_stopped.remote())
        if ray.wait(asked, timeout=0)[0]:
            with suppress(ray.exceptions.RayError):  # the machine of the switch is gone: nobody can ask to stop
                stopped = ray.get(asked[0])
            asked.clear()
            answers[:] = [(time.monotonic(), stopped)]
        return stopped

    return stop


def perform_task(function: Function, switch: Any, *packed: Any) -> Iterator[Any]:
    """Runs a task on a worker."""
    yield from function(ask_now_and_then(switch), *packed)


@dataclass
class Running(Generic[Item]):
    """A task, and the items that it has not told of yet."""

    items: list[Item]
    begun: bool = False


class Tasks(Generic[Item]):
    """Chunks of items, each a task of a cluster; at most so many at a time, or as many as there is room for."""

    def __init__(
        self,
        ray: Any,
        function: Function,
        chunks: Sequence[Sequence[Item]],
        resources: Resources,
        pack: Callable[[Sequence[Item], Share], Sequence[Any]],
        version: str,
        most: int | None = None,
    ) -> None:
        self._ray, self._resources, self._pack, self._most = ray, resources, pack, most or len(chunks)
        self._function, self._version = function, version
        options = {"num_returns": "streaming", "max_retries": 0, **resources.options()}
        self._task = ray.remote(perform_task).options(**options)
        self._switch = start_switch(ray)
        self._shared: dict[Hashable, Any] = {}
        self._waiting: list[list[Item]] = [list(chunk) for chunk in chunks]
        self._running: dict[Any, Running[Item]] = {}
        self._deaths: dict[int, int] = {}  # of workers that were at an item, by its id
        self._stopping = False
        self._latest = time.monotonic()  # when something was heard

    def results(self) -> Iterator[tuple[Item, Any]]:
        """Gives what comes of every item, or `Lost`, when it is done; after an exception it can be called again."""
        while self._waiting or self._running:
            while self._waiting and len(self._running) < self._most:
                self._submit(self._waiting.pop(0))
            ready = self._ready(POLL_SECONDS)
            for stream in ready:
                yield from self._hear(stream)
            if not ready:
                self._check_place()

    def stop(self) -> Iterator[tuple[Item, Any]]:
        """Has every task that has begun stop after the round it is in; gives what still comes of them."""
        self._stopping = True
        self._waiting.clear()
        self._switch.stop.remote()
        while ready := self._ready(0):  # what has been said before: some may have begun
            for stream in ready:
                yield from self._hear(stream)
        for stream, task in self._running.items():
            if not task.begun:
                self._ray.cancel(stream)
        yield from self.results()

    def close(self) -> None:
        """Ends at once whatever still runs."""
        for stream in self._running:
            with suppress(Exception):
                self._ray.cancel(stream, force=True)
        with suppress(Exception):
            self._ray.kill(self._switch)

    def _ready(self, seconds: float) -> list[Any]:
        """Returns tasks that have something to say."""
        streams = [*self._running]
        if not streams:
            return []
        ready: list[Any] = self._ray.wait(streams, num_returns=len(streams), timeout=seconds, fetch_local=False)[0]
        return ready

    def _submit(self, items: list[Item]) -> None:
        stream = self._task.remote(self._function, self._switch, *self._pack(items, self._share))
        self._running[stream] = Running(items)

    def _share(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """Returns something that travels to each machine once, however many tasks there are given it."""
        if name not in self._shared:
            self._shared[name] = self._ray.put(make())
        return self._shared[name]

    def _hear(self, stream: Any) -> Iterator[tuple[Item, Any]]:
        """Takes what a task says next."""
        errors, task = self._ray.exceptions, self._running[stream]
        self._latest = time.monotonic()
        try:
            said = self._ray.get(next(stream))
        except StopIteration:
            yield from self._end(stream, "it was told to stop" if task.items else "")
        except errors.TaskCancelledError:
            yield from self._end(stream, "it was cancelled")
        except errors.RayTaskError as error:
            if not task.begun:
                raise RunError(f"Runs cannot start on the cluster: {one_line(error)}") from None
            yield from self._end(stream, one_line(error))
        except errors.RayError as error:
            yield from self._end(stream, one_sentence(error))
        else:
            if task.begun:
                yield task.items.pop(0), said
            else:
                self._check_version(said)
                task.begun = True

    def _end(self, stream: Any, reason: str) -> Iterator[tuple[Item, Any]]:
        """Puts the items that a task leaves behind back into the queue, the one that it was at only so many times."""
        items = self._running.pop(stream).items
        if self._stopping or not items:
            return
        first = items[0]
        deaths = self._deaths[id(first)] = self._deaths.get(id(first), 0) + 1
        if deaths > RETRIES:
            items = items[1:]
        if items:
            self._waiting.insert(0, items)
        if deaths > RETRIES:
            yield first, Lost(f"Its worker died {deaths} times, perhaps for want of memory: {reason}")

    def _check_version(self, theirs: str) -> None:
        """Refuses workers with another version: their results could not be compared."""
        if theirs != self._version:
            raise RunError(f"A worker of the cluster has version {theirs} of Graft, but this machine {self._version}.")

    def _check_place(self) -> None:
        """Gives up where no machine can take a task, and none that could has joined the cluster for long."""
        waited = time.monotonic() - self._latest
        idle = not any(task.begun for task in self._running.values())
        if idle and waited > START_SECONDS and not capacity(self._ray, self._resources):
            raise RunError(no_place(self._ray, self._resources))


def one_line(error: Any) -> str:
    """Returns what a task failed of in one line."""
    cause = error.cause if getattr(error, "cause", None) is not None else error
    return f"{type(cause).__name__}: {' '.join(str(cause).split())[-300:]}"
