"""PENS. Onoszko, Karlsson, Mogren and Zec: Decentralized federated learning of deep neural networks on non-iid data.
Workshop on Federated Learning for User Privacy and Data Confidentiality at ICML 2021."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn import functional

from graft.federation.method import step
from graft.federation.peers import (
    WAY,
    MixingMethod,
    Peers,
    draw_peers,
    equal_links,
    everyone_else,
    heard_mask,
    mix_models,
)
from graft.federation.reveals import RANDOM_LINKS, Reveals
from graft.fields import Search
from graft.tensors.trees import Tree, Weights, select_clients
from graft.training.losses import mean_over

if TYPE_CHECKING:
    from graft.federation.fleet import Fleet


@dataclass(frozen=True)
class PENS(MixingMethod):
    """Peers evaluate the models of others on their own data, and in a second phase mix with those that were among the
    best more often than by chance.

    The original is asynchronous: models are pushed and wait for their recipient. Here all pull at once.
    """

    reveals: ClassVar = {
        "sample/links": RANDOM_LINKS,
        "choose/links": Reveals(
            "the peers that it wants to hear, whose models fitted its own nodes best",
            when="if it tried more models than it took",
        ),
        "try_out/way": WAY,
    }
    judges_unless: ClassVar = {"judge": ("train",)}

    sampled: Annotated[int, Ge(0)] = 10  # n_s: how many models a peer tries in a round of the first phase
    chosen: Annotated[int, Ge(0)] = 2  # m: how many of them it takes; in the second phase, how many peers it mixes with
    # Share of all rounds in which models are tried.
    first_phase: Annotated[float, Ge(0), Le(1), Search(0.05, 0.5)] = 0.2
    judge: Literal["train", "val"] = "train"  # the nodes on whose loss models are compared

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        never = torch.zeros(len(fleet.clients), fleet.federation, device=fleet.device)
        fleet.state.tried = never  # how often the model of each peer was evaluated in the first phase
        fleet.state.taken = torch.zeros_like(never)  # and how often it was among the best

    def round(self, peers: Peers) -> None:  # type: ignore[override]
        peers.do(self.train)
        if peers.round <= self.first_phase * peers.rounds:
            peers.exchange(self.share, self.try_out, along=self.sample)
        else:
            peers.exchange(self.share, self.mix, along=self.choose)

    @step
    def sample(self, fleet: Fleet) -> dict[str, Tensor]:
        """Draw the peers whose models are evaluated."""
        return {"links": equal_links(fleet, draw_peers(fleet.random, everyone_else(fleet), self.sampled))}

    @step
    def try_out(self, fleet: Fleet, inbox: Tree) -> Tree:
        """Go towards the mean of the own model and of those with the least loss on the own nodes."""
        heard = heard_mask(fleet, inbox)
        heard &= heard.cumsum(1) <= self.sampled  # a topology of the experiment's may have brought more
        losses = self.losses(fleet, inbox.sent.model, heard)
        # Senders are in the order of their numbers, so of two that are equal the lower number is taken.
        best = heard & (losses.argsort(dim=1, stable=True).argsort(dim=1) < self.chosen)
        mixed = best | (inbox.senders == fleet.client_ids.unsqueeze(1))
        mean = mix_models(inbox.sent.model, mixed / mixed.sum(1, keepdim=True))
        fleet.state.model, reply = self.approach(fleet, fleet.state.trained, mean)
        fleet.state.tried = fleet.state.tried.scatter_add(1, inbox.senders, heard.float())
        fleet.state.taken = fleet.state.taken.scatter_add(1, inbox.senders, best.float())
        return reply

    @step
    def choose(self, fleet: Fleet) -> dict[str, Tensor]:
        """Draw the peers to mix with from those whose models were taken more often than by chance."""
        good = self.good(fleet)
        candidates = torch.where(good.any(1, keepdim=True), good, everyone_else(fleet))
        return {"links": equal_links(fleet, draw_peers(fleet.random, candidates, self.chosen))}

    def losses(self, fleet: Fleet, models: Weights, heard: Tensor) -> Tensor:
        """Returns the loss of every received model on the own nodes, [peers, senders]; infinite for the others."""
        losses = torch.full(heard.shape, torch.inf, device=heard.device)
        # Peers receive different models, so each evaluates its first, then its second, and so on.
        order = heard.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        for sender in order[:, : min(self.sampled, heard.shape[1] - 1)].unbind(1):
            loss = self.judged(fleet, select_clients(select_clients(models, 0), sender))
            column = sender.unsqueeze(1)
            losses = losses.scatter(1, column, torch.where(heard.gather(1, column), loss.unsqueeze(1), torch.inf))
        return losses

    def judged(self, fleet: Fleet, model: Weights) -> Tensor:
        logits = fleet.predict(model).logits
        per_node = functional.cross_entropy(logits.transpose(1, 2), fleet.labels.classes, reduction="none")
        return mean_over(per_node, fleet.labels.masks[:, 0] if self.judge == "train" else fleet.labels.judged)

    def good(self, fleet: Fleet) -> Tensor:
        """Returns a mask of the peers whose models were taken more often than by chance, [peers, federation]."""
        tried = max(1, min(self.sampled, fleet.federation - 1))
        good: Tensor = fleet.state.taken > fleet.state.tried * (min(self.chosen, tried) / tried)
        return good
