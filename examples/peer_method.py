"""A method without a server: peers train, send their models along links, and move some way towards what they hear."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

import graft
from graft import PeerMethod, Topology, map_tree, mix_models, step


@dataclass(frozen=True)
class Cautious(PeerMethod):
    """Peers keep a share of their own model and take the rest from the mean of those that they hear."""

    keep: Annotated[float, Ge(0), Le(1)] = 0.5  # share of the own model; 1 is local training

    def round(self, peers):  # names steps and exchanges, and holds no values: the same text runs at every peer
        peers.do(self.train)  # `train` and `share` come with PeerMethod
        peers.exchange(self.share, self.move, along=Topology("ring"))

    @step
    def move(self, fleet, inbox):
        heard = mix_models(inbox.sent.model, inbox.links)
        fleet.state.model = map_tree(
            lambda own, mean: self.keep * own + (1 - self.keep) * mean, fleet.state.trained, heard
        )
        return {}


def main() -> None:
    setting = dict(clients=6, partition="random", split="5/20/75", rounds=10, seed=0)
    for topology in ("none", "ring", "complete"):
        result = graft.run(Cautious(keep=0.3), "digits", topology=topology, **setting)
        sent = result.summary["communication"]["peer_bytes"]
        hears = len(result.rounds[-1]["links"]["move"]) / 6 - 1  # everybody hears itself, too
        print(
            f"{topology:8} a peer hears {hears:.0f} others, test accuracy {100 * result.accuracy['test']:.1f} %, "
            f"{sent / 1e6:.1f} MB sent"
        )


if __name__ == "__main__":
    main()
