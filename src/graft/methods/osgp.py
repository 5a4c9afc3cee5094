"""SGP and OSGP. Assran, Loizou, Ballas and Rabbat: Stochastic gradient push for distributed deep learning.
ICML 2019."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from graft.federation.method import step
from graft.federation.peers import WAY, MixingMethod, Peers, heard_mask, mix_models
from graft.federation.reveals import Reveals
from graft.federation.topologies import Topology
from graft.tensors.trees import Tree, add_update, difference, flatten, map_tree, trainable, unflatten, unsqueeze_to

if TYPE_CHECKING:
    from graft.federation.fleet import Fleet

LEAST = 1e-8  # a mass below this is too small to divide by


@dataclass(frozen=True)
class OSGP(MixingMethod):
    """Push-sum: peers push shares of their weights, and the same shares of a mass, along directed links.

    What a peer holds is a sum; its model is the sum divided by the mass. A peer that receives more than others has a
    larger sum and a larger mass, so all models tend to the plain mean although links are directed. Peers train their
    models for the experiment's epochs, and updates are added to the sums in proportion to the mass.
    """

    reveals: ClassVar = {
        "share/model": None,
        "mix/way": None,
        "push/sum": Reveals("sum of shares of models, its own trained one among them", model=True),
        "push/mass": Reveals("sum of the same shares of the number 1", ()),
        "gather/way": WAY,
    }

    delay: Annotated[int, Ge(0)] = 1  # tau: rounds until a message arrives; 0 is SGP, which is synchronous
    fan_out: Annotated[int, Ge(1)] = 1  # number of peers that a peer sends to in a round

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        mass = torch.ones(len(fleet.clients), device=fleet.device)
        fleet.state.held = Tree(sum=trainable(fleet.state.model, frozenset()), mass=mass)
        if self.delay:  # a queue of what was sent to a peer but has not arrived yet, the next to arrive first
            fleet.state.coming = map_tree(
                lambda leaf: leaf.new_zeros(len(leaf), self.delay, *leaf.shape[1:]), fleet.state.held
            )

    def round(self, peers: Peers) -> None:  # type: ignore[override]
        peers.do(self.train)
        peers.exchange(self.push, self.gather, along=Topology("exponential", {"k": self.fan_out}, mixing="push"))

    @step
    def train(self, fleet: Fleet) -> dict[str, Tensor]:
        super().train(fleet)
        state = fleet.state
        update = difference(state.trained, state.model)
        update = map_tree(lambda leaf: leaf * unsqueeze_to(state.held.mass, leaf), update)
        state.held = Tree(sum=add_update(state.held.sum, update), mass=state.held.mass)
        return {}

    @step
    def push(self, fleet: Fleet) -> Tree:
        """Send sum and mass; the weight of a link is the share of them that it carries."""
        held: Tree = fleet.state.held
        return held

    @step
    def gather(self, fleet: Fleet, inbox: Tree) -> Tree:
        """Keep the own share, and add what arrives."""
        others = heard_mask(fleet, inbox)
        own_share = mix_models(inbox.sent, inbox.links * ~others)
        received = mix_models(inbox.sent, inbox.links * others)
        arrived = received
        if self.delay:
            queue = map_tree(lambda leaf, new: torch.cat([leaf, new.unsqueeze(1)], 1), fleet.state.coming, received)
            arrived = map_tree(lambda leaf: leaf[:, 0], queue)
            fleet.state.coming = map_tree(lambda leaf: leaf[:, 1:].contiguous(), queue)
        fleet.state.held = map_tree(torch.add, own_share, arrived)
        mean = unflatten({**dict(flatten(fleet.state.trained)), **dict(flatten(self.divided(fleet)))})
        fleet.state.model, reply = self.approach(fleet, fleet.state.trained, mean)
        if self.search:  # a peer that stays where it is holds and pushes the model that it stays with
            mass = fleet.state.held.mass
            sums = map_tree(lambda leaf: leaf * unsqueeze_to(mass, leaf), trainable(fleet.state.model, frozenset()))
            fleet.state.held = Tree(sum=sums, mass=mass)
        return reply

    def divided(self, fleet: Fleet) -> Tree:
        """Returns sums divided by masses; a peer with next to no mass keeps its model."""
        mass, old = fleet.state.held.mass, trainable(fleet.state.model, frozenset())

        def quotient(sums: Tensor, before: Tensor) -> Tensor:
            return torch.where(
                unsqueeze_to(mass >= LEAST, sums), sums / unsqueeze_to(mass.clamp(min=LEAST), sums), before
            )

        return map_tree(quotient, fleet.state.held.sum, old)
