"""FedRep. Collins, Hassani, Mokhtari and Shakkottai: Exploiting shared representations for personalized federated
learning. ICML 2021."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Ge

from graft.errors import InputError
from graft.federation.method import Method, step
from graft.federation.reveals import VOTE, Reveals
from graft.fields import Search
from graft.tensors.trees import Tree, Weights, flatten, unflatten

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import Tensor

    from graft.federation.clients import Clients
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server
    from graft.models.architecture import Model


SHARED = Reveals("weights of the shared part of the client's trained model", model=True)


@dataclass(frozen=True)
class PartlyShared(Method):
    """Clients train one architecture of which some paths are averaged, and the others never leave a client."""

    one_model: ClassVar[bool] = True
    capturable: ClassVar[bool] = True
    reveals: ClassVar = {"train/shared": SHARED, "train/weight": VOTE}
    averages: ClassVar[tuple[str, ...]] = ("train/shared",)
    averaged: ClassVar[str | None] = "shared"

    def start_server(self, server: Server) -> None:
        model = server.initial()
        shared = without(model, self.private(server.model, paths_of(model)))
        if shared:
            server.state.shared = shared

    def round(self, server: Server, clients: Clients) -> None:
        if "shared" not in server.state:  # every path is private
            clients.ask(self.train)
            return
        replies = clients.ask(self.train, server.state.shared)
        server.state.shared = replies.mean("shared", replies.weight)

    @step
    def train(self, fleet: Fleet, shared: Weights | None = None) -> Tree:
        start = unflatten({**dict(flatten(fleet.state.model)), **dict(flatten(shared or {}))})
        private = self.private(fleet.model, paths_of(start))
        trained = fleet.state.model = self.trained(fleet, start, private)
        return Tree() if shared is None else Tree(shared=without(trained, private), weight=fleet.weight)

    def trained(self, fleet: Fleet, start: Weights, private: frozenset[str]) -> Weights:  # noqa: ARG002
        """Returns the client's model after its local epochs."""
        return fleet.fit(start, lambda weights, batch: self.loss(batch, weights))

    def loss(self, fleet: Fleet, weights: Weights) -> Tensor:
        return fleet.label_loss(weights)

    def private(self, model: Model, paths: frozenset[str]) -> frozenset[str]:
        """Returns which paths of an architecture's weights stay with a client."""
        raise NotImplementedError


@dataclass(frozen=True)
class FedRep(PartlyShared):
    """Clients train heads of their own on a body that is averaged: in every round first the head, then the body."""

    reveals: ClassVar = {
        "train/shared": replace(SHARED, when="unless share is nothing"),
        "train/weight": replace(VOTE, when="unless share is nothing"),
    }

    share: Literal["body", "all", "nothing"] = "body"  # what is sent: "all" is FedAvg, "nothing" is local training
    # Epochs of the head in a round, on the body as it was received; 0: as many as the experiment's.
    head_epochs: Annotated[int, Ge(0), Search(choices=(0, 1, 5, 10))] = 0
    body_epochs: Annotated[int, Ge(0)] = 0  # epochs of the body after that, under the new head; 0: the experiment's

    def trained(self, fleet: Fleet, start: Weights, private: frozenset[str]) -> Weights:
        model, paths = start, paths_of(start)
        for name, own, epochs in (("head", private, self.head_epochs), ("body", paths - private, self.body_epochs)):
            if own:
                frozen = fleet.model.frozen | (paths - own)
                training = replace(fleet.training, epochs=epochs or fleet.training.epochs)
                model = fleet.fit(model, lambda weights, batch: self.loss(batch, weights), name, frozen, training)
        return model

    def private(self, model: Model, paths: frozenset[str]) -> frozenset[str]:
        head = frozenset(path for path in paths if path.startswith("head/"))
        if self.share == "body" and not head:
            raise InputError(
                f"FedRep leaves the head of a model with its client, and {model.name} has none: call the last layer of "
                "your own module 'head', or use one of Graft's models."
            )
        return {"body": head, "all": frozenset[str](), "nothing": paths}[self.share]

    def shared(self, server: Server) -> Weights | None:
        """Returns the global model, if there is one: a body alone is no model."""
        return server.state.shared if self.share == "all" else None


def paths_of(weights: Weights) -> frozenset[str]:
    return frozenset(path for path, _ in flatten(weights))


def without(weights: Weights, paths: Collection[str]) -> Tree:
    """Returns weights without some paths."""
    return unflatten({path: leaf for path, leaf in flatten(weights) if path not in paths})
