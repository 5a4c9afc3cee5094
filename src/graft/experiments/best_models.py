"""The models that were scored in the best round so far, kept while a run goes on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from graft.engines.client_group import select_fields
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
    tree: Tree  # "shared", and for every client "client3": its "state", and what it "received" from the server

    @property
    def round(self) -> int:
        number: int = self.record["round"]
        return number

    def of_client(self, client: int) -> tuple[Tree, Tree | None]:
        """Returns the state that a client predicts with, and the weights of the server where these were scored."""
        own = self.tree.get(client_key(client), Tree())
        return own.get("state", Tree()), self.tree.get("shared", own.get("received"))


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
                tree = MODELS_OF_KIND[kind](method, server, session.copy_state)
                if tree is not None:
                    self.kept[kind] = RoundModels(record, tree)

    def restore(self, kept: Mapping[str, RoundModels], session: Session, best_rounds: Mapping[str, int]) -> None:
        """Takes models that were stored, which must be of the rounds that are best on record and like those of this
        session; a `ValueError` otherwise."""
        method, server, state = session.setup.method, session.server, session.state()
        likeness = last_models(method, server, state)
        if not kept.keys() <= likeness.keys():
            raise ValueError(f"this method has no {', '.join(kept.keys() - likeness.keys())} models")
        for kind, expected in likeness.items():
            models = kept.get(kind)
            if models is None and best_rounds[kind]:
                raise ValueError(f"the {kind} models of round {best_rounds[kind]} are missing")
            if models is not None:
                if best_rounds[kind] not in (0, models.round):
                    raise ValueError(f"its {kind} models are of round {models.round}, not {best_rounds[kind]}")
                check_state(models.tree, expected, f"the {kind} models")
        self.kept = dict(kept)


def last_models(method: Method, server: Server, state: SessionState) -> dict[str, Tree]:
    """Returns the models that a method has by now, by their kind, as `RoundModels` holds them; clients' are no
    copies."""

    def states(fields: Collection[str] | None) -> Mapping[int, Tree]:
        return {client: select_fields(tree, fields) for client, tree in state.clients.items()}

    trees = {kind: models(method, server, states) for kind, models in MODELS_OF_KIND.items()}
    return {kind: tree for kind, tree in trees.items() if tree is not None}


def own_models(method: Method, server: Server, states: CopyState) -> Tree:
    """Returns what `Method.logits` reads of every client, or what the server made for it."""
    stacked = method.personalised(server)
    if stacked is None:
        plain = method.model_alone() and type(method).personal is Method.personal
        return with_states(Tree(), states(("model",) if plain else None))
    copied = map_tree(torch.clone, stacked)
    received = {client_key(k): Tree(received=select_clients(copied, k)) for k in range(server.clients)}
    return Tree(received) if method.model_alone() else with_states(Tree(received), states(None))


def global_models(method: Method, server: Server, states: CopyState) -> Tree | None:
    """Returns the model that all clients have in common, with their state where it needs more; None without one."""
    shared = method.shared(server)
    if shared is None:
        return None
    tree = Tree(shared=map_tree(torch.clone, shared))
    return tree if method.model_alone() else with_states(tree, states(None))


MODELS_OF_KIND: dict[str, Callable[[Method, Server, CopyState], Tree | None]] = {OWN: own_models, GLOBAL: global_models}


def with_states(tree: Tree, states: Mapping[int, Tree]) -> Tree:
    for client, state in states.items():
        tree.setdefault(client_key(client), Tree()).state = state
    return tree


def client_key(client: int) -> str:
    return f"client{client}"
