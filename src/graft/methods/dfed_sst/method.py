"""DFed-SST. Guo, Yuan, Li, Zhu, Qu and Wang: DFed-SST: building semantic- and structure-aware topologies for
decentralized federated graph learning. arXiv 2508.11530, 2025."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from graft.errors import InputError
from graft.federation.method import step
from graft.federation.peers import PeerMethod, Peers, everyone_else, mix_models
from graft.methods.dfed_sst.fingerprints import (
    EXACT_UP_TO,
    SOURCES,
    Disconnected,
    LabelSource,
    Paths,
    adaptive_degree,
    fingerprint,
    known_classes,
    mixing_shares,
    most_similar,
    similarity,
)
from graft.tensors.trees import Tree, Weights, map_tree, unsqueeze_to

if TYPE_CHECKING:
    from torch import Tensor

    from graft.federation.fleet import Fleet


@dataclass(frozen=True)
class DFedSST(PeerMethod):
    """Peers hear the more others the more scattered their own classes are, and those whose classes lie alike.

    Two things are ours: everybody hears half of all peers at least, and goes from its own model towards the mean of
    those it hears only as far as its validation nodes like it. `DFedSSTPaper` is without them.

    A peer tells everybody how far apart the nodes of its classes are and how soft labels go with that: 1 + classes^2
    numbers, which give away what classes it has and how they spread.
    """

    k_topo: int = 10  # rounds between two choices of whom to hear
    include_self: bool = True  # the own model counts in the mean; off is the paper's formula to the letter
    search: int = 4  # so many steps from the own model to the mean are tried on validation nodes; 0: take the mean
    min_share: float = 0.5  # of all peers that is heard at least
    labels: LabelSource = "mixed"  # true on training nodes, else predicted; on training nodes alone; or all true
    disconnected: Disconnected = "penalty"  # nodes no path joins: the longest distance plus 1, left out, or distance 0
    degree: Literal["adaptive", "half"] = "adaptive"  # how many peers are heard; half of all is an ablation
    similar_by: Literal["cse", "features"] = "cse"  # who is alike; by mean features is an ablation
    select: Literal["similar", "random"] = "similar"  # who is heard; at random is an ablation
    exact_up_to: int = EXACT_UP_TO  # nodes of a graph whose distances are all measured; in larger ones they are sampled
    sources: int = SOURCES  # nodes of each class from which a sample measures

    def __post_init__(self) -> None:
        for name, least in {
            "k_topo": 1,
            "search": 0,
            "min_share": 0,
            "exact_up_to": 0,
            "sources": 1,
        }.items():
            if not least <= getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least {least}.")

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        others = everyone_else(fleet)
        # Nothing is known of the others yet, so the first round hears half of them at random.
        heard = first(fleet.random.uniform(fleet.federation), others, half(fleet))
        nothing = torch.zeros(others.shape, device=fleet.device)
        fleet.state.links = self.shares(nothing, nothing, heard, others)
        fleet.state.known = torch.zeros_like(others)  # whose description was heard
        fleet.state.wlsd, fleet.state.similar = nothing, nothing.clone()

    def round(self, peers: Peers) -> None:  # type: ignore[override]
        peers.do(self.train)
        peers.exchange(self.share, self.mix, along=self.links)
        if (peers.round - 1) % self.k_topo == 0:
            peers.exchange(self.describe, self.choose)

    @step
    def links(self, fleet: Fleet) -> Tree:
        """Whom each peer hears, as it chose last."""
        return Tree(links=fleet.state.links)

    @step
    def mix(self, fleet: Fleet, inbox: Tree) -> Tree:
        """Go towards the weighted mean of what was heard, as far as the validation nodes like it."""
        own, mean = fleet.state.trained, mix_models(inbox.sent.model, inbox.links)
        if not self.search:
            fleet.state.model = mean
            return Tree()
        known = fleet.count_validated(fleet.predict(mean).logits)
        way = torch.ones_like(known, dtype=torch.float32)
        for point in reversed(range(self.search)):
            tried = between(own, mean, torch.full_like(way, point / self.search))
            found = fleet.count_validated(fleet.predict(tried).logits)
            way = torch.where(found > known, point / self.search, way)
            known = torch.maximum(found, known)
        fleet.state.model = between(own, mean, way)
        return Tree(way=way)

    @step(fleet=False)
    def describe(self, fleet: Fleet) -> Tree:
        """Eqs. 1 to 5: what a peer tells the others of its graph, as its model sees it before mixing."""
        graph, labels, nodes = fleet.graph, fleet.labels, int(fleet.size)
        soft = fleet.predict(fleet.state.trained).logits[0, :nodes].double().softmax(1).cpu().numpy()
        truth, masks = labels.classes[0, :nodes].cpu().numpy(), labels.masks[0, :, :nodes].cpu().numpy()
        found = fingerprint(
            Paths(graph.neighbours.starts[: nodes + 1].cpu().numpy(), graph.neighbours.columns.cpu().numpy()),
            known_classes(truth, masks, soft, self.labels),
            soft,
            self.disconnected,
            exact_up_to=self.exact_up_to,
            sources=self.sources,
            priority=fleet.random.bits(nodes)[0].cpu().numpy(),
        )
        wlsd = torch.tensor([found.wlsd], dtype=torch.float32, device=fleet.device)
        if self.similar_by == "features":
            return Tree(wlsd=wlsd, features=mean_features(fleet))
        return Tree(wlsd=wlsd, cse=torch.tensor(found.cse, dtype=torch.float32, device=fleet.device).unsqueeze(0))

    @step
    def choose(self, fleet: Fleet, inbox: Tree) -> Tree:
        """Eqs. 6 to 8: how many to hear from the next round on, whom, and with what weight."""
        state, sent, others = fleet.state, inbox.sent, everyone_else(fleet)
        described = (sent.cse if self.similar_by == "cse" else sent.features).flatten(2)
        own = (inbox.senders == fleet.numbers.unsqueeze(1)).long().argmax(1)
        mine = described[torch.arange(len(own), device=own.device), own]
        # Peers that are away are known by what they said last.
        state.known = state.known.scatter(1, inbox.senders, True)
        state.wlsd = state.wlsd.scatter(1, inbox.senders, sent.wlsd)
        state.similar = state.similar.scatter(1, inbox.senders, similarity(mine, described).float())
        candidates = state.known & others
        wlsd = state.wlsd.gather(1, fleet.numbers.unsqueeze(1)).squeeze(1)
        adaptive = adaptive_degree(wlsd, state.wlsd.masked_fill(~candidates, torch.inf))
        degree = adaptive if self.degree == "adaptive" else half(fleet)
        by = state.similar if self.select == "similar" else fleet.random.uniform(fleet.federation)
        heard = first(by, candidates, degree.clamp(min=int(self.min_share * fleet.federation + 1e-9)))
        state.links = self.shares(state.similar, state.wlsd, heard, others)
        return Tree(wlsd=wlsd, degree=heard.sum(1), similarity=state.similar)

    def shares(self, similar: Tensor, wlsd: Tensor, heard: Tensor, others: Tensor) -> Tensor:
        """Eq. 8: the weight of everybody's model; who hears nobody keeps its own."""
        alike = torch.where(others, similar, 1.0)  # a peer is like itself, even if its description is all zeros
        alone = ~heard.any(1, keepdim=True)
        counted = heard | (~others & (alone | self.include_self))
        return mixing_shares(alike.double(), wlsd.double(), counted).float()


