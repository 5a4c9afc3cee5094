"""FML. Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu and Wu: Federated mutual learning. arXiv 2006.16765, 2020;
Frontiers of Information Technology and Electronic Engineering, 2023."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le

from graft.federation.fleet import Nodes
from graft.federation.method import Held, step
from graft.federation.reveals import MODEL, VOTE
from graft.federation.several_models import OWN, SeveralModels
from graft.fields import Search
from graft.tensors.trees import Tree, Weights, map_tree
from graft.training.losses import divergence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from graft.federation.clients import Clients
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server
    from graft.models.architecture import Model


@dataclass(frozen=True)
class FML(SeveralModels):
    """Every client keeps a model of any architecture and trains it together with a small meme; the two distil into each
    other, and memes are averaged."""

    heterogeneous: ClassVar[bool] = True
    capturable: ClassVar[bool] = True
    reveals: ClassVar = {"train/meme": MODEL, "train/weight": replace(VOTE, when="if weighting is by_weight")}
    averages: ClassVar[tuple[str, ...]] = ("train/meme",)
    averaged: ClassVar[str | None] = "meme"
    judges_unless: ClassVar = {"answer": ("local",)}

    # Share of the labels in the local model's loss, beside distillation.
    alpha: Annotated[float, Ge(0), Le(1), Search(0.1, 1.0)] = 0.5
    # Share of the labels in the meme's loss, beside distillation.
    beta: Annotated[float, Ge(0), Le(1), Search(0.1, 1.0)] = 0.5
    # Architecture of the model that is sent.
    meme: Annotated[str, Search(choices=("gcn", "sage", "sgc", "tag"))] = "gcn"
    # Softens the predictions of local model and meme where they are compared.
    temperature: Annotated[float, Gt(0), Search(0.5, 4.0, log=True)] = 1.0
    # Where local model and meme are compared: on training nodes, or on all nodes of the client.
    kd_nodes: Annotated[Nodes, Search(choices=("train", "all"))] = "train"
    weighting: Literal["uniform", "by_weight"] = "uniform"  # memes count alike, or by the experiment's weight_by
    # What predicts: the local model, or at every client whichever of it, the meme before and after its training, and
    # the mean of local model and meme is best on its validation nodes.
    answer: Annotated[Literal["local", "best"], Search(choices=("local", "best"))] = "local"

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        if self.chooses:
            meme = fleet.initial(fleet.architecture(self.meme))
            fleet.state.meme, fleet.state.received = meme, map_tree(torch.clone, meme)

    def averaged_model(self, server: Server) -> Model:
        return server.architecture(self.meme)

    def second_model(self) -> str:
        return self.meme

    def start_server(self, server: Server) -> None:
        server.state.meme = server.initial(self.averaged_model(server))

    def round(self, server: Server, clients: Clients) -> None:
        replies = clients.ask(self.train, server.state.meme)
        votes = torch.ones(len(replies), device=server.device) if self.weighting == "uniform" else replies.weight
        server.state.meme = replies.mean("meme", votes)

    @step
    def train(self, fleet: Fleet, meme: Weights) -> Tree:
        # Both learn from the same forward pass. No loss reaches the other's model and optimisers work element by
        # element, so training the sum is training each on its own loss with an optimiser of its own.
        pair = fleet.fit(
            Tree(local=fleet.state.model, meme=meme),
            lambda pair, batch: torch.add(*self.losses(batch, pair)),
            frozen=frozenset(f"local/{path}" for path in fleet.model.frozen),
        )
        fleet.state.model = pair.local
        if self.chooses:
            fleet.state.meme, fleet.state.received = pair.meme, map_tree(torch.clone, meme)
            self.choose(fleet)
        vote = Tree() if self.weighting == "uniform" else Tree(weight=fleet.weight)
        # All memes count alike, so a client without labels, whose own model has nothing to teach, sends it back.
        return Tree(meme=fleet.trained_by_labels(pair.meme, meme), **vote)

    def losses(self, fleet: Fleet, pair: Weights) -> tuple[Tensor, Tensor]:
        """Returns the losses of the local model and of the meme."""
        local = fleet.forward(pair["local"]).logits
        meme = fleet.forward(pair["meme"], fleet.architecture(self.meme)).logits
        return self.learn(fleet, local, meme, self.alpha), self.learn(fleet, meme, local, self.beta)

    def learn(self, fleet: Fleet, student: Tensor, teacher: Tensor, labels: float) -> Tensor:
        """Returns the loss of one of the two models: labels, and distillation from the other."""
        distilled = divergence(teacher, student, fleet.node_mask(self.kd_nodes), self.temperature)
        return labels * fleet.cross_entropy(student) + (1 - labels) * distilled

    def candidates(self) -> Sequence[tuple[str, ...]]:
        return [(OWN,)] if self.answer == "local" else [(OWN,), ("meme",), ("received",), (OWN, "meme")]

    def held(self, fleet: Fleet) -> Mapping[str, Held]:
        own = {OWN: Held(fleet.state.model)}
        return own | {name: Held(fleet.state[name], self.meme) for name in ("meme", "received") if self.chooses}
