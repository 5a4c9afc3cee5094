"""The reference engine: all clients in this process, clients of one architecture as one fleet."""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from graft.engines.capture import Message, Recorder, given, shallow, side_stream
from graft.engines.setup import Setup, StepFailed
from graft.exchange import Replies, Request, check_reply
from graft.fleet import Fleet, group_clients
from graft.method import find_step
from graft.weights import Tree, leaves, map_tree, stack, take


class InProcess:
    """Fleets on a CPU or one GPU."""

    def __init__(self, setup: Setup, *, alone: bool = False) -> None:
        """With `alone`, every client is a fleet of one: slower, and equal in its results."""
        self._setup = setup
        if setup.device.type == "cpu":
            reuse_large_blocks()
        groups = [[client] for client in setup.clients] if alone else group_clients(setup.models, setup.graphs)
        self.fleets = [setup.fleet(group) for group in groups]
        self._losses: list[tuple[str, list[int], Tensor]] = []
        for fleet in self.fleets:
            setup.method.start_client(fleet)
            # Initial weights are one tensor seen by all clients; from here on each client has its own.
            fleet.state = map_tree(torch.Tensor.contiguous, fleet.state)
        # Your own modules may do anything, so only steps of native models are recorded.
        fast = setup.device.type == "cuda" and setup.record
        native = [fleet for fleet in self.fleets if fast and fleet.model.stackable]
        # The first fleet shares the stream of everything else; further fleets run side by side with it.
        self._recorders = {id(fleet): Recorder(None if place else side_stream()) for place, fleet in enumerate(native)}

    def members(self) -> list[int]:
        return self._setup.clients

    def ask(self, request: Request) -> Replies:
        function, takes_fleets = find_step(self._setup.method, request.step)
        asked = set(request.clients)
        parts: list[tuple[list[int], Any]] = []
        for fleet in self.fleets:
            chosen = [position for position, client in enumerate(fleet.clients) if client in asked]
            if not chosen:
                continue
            for group in [chosen] if takes_fleets else [[position] for position in chosen]:
                parts.append(self._run(function, request, fleet, group, record=takes_fleets))
        for recorder in self._recorders.values():
            recorder.join()
        return Replies(parts)

    def _run(
        self, function: Callable[..., Any], request: Request, whole: Fleet, chosen: list[int], *, record: bool
    ) -> tuple[list[int], Any]:
        step, round = request.step, request.round
        everyone = len(chosen) == len(whole.clients) and self._setup.participation == 1
        fleet = whole
        if not everyone:
            fleet = whole.select(chosen)
            taken = share_of(whole, chosen)
            fleet.state = shallow(taken)
        fleet.begin(round, step, request.turn)
        try:
            message = message_for(fleet, request)
            if everyone and record and id(whole) in self._recorders:
                reply = self._recorders[id(whole)].run(function, fleet, step, message)
            else:
                reply = function(fleet, *given(message, fleet))
            check_reply(reply, len(fleet.clients), f"step '{step}'")
        except (KeyboardInterrupt, StepFailed):
            raise
        except Exception as error:
            raise StepFailed(self._setup.name, fleet.clients, step, round, error) from error
        if not everyone:
            put_back(whole, chosen, taken, fleet.state)
        self._losses += [(label, fleet.clients, loss) for label, loss in fleet.labelled_losses(step)]
        return fleet.clients, reply

    def losses(self) -> list[tuple[str, list[int], Tensor]]:
        losses, self._losses = self._losses, []
        return losses

    def state(self) -> dict[int, Tree]:
        return {
            client: take(fleet.state, position)
            for fleet in self.fleets
            for position, client in enumerate(fleet.clients)
        }

    def restore(self, state: Mapping[int, Tree]) -> None:
        for fleet in self.fleets:
            stacked = stack([state[client] for client in fleet.clients])
            fleet.state = map_tree(lambda leaf: leaf.to(self._setup.device), stacked)
            fleet.derived.clear()

    def close(self) -> None:
        """Nothing to let go of."""


def message_for(fleet: Fleet, request: Request) -> Message:
    """What a request holds for the clients of a fleet."""
    if request.each is not None:
        return Message(own=stack([request.each[client] for client in fleet.clients]))
    if request.mail is None:
        return Message(request.message)
    mail = request.mail
    rows = [request.clients.index(client) for client in fleet.clients]
    senders = torch.tensor(mail.senders, device=fleet.device).expand(len(rows), -1)
    return Message({"sent": mail.sent}, {"links": mail.links[rows], "senders": senders})


@lru_cache(maxsize=1)
def reuse_large_blocks() -> None:
    """Have glibc keep blocks above 32 MB for reuse instead of returning them to the kernel at every free.

    Fetching them anew, page by page, was measured to double the time of a round on 200,000 nodes.
    """
    trim_threshold, mmap_max = -1, -4  # the numbers of M_TRIM_THRESHOLD and M_MMAP_MAX
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(mmap_max, 0)
            libc.mallopt(trim_threshold, 2**31 - 1)


def rows(whole: Fleet, chosen: list[int]) -> slice | Tensor:
    """Where these clients are along the client axis."""
    if len(chosen) == 1:
        return slice(chosen[0], chosen[0] + 1)
    return torch.tensor(chosen, device=whole.device)


def share_of(whole: Fleet, chosen: list[int]) -> Tree:
    """The state of some clients of a fleet: a copy, but for one client alone a view, which costs nothing."""
    where = rows(whole, chosen)
    return map_tree(lambda leaf: leaf[where], whole.state)  # type: ignore[no-any-return]


def put_back(whole: Fleet, chosen: list[int], taken: Tree, state: Tree) -> None:
    """Write the state of the clients that were asked into the state of the whole fleet."""
    known = dict(leaves(whole.state))
    held = Counter(leaf.untyped_storage().data_ptr() for leaf in known.values())
    views = dict(leaves(taken)) if len(chosen) == 1 else {}
    changed = []
    for path, leaf in leaves(state):
        if leaf is views.get(path):  # unchanged, or changed in place
            continue
        if path not in known:
            if not path.startswith("optimizer/"):
                raise TypeError(f"state '{path}' appeared in a step; set every field in start_client")
            # A client that has not trained yet has an optimiser that has seen nothing: all zeros.
            known[path] = leaf.new_zeros(len(whole.clients), *leaf.shape[1:])
            plant(whole.state, path, known[path])
        elif held[known[path].untyped_storage().data_ptr()] > 1:  # a step gave two fields one tensor
            known[path] = known[path].clone()
            plant(whole.state, path, known[path])
        # A view that moved to another field must be safe before anything is written.
        changed.append((known[path], leaf.clone() if leaf.untyped_storage().data_ptr() in held else leaf))
    for into, leaf in changed:
        into[rows(whole, chosen)] = leaf


def plant(tree: Tree, path: str, leaf: Tensor) -> None:
    *branches, name = path.split("/")
    for branch in branches:
        tree = tree.setdefault(branch, Tree())
    tree[name] = leaf
