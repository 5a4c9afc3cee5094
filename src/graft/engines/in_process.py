"""The reference engine: all clients in this process, those that can train together as one fleet."""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from graft.engines.capture import (
    Message,
    NotCaptured,
    Round,
    RoundCapture,
    StepCapture,
    fetch,
    shallow_copy,
    side_stream,
    step_arguments,
    storage_of,
)
from graft.engines.memory import Plan, budget, estimate, format_bytes, mapped_zeros, parameters_of, plan
from graft.errors import MemoryWarning
from graft.federation.exchange import Replies, Request, Server, check_reply
from graft.federation.fleet import Fleet, group_clients
from graft.federation.method import find_step
from graft.federation.setup import Setup, StepFailed
from graft.tensors.sparse import contiguous
from graft.tensors.trees import Owners, Tree, flatten, map_tree, set_path, stack, unflatten


class InProcess:
    """Fleets on a CPU or one GPU."""

    def __init__(self, setup: Setup, *, alone: bool = False) -> None:
        """With `alone`, every client is a fleet of one: slower, and equal in its results."""
        self._setup = setup
        if setup.device.type == "cpu":
            reuse_large_blocks()
        one_by_one = [[client] for client in setup.clients]
        found = plan_fleets(setup, one_by_one if alone else group_clients(setup.models, setup.graphs, setup.marks))
        self.fleets = [setup.fleet(group) for group in found.groups]
        self._on_disk = found.on_disk
        self._parts: dict[int, tuple[list[int], Fleet]] = {}  # of every fleet, those that were asked last
        self._losses: list[tuple[str, list[int], Tensor]] = []
        self._scores: dict[int, Any] = {}  # of every fleet, what its clients answered when they were scored last
        self._unscored = set(setup.clients)  # those that have been asked for something else since
        for fleet in self.fleets:
            setup.method.start_client(fleet)
            # Initial weights are one tensor seen by all clients; from here on each client has its own.
            fleet.state = self._kept(fleet.state)
        # Your own modules may do anything, so only steps of native models are recorded.
        fast = setup.device.type == "cuda" and setup.record and found.roomy
        native = [fleet for fleet in self.fleets if fast and fleet.model.stackable]
        # The first fleet shares the stream of everything else; further fleets run side by side with it.
        self._recorders = {
            id(fleet): StepCapture(None if place else side_stream()) for place, fleet in enumerate(native)
        }
        # Rounds can be recorded as a whole where everybody takes part in all of them, with a native model.
        whole = fast and len(native) == len(self.fleets) and setup.participation == 1
        self.rounds = RoundCapture(self.fleets, setup.device) if whole else None
        self._playing: RoundCapture | None = None  # while a round is played that may be recorded as a whole

    def members(self) -> list[int]:
        return self._setup.clients

    def play(self, server: Server, kind: Any, round: Round) -> tuple[Tree, Any]:
        whole = self.rounds if self.rounds is not None and self.rounds.possible and kind is not None else None
        if whole is None or torch.cuda.current_stream() != side_stream():
            return fetch(*round())
        self._playing = whole
        try:
            return whole.play(server, kind, round)
        except NotCaptured as error:
            warnings.warn(f"Rounds are not recorded as a whole: {error}", RuntimeWarning, stacklevel=2)
            self._losses, server.records = [], {}
        finally:
            self._playing = None
        return fetch(*round())

    def ask(self, request: Request) -> Replies:
        function, takes_fleets = find_step(self._setup.method, request.step)
        asked = set(request.clients)
        known = request.step == "score" and takes_fleets and self._setup.participation < 1
        if not known:
            self._unscored |= asked
        parts: list[tuple[list[int], Any]] = []
        busy: list[StepCapture] = []
        if self._playing is not None and self._playing.watching and not takes_fleets:
            self._playing.possible = False
        for fleet in self.fleets:
            chosen = [position for position, client in enumerate(fleet.clients) if client in asked]
            if not chosen:
                continue
            if known:
                mine = [fleet.clients[position] for position in chosen]
                parts.append((mine, self._score(function, request, fleet, chosen)))
                continue
            for group in [chosen] if takes_fleets else [[position] for position in chosen]:
                parts.append(self._run(function, request, fleet, group, record=takes_fleets))
            if id(fleet) in self._recorders:
                busy.append(self._recorders[id(fleet)])
        for recorder in busy:
            recorder.join()
        return Replies(parts)

    def _score(self, function: Callable[..., Any], request: Request, fleet: Fleet, chosen: list[int]) -> Any:
        """Score clients of a fleet; one that did nothing since it was scored last would answer the same."""
        changed = [position for position in chosen if fleet.clients[position] in self._unscored]
        if changed:
            clients, reply = self._run(function, request, fleet, changed, record=False)
            known = self._scores.get(id(fleet))
            if known is None:  # zeros stand for those that nobody has asked yet
                known = map_tree(lambda leaf: leaf.new_zeros(len(fleet.clients), *leaf.shape[1:]), reply)
            self._scores[id(fleet)] = map_tree(partial(with_rows, changed), known, reply)
            self._unscored -= set(clients)
        return map_tree(lambda leaf: leaf[row_index(chosen, leaf.device)], self._scores[id(fleet)])

    def _run(
        self, function: Callable[..., Any], request: Request, whole: Fleet, chosen: list[int], *, record: bool
    ) -> tuple[list[int], Any]:
        step, round = request.step, request.round
        everyone = len(chosen) == len(whole.clients)
        # Where all clients take part in every round, state is replaced; elsewhere it is written into, row by row.
        replaced = everyone and self._setup.participation == 1 and not self._on_disk
        fleet, kept = whole if everyone else self._part(whole, chosen), whole.state
        if not replaced:
            taken = select_state(kept, chosen, whole)
            fleet.state = shallow_copy(taken)
        fleet.begin(round, step, request.turn, self._playing.slots if self._playing else None)
        recorder = self._recorders.get(id(whole)) if replaced and record else None
        try:
            message = message_for(fleet, request)
            if recorder is None:
                reply = function(fleet, *step_arguments(message, fleet))
            elif self._playing is None:
                reply = recorder.run(function, fleet, step, message)
            else:
                with recorder.beside(fleet, message):
                    reply = function(fleet, *step_arguments(message, fleet))
            fleet.random.clear_masks()
            check_reply(reply, len(fleet.clients), f"step '{step}'")
            if self._playing is not None and self._playing.watching and fleet.looked_at_round:
                self._playing.possible = False
        except (KeyboardInterrupt, StepFailed):
            raise
        except Exception as error:
            raise StepFailed(self._setup.name, fleet.clients, step, round, error) from error
        if not replaced:
            state, fleet.state, whole.state = fleet.state, Tree(), kept
            reply = detach_from_state(reply, kept)
            self._put_back(whole, chosen, taken, state)
        self._losses += [(label, fleet.clients, loss) for label, loss in fleet.labelled_losses(step)]
        return fleet.clients, reply

    def _part(self, whole: Fleet, chosen: list[int]) -> Fleet:
        """Some clients of a fleet; those that were asked last are often asked again in the same round."""
        if id(whole) not in self._parts or self._parts[id(whole)][0] != chosen:
            self._parts.pop(id(whole), None)  # or two of them would be held
            self._parts[id(whole)] = chosen, whole.select(chosen)
        return self._parts[id(whole)][1]

    def _kept(self, state: Tree) -> Tree:
        """State where it will live: every client's own, in memory or in a file."""
        if not self._on_disk:
            return map_tree(lambda leaf: leaf.to(self._setup.device).contiguous(), state)  # type: ignore[no-any-return]
        return map_tree(lambda leaf: mapped_zeros(leaf.shape, leaf.dtype).copy_(leaf), state)  # type: ignore[no-any-return]

    def _put_back(self, whole: Fleet, chosen: list[int], taken: Tree, state: Tree) -> None:
        """Write the state of the clients that were asked into the state of the whole fleet."""
        known = dict(flatten(whole.state))
        held = Counter(storage_of(leaf) for leaf in known.values())
        before = dict(flatten(taken))
        changed = {}
        for path, leaf in flatten(state):
            if storage_of(leaf) in held and leaf is before.get(path):  # unchanged, or changed where it is kept
                continue
            if path not in known:
                if not path.startswith("optimizer/"):
                    raise TypeError(f"state '{path}' appeared in a step; set every field in start_client")
                # A client that has not trained yet has an optimiser that has seen nothing: all zeros.
                shape = len(whole.owners(path)), *leaf.shape[1:]
                known[path] = mapped_zeros(shape, leaf.dtype) if self._on_disk else leaf.new_zeros(shape)
                set_path(whole.state, path, known[path])
            elif held[storage_of(known[path])] > 1:  # a step gave two fields one tensor
                known[path] = known[path].clone()
                set_path(whole.state, path, known[path])
            # A view that moved to another field must be safe before anything is written.
            changed[path] = leaf.clone() if storage_of(leaf) in held else leaf
        for path, leaf in changed.items():
            into = known[path]
            into[row_index(whole.owners.rows(path, chosen), into.device)] = leaf.to(into.device)

    def losses(self) -> list[tuple[str, list[int], Tensor]]:
        losses, self._losses = self._losses, []
        return losses

    def state(self) -> dict[int, Tree]:
        states: dict[int, Tree] = {}
        for fleet in self.fleets:
            apiece = [(path, leaf.unbind(), fleet.owners(path)) for path, leaf in flatten(fleet.state)]
            for position, client in enumerate(fleet.clients):
                mine = {path: rows[position - owners.start] for path, rows, owners in apiece if position in owners}
                states[client] = unflatten(mine)
        return states

    def restore(self, state: Mapping[int, Tree]) -> None:
        for fleet in self.fleets:
            fleet.state = self._kept(stack_states([state[client] for client in fleet.clients], fleet.owners))
            fleet.derived.clear()
        self._unscored = set(self._setup.clients)

    def close(self) -> None:
        """Nothing to let go of."""


