"""Dis-PFL. Dai, Shen, He, Tian and Tao: DisPFL: towards communication-efficient personalized federated learning via
decentralized sparse training. ICML 2022."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from graft.federation.method import step
from graft.federation.peers import WAY, MixingMethod, Peers, mix_models
from graft.federation.reveals import MODEL, Reveals
from graft.federation.topologies import Topology
from graft.fields import Search
from graft.methods.dis_pfl.masks import LEAST, erk, masked, ordered, top
from graft.tensors.masks import as_bits, from_bits, packed, unpacked
from graft.tensors.randomness import seed_for, streams
from graft.tensors.trees import Tree, Weights, flatten, map_tree, trainable, unflatten

if TYPE_CHECKING:
    from graft.federation.fleet import Fleet
    from graft.training.optimizers import Training


@dataclass(frozen=True)
class DisPFL(MixingMethod):
    """Every peer trains a sparse model with a mask of its own, of one density for all, and takes the mean of each
    weight over those neighbours that have it.

    A mask selects the weights that a peer has; biases and other vectors are never masked. After every round a peer
    prunes its smallest weights and grows as many others, fewer and fewer of them over the rounds.
    """

    reveals: ClassVar = {
        "share/model": None,
        "mix/way": None,
        "send/dense": MODEL,
        "send/active": MODEL,
        "send/bits": Reveals("which weights its mask selects: at random at first, then the largest trained ones"),
        "combine/way": WAY,
    }

    density: Annotated[float, Gt(0), Le(1)] = 0.5  # rho: share of all weights a peer has; 1 is D-PSGD, mode "dispfl"
    # Share of its weights that a peer gives up after the first round; decays to 0 along a cosine.
    drop: Annotated[float, Ge(0), Le(1), Search(0.1, 0.9)] = 0.5
    # How much denser small matrices are than large ones; 0: all alike.
    erk_power: Annotated[float, Ge(0), Search(0.0, 1.0)] = 1.0
    # Which weights replace those that a peer gives up: any, or those of largest gradient.
    regrow: Annotated[Literal["random", "gradient"], Search(choices=("random", "gradient"))] = "random"
    same_start: bool = False  # whether all peers begin with the same mask
    # How peers train: as the experiment sets it, or as the authors' code does (5 epochs of SGD, learning rate 0.1 that
    # decays by 0.2 % a round, gradients clipped at norm 10).
    local: Literal["experiment", "author"] = "experiment"

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        owners = [0] * len(fleet.clients) if self.same_start else fleet.clients
        random = streams(fleet.device, seed_for(fleet.seed, "mask"), owners)
        weights = dict(flatten(fleet.state.model))
        fleet.state.mask = unflatten(
            {
                path: top(random.bits(weights[path][0].numel()), count).view(weights[path].shape)
                for path, count in self.counts(fleet).items()
            }
        )
        fleet.state.model = masked(fleet.state.model, fleet.state.mask)
        fleet.state.trained = fleet.state.model

    def round(self, peers: Peers) -> None:  # type: ignore[override]
        # The paper ends a round with the search for a new mask, to be used from the next round on. Beginning the next
        # round with it comes to the same, and the mask stays that of the models which are scored in between.
        if peers.round > 1:
            peers.do(type(self).search, share=self.drop_share(peers.round - 2, peers.rounds))
        peers.exchange(self.send, self.combine, along=Topology("random"))
        peers.do(self.train)

    # The step has the name of a setting, which only its class tells apart; its random numbers are by that name.
    @step  # type: ignore[misc]
    def search(self, fleet: Fleet, settings: Tree) -> dict[str, Tensor]:  # type: ignore[override]
        """Prune the smallest weights and grow as many that the peer did not have; these start at 0."""
        state, counts = fleet.state, self.counts(fleet)
        weights = dict(flatten(state.trained))
        gradients = self.dense_gradient(fleet) if self.regrow == "gradient" else {}
        masks = {}
        for path, mask in flatten(state.mask):
            count, size = counts[path], mask[0].numel()
            most = min(math.ceil(self.drop * count), size - count)
            if most == 0:
                masks[path] = mask
                continue
            exchanged = (settings.share * count).ceil().clamp(max=most).unsqueeze(1)
            has = mask.flatten(1)
            small = -ordered(weights[path], fleet.random)
            new = ordered(gradients[path], fleet.random) if gradients else fleet.random.bits(size)
            dropped = top(small.masked_fill(~has, LEAST), most, exchanged)
            grown = top(new.masked_fill(has, LEAST), most, exchanged)
            masks[path] = ((has & ~dropped) | grown).view_as(mask)
        state.mask = unflatten(masks)
        state.trained = masked(state.trained, state.mask)
        # The moments of the optimiser must not move a pruned weight, nor one that is grown again.
        for name, moment in state.get("optimizer", {}).get("model", {}).items():
            if isinstance(moment, dict):
                state.optimizer.model[name] = masked(moment, state.mask)
        return {}

    @step
    def send(self, fleet: Fleet) -> Tree:
        """Send the weights that the peer has, packed, and its mask in bits."""
        masks, counts = dict(flatten(fleet.state.mask)), self.counts(fleet)
        parts: dict[str, dict[str, Tensor]] = {"dense": {}, "active": {}, "bits": {}}
        for path, leaf in flatten(fleet.state.trained):
            if path in masks:
                mask = masks[path].flatten(1)
                parts["active"][path] = packed(leaf.flatten(1), mask, counts[path])
                parts["bits"][path] = as_bits(mask)
            else:
                parts["dense"][path] = leaf
        return Tree({name: unflatten(leaves) for name, leaves in parts.items() if leaves})

    @step
    def combine(self, fleet: Fleet, inbox: Tree) -> Tree:
        """Go towards the mean of every weight over the senders that have it, and apply the own mask."""
        sent, links, masks = inbox.sent, inbox.links, dict(flatten(fleet.state.mask))
        mean = dict(flatten(mix_models(sent.get("dense", Tree()), links)))
        bits = dict(flatten(sent.get("bits", {})))
        for path, values in flatten(sent.get("active", {})):
            mask = masks[path]
            sent_masks = from_bits(bits[path][0], mask[0].numel())
            total = links @ unpacked(values[0], sent_masks)
            owners = links @ sent_masks.float()
            mean[path] = torch.where(owners > 0, total / owners, 0).view_as(mask) * mask
        whole = unflatten({path: mean[path] for path, _ in flatten(fleet.state.model)})
        fleet.state.model, reply = self.approach(fleet, fleet.state.trained, whole)
        return reply

    def loss(self, fleet: Fleet, weights: Weights) -> Tensor:
        # Through the mask no gradient reaches a masked weight, so it stays exactly 0.
        return super().loss(fleet, masked(weights, fleet.state.mask))

    def training(self, fleet: Fleet) -> Training:
        if self.local == "experiment":
            return fleet.training
        rate: Any = 0.1 * 0.998 ** (fleet.round.double() - 1)  # a scalar on the device works like a number
        return replace(fleet.training, epochs=5, optimizer="sgd", learning_rate=rate, weight_decay=5e-4, clip_norm=10.0)

    def counts(self, fleet: Fleet) -> dict[str, int]:
        """Returns the number of weights of every matrix that a peer has."""
        weights = trainable(fleet.state.model, fleet.model.frozen)
        shapes = {path: tuple(leaf.shape[1:]) for path, leaf in flatten(weights)}
        densities = erk(shapes, self.density, self.erk_power)
        # A density of 1 may come out of the division as a little less.
        return {path: int(density * math.prod(shapes[path]) + 1e-6) for path, density in densities.items()}

    def drop_share(self, round: int, rounds: int) -> float:
        """Returns the share of its weights that a peer prunes after a round, counted from 0."""
        return self.drop / 2 * (1 + math.cos(math.pi * round / rounds))

    def dense_gradient(self, fleet: Fleet) -> dict[str, Tensor]:
        """Returns the gradient of all weights, masked ones included."""
        weights = map_tree(lambda leaf: leaf.detach().clone(), fleet.state.trained)
        paths = dict(flatten(fleet.state.mask))
        matrices = {path: leaf.requires_grad_() for path, leaf in flatten(weights) if path in paths}
        loss = super().loss(fleet, weights)
        gradients = torch.autograd.grad(loss.sum(), list(matrices.values()), materialize_grads=True)
        return dict(zip(matrices, gradients, strict=True))
