"""The engine whose clients are shared out over workers: it asks all of them at once, and joins what they reply."""

from __future__ import annotations

import itertools
import time
import weakref
from collections import deque
from collections.abc import Collection, ItemsView, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from graft.data.graphs import Ints
from graft.data.lazy_graphs import ClientGraphs
from graft.engines.arrays import Arrays, count_array_bytes, stack_alike, to_array, to_arrays, to_tree, unstack
from graft.engines.fetching import fetch
from graft.engines.placement import share_out
from graft.engines.state_files import TRAVEL_BYTES, StateFiles
from graft.engines.worker import Answer, StepCall, Sum
from graft.federation.clients import HeldField, Replies, Request, Round, StepLosses
from graft.federation.method import find_step
from graft.federation.server import Server
from graft.federation.setup import Setup
from graft.tensors.trees import Tree, add_sums, map_tree

MOST_TIMINGS = 10_000
COPIES = itertools.count()  # keys of copies at workers; clusters that share a pool must not drop each other's


class WorkerPool(Protocol):
    """Workers, wherever they are; a worker that has ended makes `gather` raise `WorkerLost`."""

    def __len__(self) -> int: ...

    def share(self, arrays: Arrays | None) -> Any:
        """Returns arrays as an argument of calls to several workers: sent once, not once a worker."""
        ...

    def call(self, worker: int, name: str, *arguments: Any) -> Any:
        """Begins a call of a `Worker`'s method; calls to one worker are answered in order."""
        ...

    def gather(self, calls: Sequence[Any]) -> list[Any]:
        """Returns the results of calls."""
        ...

    def replace_lost(self) -> list[int]:
        """Starts a new worker for each that has ended, and returns their numbers."""
        ...


class Timing(NamedTuple):
    """How long an exchange with workers took, and how much of it they worked."""

    step: str  # or "step/field" of a mean
    seconds: float  # from the request to the replies
    working: float  # seconds of the slowest worker
    workers: int
    sent: int  # bytes of what all workers were told alike
    received: int  # bytes of what they replied


