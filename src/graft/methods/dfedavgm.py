"""DFedAvgM. Sun, Li and Wang: Decentralized federated averaging. IEEE Transactions on Pattern Analysis and Machine
Intelligence 45, 2023."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from graft.federation.method import step
from graft.federation.peers import WAY, MixingMethod, Peers, mix_models
from graft.federation.reveals import MODEL, Reveals
from graft.federation.topologies import Topology
from graft.fields import Search
from graft.tensors.trees import Tree, add_update, difference, flatten, map_tree, unsqueeze_to

if TYPE_CHECKING:
    from graft.federation.fleet import Fleet
    from graft.training.optimizers import Training


@dataclass(frozen=True)
class DFedAvgM(MixingMethod):
    """Peers train by SGD with momentum, which is reset in every round, and mix with their neighbours.

    Quantised, they send updates instead, and each adds the mix of these to its own model. Where all started from one
    model, that is the mix of the models; where they did not, their differences stay.
    """

    reveals: ClassVar = {
        "share/model": replace(MODEL, when="if bits is 0"),
        "share_move/steps": Reveals("quantised update of the peer's model", model=True, when="if bits is not 0"),
        "share_move/size": Reveals("size of a quantisation step of that update", when="if bits is not 0"),
        "mix_moves/way": replace(WAY, when=f"{WAY.when}, and bits is not 0"),
    }

    momentum: Annotated[float, Ge(0), Lt(1), Search(0.0, 0.95)] = 0.9  # theta: momentum of SGD
    bits: Literal[0, 8, 16] = 0  # bits of a number in quantised updates; 0: models are sent as they are
    rounding: Literal["nearest", "stochastic"] = "nearest"  # how updates are quantised; stochastic is unbiased

    def round(self, peers: Peers) -> None:  # type: ignore[override]
        links = Topology("random-undirected", mixing="metropolis")
        peers.do(self.train)
        if self.bits:
            peers.exchange(self.share_move, self.mix_moves, along=links)
        else:
            peers.exchange(self.share, self.mix, along=links)

    @step
    def share_move(self, fleet: Fleet) -> Tree:
        """Send the update of training as whole quantisation steps, and the size of a step."""
        update = difference(fleet.state.trained, fleet.state.model)
        largest = torch.stack([leaf.reshape(len(leaf), -1).abs().amax(1) for _, leaf in flatten(update)]).amax(0)
        size = largest / self.most
        return Tree(steps=map_tree(lambda leaf: self.in_steps(fleet, leaf, size), update), size=size)

    @step
    def mix_moves(self, fleet: Fleet, inbox: Tree) -> Tree:
        """Add the mix of all updates that were received."""
        size = inbox.sent.size[:1]  # the inbox is the same for all peers of a fleet; one copy is enough
        updates = map_tree(lambda steps: steps[:1] * unsqueeze_to(size, steps), inbox.sent.steps)
        mixed = add_update(fleet.state.model, mix_models(updates, inbox.links))
        fleet.state.model, reply = self.approach(fleet, fleet.state.trained, mixed)
        return reply

    def training(self, fleet: Fleet) -> Training:
        return replace(fleet.training, optimizer="momentum", momentum=self.momentum, optimizer_state="reset")

    def in_steps(self, fleet: Fleet, leaf: Tensor, size: Tensor) -> Tensor:
        """Returns values in whole steps, rounded to the nearest, or stochastically to one of the two around."""
        tiny = torch.finfo(leaf.dtype).tiny  # for a peer whose model did not change: its steps have size 0
        exact = leaf / unsqueeze_to(size, leaf).clamp(min=tiny)
        offset: Tensor | float = 0.5
        if self.rounding == "stochastic":
            offset = fleet.random.uniform(leaf[0].numel()).view(leaf.shape)
        return (exact + offset).floor().clamp(-self.most, self.most).to(torch.int8 if self.bits == 8 else torch.int16)

    @property
    def most(self) -> int:
        """Returns the largest number of steps that the bits can represent."""
        return (1 << (self.bits - 1)) - 1