@dataclass(frozen=True)
class DFedSSTPaper(DFedSST):
    """DFed-SST as published: the least scattered peer hears nobody, and every mean is taken as it is."""

    search: int = 0
    min_share: float = 0.0


def between(own: Weights, mean: Weights, way: Tensor) -> Tree:
    """The models at a part of the way, one number a peer, from one to another."""

    def part(here: Tensor, there: Tensor) -> Tensor:
        if not here.is_floating_point():
            return here
        return torch.lerp(here, there, unsqueeze_to(way, here).to(here))

    return map_tree(part, own, mean)  # type: ignore[no-any-return]


def half(fleet: Fleet) -> Tensor:
    """Half of all peers, for each of them."""
    return torch.full_like(fleet.numbers, fleet.federation // 2)


def first(by: Tensor, candidates: Tensor, degree: Tensor) -> Tensor:
    """The `degree` candidates with the largest values, [peers, federation]; all where there are no more."""
    return most_similar(by.masked_fill(~candidates, -torch.inf), degree) & candidates


def mean_features(fleet: Fleet) -> Tensor:
    """The mean feature vector of each client, [clients, features]; spare nodes have none, so they add nothing."""
    features = fleet.graph.features
    if isinstance(features, torch.Tensor):
        total = features.sum(1)
    else:
        total = features.transpose.times(torch.ones(*fleet.graph.real.shape, 1, device=fleet.device)).squeeze(2)
    return total / fleet.size.unsqueeze(1)
