"""An engine for more clients than memory holds: only those that are asked are here, the states of others in files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from graft.data.graphs import Graph
from graft.engines.client_group import select_fields
from graft.engines.fetching import fetch
from graft.engines.in_process import InProcess
from graft.engines.memory import budget, count_parameters, estimate
from graft.engines.state_files import StateFiles
from graft.federation.clients import Replies, Request, Round, StepLosses
from graft.federation.method import find_step
from graft.federation.server import Server
from graft.federation.setup import Setup
from graft.tensors.trees import Tree

RESIDENT_SHARE = 0.5  # of the memory, for graphs and states of those who are here; the rest is for their training


class OnDemand:
    """Clients that are read when they are asked, started where that is the first time, and put away when others are.

    Who is here stays as long as nobody else is asked: for all steps of a round, and for its scores. Others that are
    asked in the same round join them. Where all who are asked do not fit into memory, they come some at a time.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = replace(setup, capture=False)  # a fleet is asked a few times at most
        self._positions = None if setup.numbers is None else {n: p for p, n in enumerate(setup.numbers)}
        self._parameters = count_parameters(setup)
        memory = budget(setup.device) if setup.memory is None else setup.memory
        self._room = RESIDENT_SHARE * memory
        self._here: InProcess | None = None
        self._graphs: dict[int, Graph] = {}  # of those who are here
        self._round = 0  # in which they were asked
        self._changed: set[int] = set()  # those of them whose state in the files, if any, is one of before
        self._files = StateFiles()
        self._losses: StepLosses = []

    def members(self) -> Sequence[int]:
        return range(len(self._setup.graphs)) if self._setup.numbers is None else self._setup.numbers

    def execute(self, server: Server, kind: Any, round: Round) -> tuple[Tree, Any]:  # noqa: ARG002
        return fetch(*round())

    def ask(self, request: Request) -> Replies:
        _, kind = find_step(self._setup.method, request.step)
        parts: list[tuple[list[int], Any]] = []
        for engine, clients in self._bring(request):
            if not kind.pure:
                self._changed.update(clients)
            parts += engine.ask(narrowed(request, clients)).parts
        return Replies(parts)

    def _bring(self, request: Request) -> Iterator[tuple[InProcess, Sequence[int]]]:
        """Yields engines, one after the other, that hold the clients that are asked, and which of them."""
        asked = request.clients
        if self._here is not None and self._graphs.keys() >= set(asked):
            self._round = request.round
            yield self._here, asked
            return
        staying = self._graphs if request.round == self._round else {}
        self._round = request.round
        self._put_away()
        for graphs, need in self._in_parts(asked):
            if len(graphs) == len(asked):
                more = {client: graph for client, graph in staying.items() if client not in graphs}
                fits = need + sum(self._need(client, graph) for client, graph in more.items()) <= self._room
                yield self._start({**graphs, **more} if fits else graphs), asked
            else:
                yield self._start(graphs), list(graphs)
                self._put_away()

    def _in_parts(self, clients: Sequence[int]) -> Iterator[tuple[dict[int, Graph], float]]:
        """Yields the graphs of clients, those that fit into memory together, with the bytes that they need."""
        graphs: dict[int, Graph] = {}
        need = 0.0
        for client in clients:
            graph = self._graphs[client] if client in self._graphs else self._setup.graphs[self._position(client)]
            own = self._need(client, graph)
            if graphs and need + own > self._room:
                yield graphs, need
                graphs, need = {}, 0.0
            graphs[client] = graph
            need += own
        if graphs:
            yield graphs, need

    def _position(self, client: int) -> int:
        return client if self._positions is None else self._positions[client]

    def _need(self, client: int, graph: Graph) -> float:
        """Returns about how many bytes a client takes that is here."""
        model = self._setup.models[self._position(client)]
        views = self._setup.method.graph_views()
        need = estimate(graph, graph.nodes, model, self._parameters[model], self._setup.training, views)
        return need.state + need.data * (1 if self._setup.scoring is None else 2)

    def _start(self, graphs: Mapping[int, Graph]) -> InProcess:
        """Returns an engine of these clients, with the states of those who were asked before."""
        clients = sorted(graphs)
        engine = InProcess(self._part(clients, graphs))
        rested = [client for client in clients if client in self._files]
        if rested:
            device = None if engine.plan.on_disk else self._setup.device
            engine.restore({**engine.state(), **self._files.read(rested, device)})
        self._here, self._graphs = engine, dict(graphs)
        return engine

    def _part(self, clients: Sequence[int], graphs: Mapping[int, Graph]) -> Setup:
        return self._setup.part([self._position(client) for client in clients], [graphs[client] for client in clients])

    def _put_away(self) -> None:
        """Frees what those who are here take, but for their graphs, which may be asked for again."""
        if self._here is not None:
            self._write_states()
            self._losses += self._here.losses()
            self._here = None

    def _write_states(self) -> None:
        """Writes the states that changed since they were written."""
        if self._here is not None and self._changed:
            states = self._here.state()
            self._files.put({client: states[client] for client in sorted(self._changed)})
        self._changed = set()

    def losses(self) -> StepLosses:
        here = self._here.losses() if self._here is not None else []
        losses, self._losses = self._losses + here, []
        return losses

    def state(self) -> StateFiles:
        """Returns what every client keeps that was ever asked, read when it is looked at."""
        self._write_states()
        return self._files

    def copy_state(self, fields: Collection[str] | None = None, clients: Collection[int] | None = None) -> StateFiles:
        """Returns a copy of what clients keep, in files of its own; those who were never asked are as they begin."""
        self._write_states()
        chosen = list(self._files) if clients is None else clients
        copied = StateFiles()
        for states in self._files.batches(client for client in chosen if client in self._files):
            copied.put({client: select_fields(state, fields) for client, state in states.items()})
        for graphs, _ in self._in_parts([client for client in chosen if client not in self._files]):
            started = InProcess(self._part(list(graphs), graphs)).state()
            copied.put({client: select_fields(state, fields) for client, state in started.items()})
        return copied

    def restore(self, state: Mapping[int, Tree]) -> None:
        restored = StateFiles.of(state)  # before what it may have come from is let go
        self._here, self._graphs, self._files = None, {}, restored
        self._changed, self._losses = set(), []

    def add_states(self, states: Mapping[int, Tree]) -> None:
        """Takes further states of a checkpoint, where they do not come at once."""
        self._files.add_restored(states)

    def close(self) -> None:
        """Lets go of all clients; their files are gone once nobody holds their states any more."""
        self._here, self._graphs, self._files = None, {}, StateFiles()


def narrowed(request: Request, clients: Sequence[int]) -> Request:
    """Returns what is asked of some of the clients of a request."""
    if len(clients) == len(request.clients):
        return request
    mail = request.mail
    if mail is not None:
        positions = {client: position for position, client in enumerate(request.clients)}
        mail = replace(mail, links=mail.links[[positions[client] for client in clients]])
    return replace(request, clients=clients, mail=mail)
