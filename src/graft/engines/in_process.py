"""The reference engine: all clients in this process, those that can train together as one fleet."""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from graft.engines.amounts import format_bytes
from graft.engines.capture import (
    Message,
    NotCaptured,
    RoundCapture,
    StepCapture,
    capture_streams,
    side_stream,
    step_arguments,
)
from graft.engines.client_group import (
    ClientGroup,
    detach_from_state,
    row_index,
    select_fields,
    shallow_copy,
    stack_states,
)
from graft.engines.failures import StepFailed, step_failed
from graft.engines.fetching import fetch
from graft.engines.memory import Plan, budget, count_parameters, estimate, mapped_zeros, plan
from graft.errors import MemoryWarning
from graft.federation.clients import Replies, Request, Round, StepLosses, check_reply
from graft.federation.fleet import Fleet, group_clients
from graft.federation.method import StepKind, find_step
from graft.federation.server import Server
from graft.federation.setup import Setup
from graft.tensors.trees import Tree, map_tree, stack


class InProcess:
    """Fleets on a CPU or one GPU."""

    def __init__(self, setup: Setup, *, alone: bool = False) -> None:
        """With `alone`, every client is a fleet of one: slower, and equal in its results."""
        self._setup = setup
        if setup.device.type == "cpu":
            reuse_large_blocks()
        one_by_one = [[client] for client in setup.clients]
        together = group_clients(setup.models, setup.graphs, setup.branches)
        self.plan = plan_fleets(setup, one_by_one if alone else together)
        self.groups = [ClientGroup(setup.fleet(clients)) for clients in self.plan.groups]
        self._members = setup.numbers_of(setup.clients)
        self._losses: StepLosses = []
        self._replies: dict[tuple[int, str], Any] = {}  # of every group, its clients' last replies to a pure step
        self._changed: dict[str, set[int]] = {}  # by pure step, the clients that were asked for something else since
        for group in self.groups:
            fleet = group.view()
            setup.method.start_client(fleet)
            # Initial weights are one tensor seen by all clients; from here on each client has its own.
            group.state = self._keep(fleet.state)
        capture = setup.device.type == "cuda" and setup.capture and self.plan.roomy
        # The first group shares the stream of everything else; further ones run side by side with it.
        streams = capture_streams(len(self.groups)) if capture else []
        self._steps = {
            id(group): StepCapture(stream, watched=not group.fleet.model.stackable)
            for group, stream in zip(self.groups, streams, strict=False)
        }
        # Rounds can be captured as a whole where everybody takes part in all of them.
        whole = capture and setup.participation == 1
        self.rounds = RoundCapture(self.groups, setup.device) if whole else None
        self._capturing: RoundCapture | None = None  # while a round runs that may be captured as a whole

    @property
    def fleets(self) -> list[Fleet]:
        """Returns a view of every fleet, as a first step would see it."""
        return [group.view() for group in self.groups]

    def members(self) -> list[int]:
        return self._members

    def execute(self, server: Server, kind: Any, round: Round) -> tuple[Tree, Any]:
        rounds = self.rounds if self.rounds is not None and self.rounds.possible and kind is not None else None
        if rounds is None or torch.cuda.current_stream() != side_stream():
            return fetch(*round())
        self._capturing = rounds
        try:
            return rounds.execute(server, kind, round)
        except NotCaptured as error:
            warnings.warn(f"Rounds are not captured as a whole: {error}", RuntimeWarning, stacklevel=2)
            self._losses = []
            server.take_records()
        finally:
            self._capturing = None
        return fetch(*round())

    def ask(self, request: Request) -> Replies:
        function, kind = find_step(self._setup.method, request.step)
        asked = set(request.clients)
        reusable = kind.pure and kind.fleet and self._setup.participation < 1
        if not kind.pure:
            for changed in self._changed.values():
                changed |= asked
        if self._capturing is not None and self._capturing.watching and not kind.fleet:
            self._capturing.waits.append(f"step '{request.step}', which takes its clients one by one")
        parts: list[tuple[list[int], Any]] = []
        busy: list[StepCapture] = []
        for group in self.groups:
            chosen = [position for position, client in enumerate(group.clients) if client in asked]
            if not chosen:
                continue
            if reusable:
                clients = [group.clients[position] for position in chosen]
                parts.append((clients, self._reuse(function, request, group, chosen)))
                continue
            for positions in [chosen] if kind.fleet else [[position] for position in chosen]:
                parts.append(self._run(function, request, group, positions, kind))
            if id(group) in self._steps:
                busy.append(self._steps[id(group)])
        for captured in busy:
            captured.join()
        return Replies(parts)

    def _reuse(self, function: Callable[..., Any], request: Request, group: ClientGroup, chosen: list[int]) -> Any:
        """Returns the replies to a pure step, run anew only for clients that did something since the last time."""
        changed = self._changed.setdefault(request.step, set(self._members))
        positions = [position for position in chosen if group.clients[position] in changed]
        key = id(group), request.step
        if positions:
            clients, reply = self._run(function, request, group, positions, StepKind(pure=True), capture=False)
            last = self._replies.get(key)
            if last is None:  # zeros stand for clients that nobody has asked yet
                last = map_tree(lambda leaf: leaf.new_zeros(len(group.clients), *leaf.shape[1:]), reply)
            self._replies[key] = map_tree(lambda old, new: with_rows(positions, old, new), last, reply)
            changed -= set(clients)
        return map_tree(lambda leaf: leaf[row_index(chosen, leaf.device)], self._replies[key])

    def _run(
        self,
        function: Callable[..., Any],
        request: Request,
        group: ClientGroup,
        chosen: list[int],
        kind: StepKind,
        *,
        capture: bool = True,
    ) -> tuple[list[int], Any]:
        step, everyone = request.step, len(chosen) == len(group.clients)
        # Where all clients take part in every round, state is replaced; elsewhere it is written into, row by row.
        replaced = everyone and self._setup.participation == 1 and not self.plan.on_disk
        before = group.state if replaced else group.select_state(chosen)
        state = group.state if replaced else shallow_copy(before)
        seeds = self._capturing.seeds if self._capturing else None
        fleet = group.select(chosen).for_call(request.round, step, request.turn, state=state, seeds=seeds)
        captured = self._steps.get(id(group)) if replaced and kind.fleet and capture else None
        try:
            message = message_for(fleet, request)
            if captured is None:
                reply = function(fleet, *step_arguments(message, fleet))
            elif self._capturing is None:
                reply = captured.run(function, group, fleet, step, message)
            else:
                with captured.beside(fleet, message):
                    reply = function(fleet, *step_arguments(message, fleet))
            fleet.random.clear_masks()
            check_reply(reply, len(fleet.clients), f"step '{step}'")
        except (KeyboardInterrupt, StepFailed):
            raise
        except Exception as error:
            raise step_failed(self._setup, fleet.clients, step, request.round, error) from error
        if not replaced:
            reply = detach_from_state(reply, group.state)
            group.write_back(chosen, before, state, self._zeros)
        self._losses += [(label, fleet.clients, loss) for label, loss in labelled_losses(step, fleet)]
        return fleet.clients, reply

    def _keep(self, state: Tree) -> Tree:
        """Returns state where it will live: every client's own, in memory or in a file."""
        if not self.plan.on_disk:
            return map_tree(lambda leaf: leaf.to(self._setup.device).contiguous(), state)
        return map_tree(lambda leaf: mapped_zeros(leaf.shape, leaf.dtype).copy_(leaf), state)

    def _zeros(self, shape: Any, dtype: torch.dtype) -> Tensor:
        if self.plan.on_disk:
            return mapped_zeros(shape, dtype)
        return torch.zeros(shape, dtype=dtype, device=self._setup.device)

    def losses(self) -> StepLosses:
        losses, self._losses = self._losses, []
        return losses

    def state(self) -> dict[int, Tree]:
        return {client: state for group in self.groups for client, state in group.states().items()}

    def copy_state(
        self, fields: Collection[str] | None = None, clients: Collection[int] | None = None
    ) -> dict[int, Tree]:
        states: dict[int, Tree] = {}
        for group in self.groups:  # one copy a group and leaf, in a file where state lives in files
            states |= group.states(map_tree(self._copy, select_fields(group.state, fields)))
        return states if clients is None else {client: states[client] for client in clients}

    def _copy(self, leaf: Tensor) -> Tensor:
        return self._zeros(leaf.shape, leaf.dtype).copy_(leaf) if self.plan.on_disk else leaf.clone()

    def restore(self, state: Mapping[int, Tree]) -> None:
        for group in self.groups:
            group.state = self._keep(stack_states([state[client] for client in group.clients], group.fleet.owners))
            for cache in group.fleet.caches:
                cache.clear()
        self._changed.clear()
        self._losses = []

    def close(self) -> None:
        """Frees nothing: all is in this process."""


