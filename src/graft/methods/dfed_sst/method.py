"""DFed-SST. Guo, Yuan, Li, Zhu, Qu and Wang: DFed-SST: building semantic- and structure-aware topologies for
decentralized federated graph learning. arXiv 2508.11530, 2025."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from annotated_types import Ge

from graft.federation.method import step
from graft.federation.peers import MixingMethod, Peers, everyone_else
from graft.federation.reveals import Reveals
from graft.fields import Search
from graft.methods.dfed_sst.fingerprints import (
    EXACT_UP_TO,
    SOURCES,
    Disconnected,
    LabelSource,
    assumed_classes,
    fingerprint,
)
from graft.methods.dfed_sst.paths import Paths
from graft.methods.dfed_sst.selection import adaptive_degree, mixing_shares, similarity, top_mask
from graft.tensors.trees import Tree

if TYPE_CHECKING:
    from torch import Tensor

    from graft.federation.fleet import Fleet


@dataclass(frozen=True, kw_only=True)
class DFedSST(MixingMethod):
    """Peers hear the more others the more scattered their own classes are, and those with the most similar ones.

    Two things are ours: every peer hears at least half of all peers, and goes from its own model towards the mean of
    those it hears only as far as that pays on its validation nodes. `DFedSSTPaper` is without them.

    A peer sends everybody how far apart the nodes of its classes are and the soft labels that go with that:
    1 + classes^2 numbers, which reveal what classes it has and how they are scattered.
    """

    reveals: ClassVar = {
        "links/links": Reveals("the peers that it wants to hear, and how much, by similarity of fingerprints"),
        "describe/wlsd": Reveals("mean distance in the graph of nodes of one class: how scattered classes are"),
        "describe/cse": Reveals("mean predictions for the nodes of each class, weighted by how far apart these are"),
        "describe/features": Reveals("mean features of its nodes", ("features",), when="if similar_by is features"),
        # What follows is for the run's record alone.
        "choose/wlsd": Reveals("the same number as in its fingerprint"),
        "choose/degree": Reveals("number of peers that it will hear"),
        "choose/similarity": Reveals("similarity of its fingerprint to those that it heard"),
    }

    k_topo: Annotated[int, Ge(1), Search(1, 20, log=True)] = 10  # rounds between two choices of whom to hear
    include_self: bool = True  # whether the own model counts in the mean; off is the paper's formula to the letter
    search: int = 4
    min_share: Annotated[float, Ge(0)] = 0.5  # smallest share of all peers that a peer hears
    # Classes of nodes: true on training nodes and else predicted, true on training nodes alone, or true on all.
    labels: LabelSource = "mixed"
    # Distance of nodes that no path joins: the longest one plus 1, left out, or 0.
    disconnected: Disconnected = "penalty"
    degree: Literal["adaptive", "half"] = "adaptive"  # how many peers are heard; half of all is an ablation
    similar_by: Literal["cse", "features"] = "cse"  # what peers compare; mean features are an ablation
    select: Literal["similar", "random"] = "similar"  # which peers are heard; random is an ablation
    # Number of nodes up to which distances from all nodes are computed; in larger graphs from a sample.
    exact_up_to: Annotated[int, Ge(0)] = EXACT_UP_TO
    sources: Annotated[int, Ge(1)] = SOURCES  # nodes of each class from which distances are computed in larger graphs

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        others = everyone_else(fleet)
        # No fingerprint has been heard yet, so the first round hears half of the peers at random.
        heard = top_candidates(fleet.random.uniform(fleet.federation), others, half_of_all(fleet))
        zeros = torch.zeros(others.shape, device=fleet.device)
        fleet.state.links = self.shares(zeros, zeros, heard, others)
        fleet.state.known = torch.zeros_like(others)  # whose fingerprint was heard
        fleet.state.wlsd, fleet.state.similar = zeros, zeros.clone()

    def round(self, peers: Peers) -> None:  # type: ignore[override]
        peers.do(self.train)
        peers.exchange(self.share, self.mix, along=self.links)
        if (peers.round - 1) % self.k_topo == 0:
            peers.exchange(self.describe, self.choose)

    @step
    def links(self, fleet: Fleet) -> Tree:
        """Return whom each peer hears, as it chose last."""
        return Tree(links=fleet.state.links)

    @step(fleet=False)
    def describe(self, fleet: Fleet) -> Tree:
        """Eqs. 1 to 5: send the fingerprint of a peer's graph, with the predictions of its model before mixing."""
        graph, labels, nodes = fleet.graph, fleet.labels, int(fleet.size)
        soft = fleet.predict(fleet.state.trained).logits[0, :nodes].double().softmax(1).cpu().numpy()
        truth, masks = labels.classes[0, :nodes].cpu().numpy(), labels.masks[0, :, :nodes].cpu().numpy()
        own = fingerprint(
            # Distances count edges: weights say how strong an edge is, which is not how long it is.
            Paths(graph.neighbours.starts[: nodes + 1].cpu().numpy(), graph.neighbours.columns.cpu().numpy()),
            assumed_classes(truth, masks, soft, self.labels),
            soft,
            self.disconnected,
            exact_up_to=self.exact_up_to,
            sources=self.sources,
            priority=fleet.random.bits(nodes)[0].cpu().numpy(),
        )
        wlsd = torch.tensor([own.wlsd], dtype=torch.float32, device=fleet.device)
        if self.similar_by == "features":
            return Tree(wlsd=wlsd, features=mean_features(fleet))
        return Tree(wlsd=wlsd, cse=torch.tensor(own.cse, dtype=torch.float32, device=fleet.device).unsqueeze(0))

    @step
    def choose(self, fleet: Fleet, inbox: Tree) -> Tree:
        """Eqs. 6 to 8: choose how many to hear from the next round on, whom, and with what weight."""
        state, sent, others = fleet.state, inbox.sent, everyone_else(fleet)
        prints = (sent.cse if self.similar_by == "cse" else sent.features).flatten(2)
        own = (inbox.senders == fleet.client_ids.unsqueeze(1)).long().argmax(1)
        own_print = prints[torch.arange(len(own), device=own.device), own]
        # Of peers that do not participate the last fingerprint counts.
        state.known = state.known.scatter(1, inbox.senders, True)
        state.wlsd = state.wlsd.scatter(1, inbox.senders, sent.wlsd)
        state.similar = state.similar.scatter(1, inbox.senders, similarity(own_print, prints).float())
        candidates = state.known & others
        wlsd = state.wlsd.gather(1, fleet.client_ids.unsqueeze(1)).squeeze(1)
        adaptive = adaptive_degree(wlsd, state.wlsd.masked_fill(~candidates, torch.inf))
        degree = adaptive if self.degree == "adaptive" else half_of_all(fleet)
        scores = state.similar if self.select == "similar" else fleet.random.uniform(fleet.federation)
        least = int(self.min_share * fleet.federation + 1e-9)
        heard = top_candidates(scores, candidates, degree.clamp(min=least))
        state.links = self.shares(state.similar, state.wlsd, heard, others)
        return Tree(wlsd=wlsd, degree=heard.sum(1), similarity=state.similar)

    def shares(self, similar: Tensor, wlsd: Tensor, heard: Tensor, others: Tensor) -> Tensor:
        """Eq. 8: the weight of every peer's model, [peers, federation]; who hears nobody keeps its own."""
        cosines = torch.where(others, similar, 1.0)  # a peer is similar to itself, even if its fingerprint is all zeros
        alone = ~heard.any(1, keepdim=True)
        selected = heard | (~others & (alone | self.include_self))
        return mixing_shares(cosines.double(), wlsd.double(), selected).float()


