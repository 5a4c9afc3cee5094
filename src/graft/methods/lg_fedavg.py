"""LG-FedAvg. Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov and Morency: Think locally, act globally:
federated learning with local and global representations. arXiv 2001.01523, 2020."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from graft.errors import InputError
from graft.federation.method import Method, step
from graft.federation.reveals import VOTE, Reveals
from graft.tensors.trees import Tree, Weights, flatten

if TYPE_CHECKING:
    from torch import Tensor

    from graft.federation.clients import Clients
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server
    from graft.models.architecture import Model


@dataclass(frozen=True)
class LGFedAvg(Method):
    """Encoders of any architecture stay private; the linear head on top of them is averaged.

    Nothing aligns the coordinates of different encoders but the head that all start from, the server's. There is no
    warm start from a FedAvg model, which different encoders could not have.
    """

    capturable: ClassVar[bool] = True
    reveals: ClassVar = {
        "train/shared": Reveals("weights of the shared part of the client's trained model", model=True),
        "train/weight": VOTE,
    }
    averages: ClassVar[tuple[str, ...]] = ("train/shared",)
    averaged: ClassVar[str | None] = "shared"

    share: Literal["head", "all", "nothing"] = "head"  # what is sent: "all" is FedAvg, "nothing" is local training

    def start_server(self, server: Server) -> None:
        if self.share == "head":
            check_heads(server)
            server.state.shared = Tree(head=server.initial(server.models[0])["head"])
        elif self.share == "all":
            server.state.shared = server.initial()

    def round(self, server: Server, clients: Clients) -> None:
        if self.share == "nothing":
            clients.ask(self.train)
            return
        replies = clients.ask(self.train, server.state.shared)
        server.state.shared = replies.mean("shared", replies.weight)

    @step
    def train(self, fleet: Fleet, shared: Weights | None = None) -> Tree:
        start = Tree({**fleet.state.model, **(shared or {})})
        model = fleet.state.model = fleet.fit(start, lambda weights, batch: self.loss(batch, weights))
        if shared is None:
            return Tree()
        return Tree(shared=Tree({part: model[part] for part in shared}), weight=fleet.weight)

    def loss(self, fleet: Fleet, weights: Weights) -> Tensor:
        return fleet.label_loss(weights)

    def shared(self, server: Server) -> Weights | None:
        """Returns the global model, if there is one: a head alone is no model, since encoders differ."""
        return server.state.shared if self.share == "all" else None


def check_heads(server: Server) -> None:
    """Refuse models whose heads cannot be averaged."""
    shapes = {}
    for model in dict.fromkeys(server.models):
        head = linear_head(server, model)
        if head is None:
            raise InputError(
                f"LG-FedAvg shares the linear head of every model, and {model.name} has none: use head = linear, or "
                "call the last linear layer of your own module 'head'."
            )
        shapes[model] = tuple(head["weight"].shape)
    if len({model.stackable for model in shapes}) > 1:
        raise InputError(
            "LG-FedAvg cannot average the heads of Graft's models with those of your own modules: their weights are "
            "transposed; use models of one kind."
        )
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{model.name} {' x '.join(map(str, shape))}" for model, shape in shapes.items())
        raise InputError(f"LG-FedAvg averages heads, so all models need heads of one shape, not {listed}.")


def linear_head(server: Server, model: Model) -> dict[str, Tensor] | None:
    """Returns the initial weight and bias of a model's linear head; None where it has no such head."""
    head = dict(flatten(server.initial(model).get("head", Tree())))
    # The last layer of a GCN has a weight and a bias too, but it is a convolution.
    is_linear = getattr(model, "head", "linear") == "linear" and sorted(head) == ["bias", "weight"]
    return head if is_linear else None
