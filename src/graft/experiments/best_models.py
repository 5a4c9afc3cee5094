"""The models that were scored in the best round so far, kept while a run goes on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from graft.engines.client_group import select_fields
from graft.engines.cluster import CopiedStates
from graft.engines.state_files import ChangedStates, StateFiles
from graft.experiments.state_checks import check_state
from graft.federation.method import Method
from graft.federation.server import Server
from graft.federation.session import Session, SessionState
from graft.tensors.trees import Tree, map_tree, select_clients

OWN, GLOBAL = "own", "global"  # the models that clients would use themselves, and the one that all have in common

CopyState = Callable[[Collection[str] | None], Mapping[int, Tree]]  # fields -> these of every client's state


@dataclass(frozen=True)
class RoundModels:
    """All models of one kind that were scored after a round, with what else of the clients' state predicts."""

    record: Mapping[str, Any]  # of the round
    here: Tree  # "shared", and for every client "client3": what it "received" from the server, perhaps its "state"
    states: Mapping[int, Tree] = field(default_factory=dict)  # of clients, which may lie elsewhere until they are read

    @property
    def round(self) -> int:
        number: int = self.record["round"]
        return number

    @property
    def tree(self) -> Tree:
        """Returns everything, read now: "shared", and for every client "client3" what is there of it."""
        tree = Tree(self.here)
        for client, state in self.states.items():
            key = client_key(client)
            tree[key] = Tree({**tree.get(key, {}), "state": state})
        return tree

    def of_client(self, client: int) -> tuple[Tree, Tree | None]:
        """Returns the state that a client predicts with, and the weights of the server where these were scored."""
        own = self.here.get(client_key(client), Tree())
        state = self.states[client] if client in self.states else own.get("state", Tree())
        return state, self.here.get("shared", own.get("received"))

    def has(self, client: int) -> bool:
        """Returns whether a client has a model among these."""
        return client in self.states or client_key(client) in self.here or not (self.states or self._of_clients)

    @property
    def _of_clients(self) -> bool:
        return any(key != "shared" for key in self.here)

    def brought_here(self) -> RoundModels:
        """Returns the same models, of which none is left at workers that will soon be gone."""
        elsewhere = isinstance(self.states, CopiedStates)
        return replace(self, states=StateFiles.of(dict(self.states.items()))) if elsewhere else self


class Kept(NamedTuple):
    """What there is to keep of models: what the server has, and states of clients."""

    here: Tree
    states: Mapping[int, Tree]


class BestModels:
    """The models of the best round so far, by their kind; the two kinds may have been best in different rounds."""

    def __init__(self) -> None:
        self.kept: dict[str, RoundModels] = {}

    def see(self, session: Session, record: Mapping[str, Any], best_rounds: Mapping[str, int]) -> None:
        """Copies the models of a round that was just scored, where it is the best one.

        Without validation nodes no round is the best, 0: then the last one has to do, as it does for the scores.
        """
        for kind, best_round in best_rounds.items():
            if best_round in (0, record["round"]):
                method, server = session.setup.method, session.server
                copy_state = partial(session.copy_state, clients=record.get("scored"))
                models = MODELS_OF_KIND[kind](method, server, copy_state)
                if models is not None:
                    self.kept[kind] = RoundModels(record, *models)

    def restore(self, kept: Mapping[str, RoundModels], session: Session, best_rounds: Mapping[str, int]) -> None:
        """Takes models that were stored, which must be of the rounds that are best on record and like those of this
        session; a `ValueError` otherwise."""
        method, server, state = session.setup.method, session.server, session.state()
        expected = last_models(method, server, state, {})
        if not kept.keys() <= expected.keys():
            raise ValueError(f"this method has no {', '.join(kept.keys() - expected.keys())} models")
        for kind in expected:
            models = kept.get(kind)
            if models is None and best_rounds[kind]:
                raise ValueError(f"the {kind} models of round {best_rounds[kind]} are missing")
            if models is not None:
                if best_rounds[kind] not in (0, models.round):
                    raise ValueError(f"its {kind} models are of round {models.round}, not {best_rounds[kind]}")
                likeness = last_models(method, server, only(state, models.record.get("scored")), {})[kind]
                check_state(models.tree, likeness.tree, f"the {kind} models")
        self.kept = dict(kept)

    def bring_here(self) -> None:
        """Fetches what is left at workers, before they end."""
        self.kept = {kind: models.brought_here() for kind, models in self.kept.items()}


def only(state: SessionState, clients: Collection[int] | None) -> SessionState:
    """Returns the state of some clients, as far as they have any; of all where nobody says which."""
    if clients is None:
        return state
    return state._replace(clients={client: state.clients[client] for client in clients if client in state.clients})


def last_models(
    method: Method, server: Server, state: SessionState, record: Mapping[str, Any]
) -> dict[str, RoundModels]:
    """Returns the models that a method has by now, by their kind; clients' are no copies."""

    def states(fields: Collection[str] | None) -> Mapping[int, Tree]:
        return ChangedStates(state.clients, lambda tree: select_fields(tree, fields))

    models = {kind: models_of(method, server, states) for kind, models_of in MODELS_OF_KIND.items()}
    return {kind: RoundModels(record, *kept) for kind, kept in models.items() if kept is not None}


def own_models(method: Method, server: Server, states: CopyState) -> Kept:
    """Returns what `Method.logits` reads of every client, or what the server made for it."""
    stacked = method.personalised(server)
    if stacked is None:
        plain = method.model_alone() and type(method).personal is Method.personal
        return Kept(Tree(), states(("model",) if plain else None))
    copied = map_tree(torch.clone, stacked)
    received = {client_key(k): Tree(received=select_clients(copied, k)) for k in range(server.clients)}
    return Kept(Tree(received), {} if method.model_alone() else states(None))


def global_models(method: Method, server: Server, states: CopyState) -> Kept | None:
    """Returns the model that all clients have in common, with their state where it needs more; None without one."""
    shared = method.shared(server)
    if shared is None:
        return None
    return Kept(Tree(shared=map_tree(torch.clone, shared)), {} if method.model_alone() else states(None))


MODELS_OF_KIND: dict[str, Callable[[Method, Server, CopyState], Kept | None]] = {OWN: own_models, GLOBAL: global_models}


def client_key(client: int) -> str:
    return f"client{client}"