class Cluster:
    """Clients on the workers of a pool; what they keep stays there."""

    def __init__(self, setup: Setup, pool: WorkerPool) -> None:
        self._setup, self._pool = setup, pool
        self._clients = share_out(setup, len(pool))
        self._worker_of = np.empty(len(setup.graphs), np.int32)
        for worker, clients in enumerate(self._clients):
            self._worker_of[clients] = worker
        self._losses: StepLosses = []
        self._votes: dict[tuple[str, str], str] = {}  # by step and field, the field of replies that its mean went by
        self._fetched = StateFiles()  # states of clients that are read on demand, as far as anybody asked for them
        self.timings: deque[Timing] = deque(maxlen=MOST_TIMINGS)  # of the last exchanges
        self._build(range(len(self._clients)))

    def _build(self, workers: Sequence[int]) -> None:
        """Starts the clients of some workers: each reads its own graphs, or is sent those that are in memory here."""
        calls = []
        for worker in workers:
            own, lazy = self._clients[worker], isinstance(self._setup.graphs, ClientGraphs)
            clients = None if self._setup.on_demand else own.tolist()  # it reads whom it is asked for
            arguments = (self._setup, clients) if lazy else (self._setup.part(own.tolist()),)
            calls.append(self._pool.call(worker, "build", *arguments))
        self._fetched = StateFiles()
        self._pool.gather(calls)

    def restart(self) -> None:
        """Has all clients begin anew, on new workers where some have ended.

        Those of other workers too: what they were in the middle of, and what was captured of it, is forgotten.
        """
        self._losses = []
        self._pool.replace_lost()
        self._build(range(len(self._clients)))

    def members(self) -> Sequence[int]:
        return range(len(self._worker_of))

    def execute(self, server: Server, kind: Any, round: Round) -> tuple[Tree, Any]:  # noqa: ARG002
        return fetch(*round())

    def ask(self, request: Request) -> Replies:
        find_step(self._setup.method, request.step)  # refused here as it would be there
        begun, mail = time.perf_counter(), request.mail
        arrays = to_arrays(request.message if mail is None else mail.sent)
        message = self._pool.share(arrays)
        numbers = np.asarray(request.clients, np.int64)
        asked = self._positions(numbers)
        votes = {field: name for (step, field), name in self._votes.items() if step == request.step}
        calls = []
        for worker, positions in asked.items():
            clients = numbers[positions].tolist()
            each = None if request.each is None else stack_alike({client: request.each[client] for client in clients})
            senders = None if mail is None else list(mail.senders)
            links = None if mail is None else to_array(mail.links[positions])
            call = StepCall(request.step, request.round, request.turn, clients, each, senders, links, votes)
            calls.append(self._pool.call(worker, "ask", call, message))
        answers: list[Answer] = self._pool.gather(calls)
        for answer in answers:
            self._losses += [(label, clients, torch.tensor(loss)) for label, clients, loss in answer.losses]
        parts = [(clients, to_tree(arrays)) for answer in answers for clients, arrays in answer.parts]
        replies = Replies(parts, self._held_fields(request, answers, asked, parts))
        received = sum(count_array_bytes(part) for answer in answers for _, part in answer.parts)
        received += sum(count_array_bytes(part.arrays) for answer in answers for part in answer.sums.values())
        self._note(request.step, begun, answers, count_array_bytes(arrays), received)
        return replies

    def _note(self, step: str, begun: float, results: Sequence[Answer | Sum], sent: int, received: int) -> None:
        """Keeps how long an exchange took."""
        working = max(result.seconds for result in results)
        self.timings.append(Timing(step, time.perf_counter() - begun, working, len(results), sent, received))

    def _positions(self, clients: Ints) -> dict[int, Ints]:
        """Returns where in an array of clients those of each worker are; the worker of the first client comes first."""
        workers = self._worker_of[clients]
        positions = np.argsort(workers, kind="stable")
        ends = np.cumsum(np.bincount(workers, minlength=len(self._clients)))
        asked = {worker: own for worker, own in enumerate(np.split(positions, ends[:-1])) if len(own)}
        return dict(sorted(asked.items(), key=lambda entry: int(entry[1][0])))

    def _held_fields(
        self, request: Request, answers: Sequence[Answer], asked: Mapping[int, Ints], parts: Sequence[Any]
    ) -> dict[str, HeldField]:
        """Returns the fields that stayed at the workers, with the way to their mean.

        Workers add up by the field of the replies that was the weight the last time, so that their sums are here
        already; where the weights turn out to be others, workers are asked again. `parts` are what did not stay there.
        """

        def mean_of(field: str) -> Any:
            def mean(weights: Tensor) -> Any:
                votes = weights if weights.sum() > 0 else torch.ones_like(weights)
                used = {answer.sums[field].votes if field in answer.sums else None for answer in answers}
                weighing = find_field(Replies(parts), votes)
                if weighing is not None and used == {weighing}:
                    sums = [answer.sums[field].arrays for answer in answers]
                else:
                    sums = self._sum_held(request, field, asked, votes)
                if weighing is not None:
                    self._votes[request.step, field] = weighing
                return divide(add_sums([to_tree(part) for part in sums]).sum, votes.double().sum())

            return mean

        names = dict.fromkeys(name for answer in answers for name in answer.held)
        return {name: HeldField(mean_of(name), sum(answer.held.get(name, 0) for answer in answers)) for name in names}

    def _sum_held(self, request: Request, field: str, asked: Mapping[int, Ints], weights: Tensor) -> list[Arrays]:
        """Returns every worker's sum of a field that stayed there, each client times its weight."""
        begun, votes = time.perf_counter(), weights.tolist()
        calls = []
        for worker, own in asked.items():
            vote_of = {request.clients[position]: votes[position] for position in own}
            calls.append(self._pool.call(worker, "sum_held", request.step, request.turn, field, vote_of))
        sums: list[Sum] = self._pool.gather(calls)
        received = sum(count_array_bytes(part.arrays) for part in sums)
        self._note(f"{request.step}/{field}", begun, sums, 0, received)
        return [part.arrays for part in sums]

    def losses(self) -> StepLosses:
        losses, self._losses = self._losses, []
        return losses

    def _everywhere(self, name: str, *arguments: Any) -> list[Any]:
        return self._pool.gather([self._pool.call(worker, name, *arguments) for worker in range(len(self._clients))])

    def state(self) -> Mapping[int, Tree]:
        if not self._setup.on_demand:
            return merge(self._everywhere("state"))
        for worker, versions in enumerate(self._everywhere("versions")):
            known = self._fetched.versions
            waiting = [client for client, version in versions.items() if known.get(client) != version]
            while waiting:  # a part at a time: all of them need not fit into memory
                states = self._read_states(worker, waiting)
                self._fetched.put(states, versions)
                waiting = [client for client in waiting if client not in states]
        return self._fetched

    def _read_states(self, worker: int, clients: Sequence[int]) -> dict[int, Tree]:
        """Returns copies of the states of the first of a worker's clients; what they came in is let go."""
        (rows,) = self._pool.gather([self._pool.call(worker, "read_states", clients)])
        return unstack(rows)

    def copy_state(
        self, fields: Collection[str] | None = None, clients: Collection[int] | None = None
    ) -> Mapping[int, Tree]:
        key, chosen = next(COPIES), list(self.members() if clients is None else clients)
        names = None if fields is None else list(fields)
        owned = self._by_worker(chosen)
        self._pool.gather([self._pool.call(worker, "keep_copy", key, names, own) for worker, own in owned.items()])
        return CopiedStates(self, key, chosen)

    def fetch_copy(self, key: int, clients: Sequence[int]) -> dict[int, Tree]:
        """Returns what was copied of some clients."""
        calls = [self._pool.call(worker, "fetch_copy", key, own) for worker, own in self._by_worker(clients).items()]
        return merge(self._pool.gather(calls))

    def _by_worker(self, clients: Sequence[int]) -> dict[int, list[int]]:
        """Returns which of some clients each worker has."""
        numbers = np.asarray(clients, np.int64)
        return {worker: numbers[positions].tolist() for worker, positions in self._positions(numbers).items()}

    def drop_copy(self, key: int) -> None:
        for worker in range(len(self._clients)):
            self._pool.call(worker, "drop_copy", key)

    def restore(self, state: Mapping[int, Tree]) -> None:
        if self._setup.on_demand:
            self._fetched = StateFiles.of(state)
            self._everywhere("restore", [])
            for states in self._fetched.batches(enough=TRAVEL_BYTES):
                self._send_states("add_states", states)
        else:
            self._send_states("restore", state)
        self._losses = []

    def _send_states(self, name: str, states: Mapping[int, Tree]) -> None:
        """Sends each worker the states of its clients."""
        owned: list[dict[int, Tree]] = [{} for _ in self._clients]
        for client, tree in states.items():
            owned[self._worker_of[client]][client] = tree
        self._pool.gather([self._pool.call(worker, name, stack_alike(trees)) for worker, trees in enumerate(owned)])

    def describe_workers(self) -> list[dict[str, Any]]:
        """Returns the process, the memory that it may use and the most that it has used, of every worker."""
        return self._everywhere("describe")

    def close(self) -> None:
        """Leaves the pool to whoever opened it."""