def labelled_losses(step: str, fleet: Fleet) -> list[tuple[str, Tensor]]:
    """Returns the last losses of a call under the names that people will read."""
    return [(step if name == "model" else f"{step}/{name}", loss) for name, loss in fleet.call.losses.items()]


def message_for(fleet: Fleet, request: Request) -> Message:
    """Returns what a request holds for the clients of a fleet."""
    if request.each is not None:
        return Message(own=stack([request.each[client] for client in fleet.clients]))
    if request.mail is None:
        return Message(request.message)
    mail = request.mail
    position = {client: index for index, client in enumerate(request.clients)}
    recipients = [position[client] for client in fleet.clients]
    senders = torch.tensor(mail.senders, device=fleet.device).expand(len(recipients), -1)
    return Message({"sent": mail.sent}, {"links": mail.links[recipients], "senders": senders})


def with_rows(chosen: list[int], values: Tensor, rows: Tensor) -> Tensor:
    """Returns a copy in which the rows of these clients are others."""
    changed = values.clone()
    changed[row_index(chosen, values.device)] = rows
    return changed


def plan_fleets(setup: Setup, groups: list[list[int]]) -> Plan:
    """Returns which clients are a fleet, so that the memory there is suffices; warns where it does not."""
    padded = {client: max(setup.graphs[other].nodes for other in group) for group in groups for client in group}
    parameters = count_parameters(setup)
    needs = [
        estimate(graph, padded[client], model, parameters[model], setup.training, setup.method.graph_views())
        for client, (graph, model) in enumerate(zip(setup.graphs, setup.models, strict=True))
    ]
    if setup.branches:  # every architecture has its part of the graph once more, but for values and dense features
        needs = [need._replace(data=3 * need.data // 2) for need in needs]
    if setup.scoring is not None:  # what models are scored on is there too
        needs = [need._replace(data=2 * need.data) for need in needs]
    available = budget(setup.device) if setup.memory is None else setup.memory
    fleets = plan(groups, needs, available, setup.participation)
    if fleets.too_large:
        largest_step = max(needs[client].work for client in fleets.too_large)
        warnings.warn(
            f"A step of client {setup.client_names(setup.numbers_of(fleets.too_large))} is estimated to need up to "
            f"{format_bytes(largest_step)}, more than a budget of {format_bytes(available)} leaves beside what all "
            f"clients hold; such clients train alone.",
            MemoryWarning,
            stacklevel=3,
        )
    return fleets


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
