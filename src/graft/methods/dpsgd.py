"""D-PSGD. Lian, Zhang, Zhang, Hsieh, Zhang and Liu: Can decentralized algorithms outperform centralized algorithms?
A case study for decentralized parallel stochastic gradient descent. NeurIPS 2017."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from graft.federation.method import step
from graft.federation.peers import WAY, MixingMethod, Peers, mix_models
from graft.federation.reveals import MODEL
from graft.federation.topologies import Topology
from graft.tensors.trees import Tree, Weights, add_update, difference

if TYPE_CHECKING:
    from graft.federation.fleet import Fleet
    from graft.training.optimizers import Training

MUTUAL = Topology("random-undirected", mixing="metropolis")


@dataclass(frozen=True)
class DPSGD(MixingMethod):
    """Peers train and mix with their neighbours by weights that preserve the mean over all peers."""

    reveals: ClassVar = {
        "share/model": replace(MODEL, when="if mode is not original"),
        "share_untrained/model": replace(MODEL, when="if mode is original"),
        "mix_and_move/way": replace(WAY, when=f"{WAY.when}, and mode is original"),
    }

    # fl: train, then mix. dispfl: take a plain mean, then train, as the code of Dis-PFL does. original: compute a
    # gradient, mix, and then take one step of SGD.
    mode: Literal["fl", "original", "dispfl"] = "fl"

    def round(self, peers: Peers) -> None:  # type: ignore[override]
        if self.mode == "dispfl":
            peers.exchange(self.share, self.mix, along=Topology("random"))
            peers.do(self.train)
        elif self.mode == "original":
            peers.do(self.train)
            peers.exchange(self.share_untrained, self.mix_and_move, along=MUTUAL)
        else:
            peers.do(self.train)
            peers.exchange(self.share, self.mix, along=MUTUAL)

    @step
    def share_untrained(self, fleet: Fleet) -> dict[str, Weights]:
        """Send the model as it was before training."""
        return {"model": fleet.state.model}

    @step
    def mix_and_move(self, fleet: Fleet, inbox: Tree) -> Tree:
        """Mix the received models, then apply the own gradient step."""
        update = difference(fleet.state.trained, fleet.state.model)
        moved = add_update(mix_models(inbox.sent.model, inbox.links), update)
        fleet.state.model, reply = self.approach(fleet, fleet.state.trained, moved)
        return reply

    def training(self, fleet: Fleet) -> Training:
        # A step of Adam depends on more than the gradient, so it cannot be applied to another model.
        return replace(fleet.training, epochs=1, optimizer="sgd") if self.mode == "original" else fleet.training