def find_field(replies: Replies, weights: Tensor) -> str | None:
    """Returns the field of the replies that is these weights, number by number, if there is one."""
    for name, branch in replies.parts[0][1].items():
        alike = isinstance(branch, Tensor) and branch.dim() == 1 and branch.dtype == weights.dtype and name in replies
        if alike and torch.equal(getattr(replies, name), weights.cpu()):
            return str(name)
    return None


def divide(total: Any, count: Tensor) -> Any:
    """Returns the mean of a sum; integer leaves are no sums."""
    return map_tree(lambda leaf: (leaf / count).to(leaf.dtype) if leaf.is_floating_point() else leaf, total)


def merge(rows: Sequence[Any]) -> dict[int, Tree]:
    """Returns every client's tree of what all workers gave, in the order of the clients."""
    trees = {client: tree for part in rows for client, tree in unstack(part).items()}
    return dict(sorted(trees.items()))


class CopiedStates(Mapping[int, Tree]):
    """A copy of what clients keep that stays at the workers until somebody looks at it."""

    def __init__(self, cluster: Cluster, key: int, clients: Sequence[int]) -> None:
        self._cluster, self._key, self._clients = cluster, key, clients
        weakref.finalize(self, forget, weakref.ref(cluster), key)

    def __getitem__(self, client: int) -> Tree:
        if client not in self._clients:
            raise KeyError(client)
        return self._cluster.fetch_copy(self._key, [client])[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def items(self) -> ItemsView[int, Tree]:
        """Returns all clients with their states, which all workers are asked for at once."""
        return self._cluster.fetch_copy(self._key, self._clients).items()


def forget(cluster: weakref.ref[Cluster], key: int) -> None:
    """Has workers drop a copy that nobody holds any more."""
    alive = cluster()
    if alive is not None:
        alive.drop_copy(key)
