"""FedDual. Chen, Wang, Wang and Lin: FedDual: pair-wise gossip helps federated learning in large decentralized
networks. IEEE Transactions on Information Forensics and Security 18, 2023."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from annotated_types import Gt, Le
from torch import Tensor

from graft.federation.method import step
from graft.federation.peers import WAY, MixingMethod, Peers, mix_models
from graft.federation.reveals import MODEL, VOTE
from graft.federation.topologies import Topology
from graft.tensors.trees import Tree, add_update, difference, inner_product, map_tree, shares_among, unsqueeze_to

if TYPE_CHECKING:
    from graft.federation.fleet import Fleet


@dataclass(frozen=True)
class FedDual(MixingMethod):
    """Made after the paper's abstract alone: peers meet in pairs, drawn anew every round, and both take the weighted
    mean of their models (weight_by).

    All pairs meet at once, where the paper's are asynchronous, and its noise reduction by private set intersection is
    left out. How pairs are drawn, means are weighted and noise is added is our choice: report this as pair-wise gossip.
    """

    reveals: ClassVar = {
        "share/model": None,
        "mix/way": None,
        "show/model": MODEL,
        "show/vote": VOTE,
        "merge/way": WAY,
    }

    hierarchical: bool = False  # whether merged pairs merge further within a round, until all have met
    noise: Literal["none", "gaussian", "laplace"] = "none"  # noise added to an update before anybody receives it
    clip: Annotated[float, Gt(0)] = 1.0  # c: with noise, the largest norm of an update
    epsilon: Annotated[float, Gt(0), Le(math.inf)] = 1.0  # with noise, its scale is clip / epsilon

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        fleet.state.vote = fleet.weight.float()  # of all whose models went into this peer's in the round

    def round(self, peers: Peers) -> None:  # type: ignore[override]
        peers.do(self.train)
        levels = (peers.federation - 1).bit_length()
        pairings = [Topology("tournament", {"level": level}) for level in range(levels)]
        for pairs in pairings if self.hierarchical else [Topology("matching")]:
            peers.exchange(self.show, self.merge, along=pairs)

    @step
    def train(self, fleet: Fleet) -> dict[str, Tensor]:
        """Train, and keep what may be sent."""
        super().train(fleet)
        fleet.state.model = fleet.state.trained if self.noise == "none" else self.hidden(fleet)
        fleet.state.vote = fleet.weight.float()
        return {}

    @step
    def show(self, fleet: Fleet) -> Tree:
        return Tree(model=fleet.state.model, vote=fleet.state.vote)

    @step
    def merge(self, fleet: Fleet, inbox: Tree) -> Tree:
        """Go towards the mean with the partner; a peer without one keeps its model."""
        heard, votes = inbox.links != 0, inbox.sent.vote
        fleet.state.vote = (heard * votes).sum(1)
        mean = mix_models(inbox.sent.model, shares_among(votes, heard))
        # With noise, the own end of the way is what the peer showed: its exact model stays out of the mix.
        fleet.state.model, reply = self.approach(fleet, fleet.state.model, mean)
        return reply

    def hidden(self, fleet: Fleet) -> Tree:
        """Returns the trained model with its update clipped and noise added."""
        update = difference(fleet.state.trained, fleet.state.model)
        factor = (self.clip / inner_product(update, update).sqrt().clamp(min=torch.finfo().tiny)).clamp(max=1)
        scale = self.clip / self.epsilon

        def noisy(leaf: Tensor) -> Tensor:
            return leaf * unsqueeze_to(factor, leaf) + scale * self.draw(fleet, leaf)

        return add_update(fleet.state.model, map_tree(noisy, update))

    def draw(self, fleet: Fleet, leaf: Tensor) -> Tensor:
        """Returns noise of scale 1 in the shape of a leaf."""
        count = leaf[0].numel()
        if self.noise == "gaussian":
            return fleet.random.normal(count).view(leaf.shape)
        size = -(1 - fleet.random.uniform(count)).log()  # 1 - u is never 0
        return torch.where(fleet.random.uniform(count) < 0.5, size, -size).view(leaf.shape)