def message_for(fleet: Fleet, request: Request) -> Message:
    """What a request holds for the clients of a fleet."""
    if request.each is not None:
        return Message(own=stack([request.each[client] for client in fleet.clients]))
    if request.mail is None:
        return Message(request.message)
    mail = request.mail
    places = {client: place for place, client in enumerate(request.clients)}
    recipients = [places[client] for client in fleet.clients]
    senders = torch.tensor(mail.senders, device=fleet.device).expand(len(recipients), -1)
    return Message({"sent": mail.sent}, {"links": mail.links[recipients], "senders": senders})


def plan_fleets(setup: Setup, groups: list[list[int]]) -> Plan:
    """Which clients are a fleet, so that the memory there is suffices; says so where it does not."""
    largest = [(group, max(setup.graphs[client].nodes for client in group)) for group in groups]
    padded = {client: nodes for group, nodes in largest for client in group}
    parameters = {model: parameters_of(model) for model in set(setup.models)}
    needs = [
        estimate(graph, padded[client], model, parameters[model], setup.training)
        for client, (graph, model) in enumerate(zip(setup.graphs, setup.models, strict=True))
    ]
    if setup.marks:  # every kind of model has its part of the graph once more, but for values and dense features
        needs = [need._replace(data=3 * need.data // 2) for need in needs]
    if setup.clean is not None:  # what models are scored on is there too
        needs = [need._replace(data=2 * need.data) for need in needs]
    available = budget(setup.device) if setup.memory is None else setup.memory
    found = plan(groups, needs, available, setup.participation)
    if found.too_large:
        names = ", ".join(map(str, found.too_large[:8])) + (", ..." if len(found.too_large) > 8 else "")
        most = max(needs[client].work for client in found.too_large)
        warnings.warn(
            f"A step of client {names} is estimated to need up to {format_bytes(most)}, more than a budget of "
            f"{format_bytes(available)} leaves beside what all clients hold; such clients train alone.",
            MemoryWarning,
            stacklevel=3,
        )
    return found


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


def with_rows(chosen: list[int], into: Tensor, leaf: Tensor) -> Tensor:
    """A copy in which the rows of these clients are others."""
    changed = into.clone()
    changed[row_index(chosen, into.device)] = leaf
    return changed


def row_index(chosen: list[int], device: torch.device) -> slice | Tensor:
    """Where these clients are along the client axis."""
    if contiguous(chosen):
        return slice(chosen[0], chosen[-1] + 1)
    return torch.tensor(chosen, device=device)


def select_state(state: Tree, chosen: list[int], whole: Fleet) -> Tree:
    """The state of some clients of a fleet: a copy, but for clients side by side a view, which costs nothing.

    Nothing is left of a kind of model that none of them has.
    """
    wanted = {path: whole.owners.rows(path, chosen) for path, _ in flatten(state)}
    found = {path: leaf for path, leaf in flatten(state) if wanted[path]}
    return unflatten(
        {path: leaf[row_index(wanted[path], leaf.device)].to(whole.device) for path, leaf in found.items()}
    )


def detach_from_state(reply: Any, kept: Tree) -> Any:
    """A reply that does not change when what clients keep is written into."""
    held = {storage_of(leaf) for _, leaf in flatten(kept)}
    return map_tree(lambda leaf: leaf.clone() if storage_of(leaf) in held else leaf, reply)


def stack_states(states: list[Tree], owners: Owners) -> Tree:
    """The states of clients as that of a fleet; one that never trained, in a fleet of its own, had no optimiser yet."""
    known = [dict(flatten(state)) for state in states]
    like = {path: leaf for state in known for path, leaf in state.items()}

    def rows_of(path: str) -> list[Tensor]:
        return [known[one].get(path, torch.zeros_like(like[path])) for one in owners(path)]

    return unflatten({path: torch.stack(rows_of(path)) for path in like})
