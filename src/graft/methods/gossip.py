"""Segmented gossip. Hu, Jiang and Wang: Decentralized federated learning: a segmented gossip approach. Workshop on
Federated Machine Learning at IJCAI 2019."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn import functional

from graft.federation.method import step
from graft.federation.peers import WAY, MixingMethod, Peers, draw_peers, equal_links, everyone_else, mix_models
from graft.federation.reveals import MODEL, RANDOM_LINKS, VOTE
from graft.fields import Search
from graft.tensors.trees import Tree, flatten, shares_among, trainable, unflatten

if TYPE_CHECKING:
    from graft.federation.fleet import Fleet


@dataclass(frozen=True)
class Gossip(MixingMethod):
    """Peers split their models into segments and pull each of them from other peers, drawn anew for every segment.

    One segment and one source is plain gossip. Means are weighted as the experiment sets it (weight_by). Buffers are
    not exchanged.
    """

    reveals: ClassVar = {
        "share/model": None,
        "mix/way": None,
        "cut/segments": MODEL,
        "cut/vote": VOTE,
        "pull/links": RANDOM_LINKS,
        "assemble/way": WAY,
    }

    segments: Annotated[int, Ge(1), Search(1, 20, log=True)] = 10  # S: number of segments of a model
    sources: Annotated[int, Ge(0)] = 2  # R: from how many peers a segment is pulled; 0 is local training

    def round(self, peers: Peers) -> None:  # type: ignore[override]
        peers.do(self.train)
        peers.exchange(self.cut, self.assemble, along=self.pull)

    @step
    def cut(self, fleet: Fleet) -> dict[str, Tensor]:
        """Send the trained model in segments, each with the own weight in means."""
        parts = trainable(fleet.state.trained, fleet.model.frozen)
        vector = torch.cat([leaf.reshape(len(leaf), -1) for _, leaf in flatten(parts)], 1)
        count = self.number_of_segments(fleet)
        # All are of one length; the last one is padded with zeros.
        segments = functional.pad(vector, (0, -vector.shape[1] % count)).view(len(vector), count, -1)
        return {"segments": segments, "vote": fleet.weight.float().unsqueeze(1).expand(-1, count)}

    @step
    def pull(self, fleet: Fleet) -> dict[str, Tensor]:
        """Draw the sources of each segment."""
        others = everyone_else(fleet).unsqueeze(1).expand(-1, self.number_of_segments(fleet), -1)
        return {"links": equal_links(fleet, draw_peers(fleet.random, others, self.sources))}

    @step
    def assemble(self, fleet: Fleet, inbox: Tree) -> Tree:
        """Go towards the weighted mean of each segment over its sources and the peer itself."""
        votes = inbox.sent.vote[0].T  # [segments, senders]
        heard = inbox.links != 0
        shares = shares_among(votes, heard if heard.dim() == 3 else heard.unsqueeze(1))
        vector = mix_models({"segments": inbox.sent.segments}, shares).segments.flatten(1)
        model, offset = dict(flatten(fleet.state.trained)), 0
        for path, leaf in flatten(trainable(fleet.state.trained, fleet.model.frozen)):
            model[path] = vector[:, offset : offset + leaf[0].numel()].view_as(leaf)
            offset += leaf[0].numel()
        fleet.state.model, reply = self.approach(fleet, fleet.state.trained, unflatten(model))
        return reply

    def number_of_segments(self, fleet: Fleet) -> int:
        """As many as the field asks for, but at most one a weight."""
        weights: int = sum(leaf[0].numel() for _, leaf in flatten(trainable(fleet.state.trained, fleet.model.frozen)))
        return min(self.segments, weights)