@dataclass(frozen=True, kw_only=True)
class DFedSSTPaper(DFedSST):
    """DFed-SST as published: the least scattered peer hears nobody, and every mean is taken as it is.

    The own model counts in it, as it does not in print: the page of this variant says what that costs. A tuning leaves
    `search` off, which is ours.
    """

    search: Annotated[int, Search()] = 0
    min_share: float = 0.0


def half_of_all(fleet: Fleet) -> Tensor:
    """Returns half of all peers, for each of them."""
    return torch.full_like(fleet.client_ids, fleet.federation // 2)


def top_candidates(scores: Tensor, candidates: Tensor, degree: Tensor) -> Tensor:
    """Returns the `degree` candidates with the largest scores, [peers, federation]; all where there are no more."""
    return top_mask(scores.masked_fill(~candidates, -torch.inf), degree) & candidates


def mean_features(fleet: Fleet) -> Tensor:
    """Returns the mean feature vector of each client, [clients, features]; padding has none, so it adds nothing."""
    features = fleet.graph.features
    if isinstance(features, torch.Tensor):
        total = features.sum(1)
    else:
        total = features.transpose.times(torch.ones(*fleet.graph.real.shape, 1, device=fleet.device)).squeeze(2)
    return total / fleet.size.unsqueeze(1)
