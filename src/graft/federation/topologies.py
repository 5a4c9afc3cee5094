"""Topologies of rounds without a server: graphs over the peers, and the mixing weights of their links.

A topology is a function of (round, peers, seed) alone, so every peer computes it by itself and all agree. In its
matrix `links[i, j]` is the weight with which peer i hears peer j; the diagonal is the weight of its own model.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from graft.errors import InputError
from graft.federation import TOPOLOGIES, check_topology
from graft.tensors.randomness import seed_for

Matrix = np.ndarray[Any, np.dtype[Any]]  # [N, N], row i says whom peer i hears
Mixing = Literal["uniform", "metropolis", "push"]
Random = np.random.Generator


@dataclass(frozen=True)
class Topology:
    """A rule for the links of every round and for their weights."""

    name: str  # one of TOPOLOGIES, or a file: CSV, or the rounds.jsonl of a run to replay
    options: Mapping[str, Any] = field(default_factory=dict)
    mixing: Mixing = "uniform"  # how links that have no weight of their own are weighted

    def __post_init__(self) -> None:
        check_topology(self.name, self.options)

    @cached_property
    def file(self) -> LinkFile | None:
        """Returns the links of the file, if they come from one; read once, so that a run may overwrite what it
        replays."""
        return None if self.name in TOPOLOGIES else read_links(self.name)

    def check(self, peers: int, rounds: int) -> None:
        """Refuses before a run what would fail in its rounds."""
        if self.file is not None:
            self.file.check(peers, rounds)
        else:
            draw_graph(self.name, tuple(self.options.items()), peers, 1, 0)

    def links(
        self,
        round: int,
        members: list[int],
        peers: int,
        seed: int,
        exchange: str = "",
        mixing: Mixing | None = None,
    ) -> Tensor:
        """Returns the mixing weights of a round; peers that do not participate are removed before links are weighted.

        They are [members, members], or [members, parts, members] where a recorded exchange sent parts apart. With
        `mixing`, links are weighted so instead.
        """
        mixing = mixing or self.mixing
        if self.file is None:
            drawn_in = round if self.name in CHANGING else 0
            heard = draw_graph(self.name, tuple(self.options.items()), peers, drawn_in, seed)
        else:
            heard = self.file.matrix(round, peers, exchange)
            if self.file.weights != "none":
                # In a push the weights of a sender are normalised; else those of a receiver.
                weights = torch.from_numpy(heard if mixing != "push" else heard.swapaxes(0, -1))
                links = renormalise(weights[members], members, total=1.0 if self.file.weights == "relative" else None)
                return links if mixing != "push" else links.transpose(0, -1)
        return torch.from_numpy(MIXINGS[mixing](heard[np.ix_(members, members)]))


def renormalise(
    weights: Tensor, members: list[int], total: float | None = None, recipients: list[int] | None = None
) -> Tensor:
    """Returns links [recipients, ..., peers] restricted to the members, which take over the weight of absent peers.

    Recipients are the members unless given. Rows sum to what they did, or to `total`. A peer that hears nobody at all
    hears itself.
    """
    present = weights[..., members]
    after = present.sum(-1, keepdim=True)
    before = weights.sum(-1, keepdim=True) if total is None else torch.full_like(after, total)
    rows = torch.tensor(members if recipients is None else recipients)
    alone = (rows.unsqueeze(1) == torch.tensor(members)).to(present)
    alone = alone.view(len(rows), *[1] * (present.dim() - 2), len(members))
    return torch.where(after > 0, present * (before / after), alone)


@lru_cache(maxsize=8)
def draw_graph(name: str, options: tuple[tuple[str, Any], ...], peers: int, round: int, seed: int) -> Matrix:
    """Returns the graph of a topology in a round; round 0 stands for all rounds of one that does not change."""
    random = np.random.default_rng(seed_for(seed, round, "topology", name))
    heard: Matrix = TOPOLOGIES[name](peers, round, random, **dict(options))
    heard.flags.writeable = False  # kept for the next exchange
    return heard


# The graphs; each gives a matrix of 0 and 1 without a diagonal.


def nobody(peers: int, _round: int, _random: Random) -> Matrix:
    """Nobody hears anybody: local training."""
    return np.zeros((peers, peers))


def complete(peers: int, _round: int, _random: Random) -> Matrix:
    """Everybody hears everybody."""
    return 1 - np.eye(peers)


def ring(peers: int, _round: int, _random: Random) -> Matrix:
    """Everybody hears the two next to it on a circle."""
    return circulant(peers, 1)


def star(peers: int, _round: int, _random: Random, centre: int = 0) -> Matrix:
    """Everybody hears the centre, and the centre hears everybody; centre=0."""
    if centre >= peers:
        raise InputError(f"The centre of a star of {peers} peers cannot be peer {centre}.")
    heard = np.zeros((peers, peers))
    heard[centre] = heard[:, centre] = 1
    np.fill_diagonal(heard, 0)
    return heard


def regular(peers: int, _round: int, random: Random, k: int = 4) -> Matrix:
    """Undirected and random, every peer with k neighbours; k=4. (One has k - 1 where k and their number are odd.)

    A circle with k neighbours each, its edges then swapped at random, which leaves all degrees as they are.
    """
    k = min(k, peers - 1)
    heard = circulant(peers, k // 2)
    if k % 2:
        half = peers // 2
        for peer in range(half):
            heard[peer, peer + half] = heard[peer + half, peer] = 1
    edges = [(int(peer), int(other)) for peer, other in np.argwhere(np.triu(heard))]
    for _ in range(10 * len(edges)):
        first, second = random.integers(len(edges), size=2)
        (a, b), (c, d) = edges[first], edges[second]
        if random.random() < 0.5:
            c, d = d, c
        if len({a, b, c, d}) < 4 or heard[a, d] or heard[c, b]:
            continue
        for peer, other, linked in ((a, b, 0), (c, d, 0), (a, d, 1), (c, b, 1)):
            heard[peer, other] = heard[other, peer] = linked
        edges[first], edges[second] = (a, d), (c, b)
    return heard


def random_peers(peers: int, _round: int, random: Random, k: int | None = None) -> Matrix:
    """Directed, drawn anew every round: each peer hears k others, half of all peers unless k is given."""
    k = min(peers // 2 if k is None else k, peers - 1)
    heard = np.zeros((peers, peers))
    for peer in range(peers):
        others = np.delete(np.arange(peers), peer)
        heard[peer, random.choice(others, k, replace=False)] = 1
    return heard


def random_undirected(peers: int, round: int, random: Random, k: int | None = None) -> Matrix:
    """Drawn anew every round as random, then a link both ways wherever either side drew the other."""
    heard = random_peers(peers, round, random, k)
    return np.maximum(heard, heard.T)


def small_world(peers: int, _round: int, random: Random, k: int = 4, p: float = 0.1) -> Matrix:
    """A circle with k neighbours each, where one end of every link moves elsewhere with chance p; k=4, p=0.1."""
    heard = circulant(peers, k // 2)
    for a, b in np.argwhere(np.triu(heard)):
        free = np.flatnonzero(heard[a] == 0)
        free = free[free != a]
        if random.random() < p and len(free):
            c = random.choice(free)
            heard[a, b] = heard[b, a] = 0
            heard[a, c] = heard[c, a] = 1
    return heard


def matching(peers: int, round: int, random: Random) -> Matrix:
    """Pairs, drawn anew every round; with an odd number another peer rests in every round."""
    order = random.permutation(peers)
    if peers % 2:
        order = order[order != round % peers]
    heard = np.zeros((peers, peers))
    heard[order[::2], order[1::2]] = heard[order[1::2], order[::2]] = 1
    return heard


def tournament(peers: int, _round: int, random: Random, level: int = 0) -> Matrix:
    """Pairs of one level of a tournament drawn anew every round: after levels 0, 1, 2, ... all have met; level=0."""
    order = random.permutation(peers)  # the same on all levels of a round
    position = np.arange(peers)
    partner = position ^ (1 << level)
    paired = partner < peers  # without a power of two some have nobody to meet
    heard = np.zeros((peers, peers))
    heard[order[position[paired]], order[partner[paired]]] = 1
    return heard


def exponential(peers: int, round: int, _random: Random, k: int = 1) -> Matrix:
    """Directed: peer i is heard by i + 1, i + 2, i + 4, ..., by one of them a round, then from the start again; k=1.

    With k > 1 it is heard by k peers at once, at 1 to k times the powers of k + 1.
    """
    heard = np.zeros((peers, peers))
    powers = [(k + 1) ** power for power in range(peers.bit_length()) if (k + 1) ** power < peers]
    sender = np.arange(peers)
    for times in range(1, k + 1) if powers else ():
        heard[(sender + times * powers[(round - 1) % len(powers)]) % peers, sender] = 1
    np.fill_diagonal(heard, 0)
    return heard


def circulant(peers: int, reach: int) -> Matrix:
    """Returns the links of a circle on which everybody hears the next `reach` peers on both sides."""
    distance = np.abs(np.subtract.outer(np.arange(peers), np.arange(peers)))
    near: Matrix = (np.minimum(distance, peers - distance) <= reach) & (distance > 0)
    return near.astype(float)


CHANGING = ("random", "random-undirected", "matching", "tournament", "exponential")  # from round to round


# Weights.


def uniform(heard: Matrix) -> Matrix:
    """Returns the weights of a plain mean over a peer and those it hears: rows sum to 1."""
    with_self = heard + np.eye(len(heard))
    return np.asarray(with_self / with_self.sum(1, keepdims=True))


def metropolis(heard: Matrix) -> Matrix:
    """Returns symmetric, doubly stochastic weights, which preserve the mean of all peers; links become mutual first."""
    mutual = np.maximum(heard, heard.T)
    degree = mutual.sum(1)
    weights = mutual / (1 + np.maximum.outer(degree, degree))
    np.fill_diagonal(weights, 1 - weights.sum(1))
    return np.asarray(weights)


def push(heard: Matrix) -> Matrix:
    """Returns the weights by which senders split evenly among themselves and who hears them: columns sum to 1."""
    return uniform(heard.T).T


MIXINGS: dict[str, Callable[[Matrix], Matrix]] = {"uniform": uniform, "metropolis": metropolis, "push": push}


def spectral_gap(links: Tensor) -> float:
    """Returns one minus the second largest absolute eigenvalue of symmetric links: 1 brings peers together at once, 0
    never."""
    magnitudes = np.sort(np.abs(np.linalg.eigvalsh(links.double().numpy())))
    return float(1 - magnitudes[-2]) if len(magnitudes) > 1 else 1.0


# Links from a file.

Link = tuple[int, int, float, int]  # to, from, weight, part (-1 where messages are whole)
Rounds = dict[int, dict[str, list[Link]]]  # round -> exchange -> links; round 0 means every round, '' any exchange


@dataclass(frozen=True)
class LinkFile:
    """Links read from a file."""

    path: str
    rounds: Rounds
    weights: Literal["none", "relative", "exact"]  # none: only who hears whom

    def check(self, peers: int, rounds: int) -> None:
        """Refuses a round without links, and links between peers that do not exist."""
        missing = [round for round in range(1, rounds + 1) if round not in self.rounds and 0 not in self.rounds]
        if missing:
            raise InputError(f"{self.path} has no links for round {missing[0]}, but there are to be {rounds} rounds.")
        links = [link for exchanges in self.rounds.values() for links in exchanges.values() for link in links]
        unknown = sorted(peer for link in links for peer in link[:2] if not 0 <= peer < peers)
        if unknown:
            raise InputError(f"{self.path} names peer {unknown[0]}, but there are peers 0 to {peers - 1} only.")

    def matrix(self, round: int, peers: int, exchange: str) -> Matrix:
        """Returns the weights [peers, peers] of an exchange, or [peers, parts, peers]."""
        exchanges = self.rounds.get(round, self.rounds.get(0, {}))
        links = exchanges.get(exchange) or (next(iter(exchanges.values())) if len(exchanges) == 1 else None)
        if links is None:
            possible = ", ".join(exchanges) or "none at all"
            raise InputError(f"{self.path} has no links of exchange '{exchange}' for round {round}: it has {possible}.")
        parts = 1 + max(link[3] for link in links)
        matrix = np.zeros((peers, max(parts, 1), peers))
        for to, sender, weight, part in links:
            matrix[to, max(part, 0), sender] = weight
        if self.weights == "none":
            matrix[np.arange(peers), :, np.arange(peers)] = 0  # everybody hears itself anyhow
        return matrix if parts else matrix[:, 0]


def read_links(path: str) -> LinkFile:
    """Returns the links of a CSV file (to, from, perhaps weight and round) or of the rounds.jsonl of a run."""
    file = Path(path)
    try:
        links = read_recorded_links(file) if file.suffix == ".jsonl" else read_csv_links(file)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, csv.Error) as error:
        kind = "the rounds.jsonl of a run" if file.suffix == ".jsonl" else "CSV with columns to, from"
        raise InputError(f"{path} is not a file of links ({kind}): {error}.") from error
    if not links.rounds:
        raise InputError(f"{path} holds no links.")
    return links


def read_csv_links(file: Path) -> LinkFile:
    rounds: Rounds = {}
    with file.open(encoding="utf-8", newline="") as lines:
        table = csv.DictReader(lines)
        columns = table.fieldnames or ()
        if not {"to", "from"} <= set(columns):
            raise ValueError(f"its columns are {', '.join(columns) or 'none'}")
        for row in table:
            weight = float(row["weight"]) if "weight" in columns else 1.0
            link = check_link((int(row["to"]), int(row["from"]), weight, -1))
            rounds.setdefault(int(row.get("round") or 0), {}).setdefault("", []).append(link)
    return LinkFile(str(file), rounds, "relative" if "weight" in columns else "none")


def read_recorded_links(file: Path) -> LinkFile:
    rounds: Rounds = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        for exchange, recorded in record.get("links", {}).items():
            links = [
                check_link((int(to), int(sender), float(weight), int(part[0]) if part else -1))
                for to, sender, weight, *part in recorded
            ]
            if links:
                rounds.setdefault(int(record["round"]), {})[exchange] = links
    return LinkFile(str(file), rounds, "exact")


def check_link(link: Link) -> Link:
    """Returns the link itself; refused where its weight or part is impossible."""
    to, sender, weight, part = link
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"the link from {sender} to {to} has the weight {weight}")
    if not -1 <= part < 100_000:
        raise ValueError(f"the link from {sender} to {to} is of part {part}")
    return link
