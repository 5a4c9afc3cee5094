"""Who hears whom in a round without a server: graphs over the peers, and the weights of their links.

A topology is a function of (round, peers, seed) alone, so every peer works it out by itself and all agree. In its
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
        """What the file holds, if the links come from one; read once, so that a run may replace what it replays."""
        return None if self.name in TOPOLOGIES else read_links(self.name)

    def check(self, peers: int, rounds: int) -> None:
        """Refuse before a run what its rounds would trip over."""
        if self.file is not None:
            self.file.check(peers, rounds)
        else:
            draw(self.name, tuple(self.options.items()), peers, 1, 0)

    def links(
        self,
        round: int,
        members: list[int],
        peers: int,
        seed: int,
        exchange: str = "",
        mixing: Mixing | None = None,
    ) -> Tensor:
        """The weights of a round among its members; peers that do not take part are left out before weighing.

        They are [members, members], or [members, parts, members] where a recorded exchange sent parts apart. With
        `mixing`, links are weighted so instead.
        """
        mixing = mixing or self.mixing
        if self.file is None:
            moment = round if self.name in CHANGING else 0
            heard = draw(self.name, tuple(self.options.items()), peers, moment, seed)
        else:
            heard = self.file.at(round, peers, exchange)
            if self.file.weights != "none":
                # Who sends shares itself out in a push; else who hears does.
                wanted = torch.from_numpy(heard if mixing != "push" else heard.swapaxes(0, -1))
                links = among(wanted[members], members, total=1.0 if self.file.weights == "relative" else None)
                return links if mixing != "push" else links.transpose(0, -1)
        return torch.from_numpy(MIXINGS[mixing](heard[np.ix_(members, members)]))


def among(wanted: Tensor, members: list[int], total: float | None = None) -> Tensor:
    """Links [members, ..., peers] to those who are there only: they take over the weight of those who are not.

    Rows sum to what they did, or to `total`. Who hears nobody at all hears itself.
    """
    present = wanted[..., members]
    after = present.sum(-1, keepdim=True)
    before = wanted.sum(-1, keepdim=True) if total is None else torch.full_like(after, total)
    alone = torch.eye(len(members)).to(present).view(len(members), *[1] * (present.dim() - 2), len(members))
    return torch.where(after > 0, present * (before / after), alone)


@lru_cache(maxsize=8)
def draw(name: str, options: tuple[tuple[str, Any], ...], peers: int, moment: int, seed: int) -> Matrix:
    """The graph of a topology in a round; moment 0 stands for all rounds of one that does not change."""
    random = np.random.default_rng(seed_for(seed, moment, "topology", name))
    heard = TOPOLOGIES[name](peers, moment, random, **dict(options))
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
        for one in range(half):
            heard[one, one + half] = heard[one + half, one] = 1
    edges = [(int(one), int(other)) for one, other in np.argwhere(np.triu(heard))]
    for _ in range(10 * len(edges)):
        first, second = random.integers(len(edges), size=2)
        (a, b), (c, d) = edges[first], edges[second]
        if random.random() < 0.5:
            c, d = d, c
        if len({a, b, c, d}) < 4 or heard[a, d] or heard[c, b]:
            continue
        for one, other, value in ((a, b, 0), (c, d, 0), (a, d, 1), (c, b, 1)):
            heard[one, other] = heard[other, one] = value
        edges[first], edges[second] = (a, d), (c, b)
    return heard


def random_peers(peers: int, _round: int, random: Random, k: int | None = None) -> Matrix:
    """Directed, drawn anew every round: each peer hears k others, half of all peers unless k is given."""
    k = min(peers // 2 if k is None else k, peers - 1)
    heard = np.zeros((peers, peers))
    for one in range(peers):
        others = np.delete(np.arange(peers), one)
        heard[one, random.choice(others, k, replace=False)] = 1
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
    place = np.arange(peers)
    partner = place ^ (1 << level)
    paired = partner < peers  # without a power of two some have nobody to meet
    heard = np.zeros((peers, peers))
    heard[order[place[paired]], order[partner[paired]]] = 1
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
    """Everybody on a circle hears the next `reach` peers on both sides."""
    apart = np.abs(np.subtract.outer(np.arange(peers), np.arange(peers)))
    near: Matrix = (np.minimum(apart, peers - apart) <= reach) & (apart > 0)
    return near.astype(float)


CHANGING = ("random", "random-undirected", "matching", "tournament", "exponential")  # from round to round


# Weights.


def uniform(heard: Matrix) -> Matrix:
    """Everybody takes the plain mean of itself and those it hears: rows sum to 1."""
    closed = heard + np.eye(len(heard))
    return np.asarray(closed / closed.sum(1, keepdims=True))


def metropolis(heard: Matrix) -> Matrix:
    """Symmetric and doubly stochastic: the mean over all peers is kept. Links become mutual first."""
    mutual = np.maximum(heard, heard.T)
    degree = mutual.sum(1)
    weights = mutual / (1 + np.maximum.outer(degree, degree))
    np.fill_diagonal(weights, 1 - weights.sum(1))
    return np.asarray(weights)


def push(heard: Matrix) -> Matrix:
    """Every sender splits what it has evenly among itself and those that hear it: columns sum to 1."""
    return uniform(heard.T).T


MIXINGS: dict[str, Callable[[Matrix], Matrix]] = {"uniform": uniform, "metropolis": metropolis, "push": push}


def spectral_gap(links: Tensor) -> float:
    """How fast symmetric links bring peers together: one less the second greatest eigenvalue in size; 1 is at once."""
    sizes = np.sort(np.abs(np.linalg.eigvalsh(links.double().numpy())))
    return float(1 - sizes[-2]) if len(sizes) > 1 else 1.0


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
        """Every round must have links, and they must be between peers that exist."""
        missing = [round for round in range(1, rounds + 1) if round not in self.rounds and 0 not in self.rounds]
        if missing:
            raise InputError(f"{self.path} has no links for round {missing[0]}, but there are to be {rounds} rounds.")
        named = {one for some in self.rounds.values() for links in some.values() for link in links for one in link[:2]}
        strange = sorted(one for one in named if not 0 <= one < peers)
        if strange:
            raise InputError(f"{self.path} names peer {strange[0]}, but there are peers 0 to {peers - 1} only.")

    def at(self, round: int, peers: int, exchange: str) -> Matrix:
        """The matrix [peers, peers] of an exchange, or [peers, parts, peers]."""
        exchanges = self.rounds.get(round, self.rounds.get(0, {}))
        found = exchanges.get(exchange) or (next(iter(exchanges.values())) if len(exchanges) == 1 else None)
        if found is None:
            has = ", ".join(exchanges) or "none at all"
            raise InputError(f"{self.path} has no links of exchange '{exchange}' for round {round}: it has {has}.")
        parts = 1 + max(link[3] for link in found)
        matrix = np.zeros((peers, max(parts, 1), peers))
        for to, sender, weight, part in found:
            matrix[to, max(part, 0), sender] = weight
        if self.weights == "none":
            matrix[np.arange(peers), :, np.arange(peers)] = 0  # everybody hears itself anyhow
        return matrix if parts else matrix[:, 0]


def read_links(path: str) -> LinkFile:
    """A CSV file with columns `to`, `from` and perhaps `weight` and `round`, or the rounds.jsonl of a run."""
    file = Path(path)
    try:
        found = read_record(file) if file.suffix == ".jsonl" else read_table(file)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, csv.Error) as error:
        form = "the rounds.jsonl of a run" if file.suffix == ".jsonl" else "CSV with columns to, from"
        raise InputError(f"{path} is not a file of links ({form}): {error}.") from error
    if not found.rounds:
        raise InputError(f"{path} holds no links.")
    return found


def read_table(file: Path) -> LinkFile:
    rounds: Rounds = {}
    with file.open(encoding="utf-8", newline="") as lines:
        table = csv.DictReader(lines)
        columns = table.fieldnames or ()
        if not {"to", "from"} <= set(columns):
            raise ValueError(f"its columns are {', '.join(columns) or 'none'}")
        for row in table:
            weight = float(row["weight"]) if "weight" in columns else 1.0
            link = checked((int(row["to"]), int(row["from"]), weight, -1))
            rounds.setdefault(int(row.get("round") or 0), {}).setdefault("", []).append(link)
    return LinkFile(str(file), rounds, "relative" if "weight" in columns else "none")


def read_record(file: Path) -> LinkFile:
    rounds: Rounds = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        for exchange, some in record.get("links", {}).items():
            links = [
                checked((int(to), int(sender), float(weight), int(part[0]) if part else -1))
                for to, sender, weight, *part in some
            ]
            if links:
                rounds.setdefault(int(record["round"]), {})[exchange] = links
    return LinkFile(str(file), rounds, "exact")


def checked(link: Link) -> Link:
    to, sender, weight, part = link
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"the link from {sender} to {to} has the weight {weight}")
    if not -1 <= part < 100_000:
        raise ValueError(f"the link from {sender} to {to} is of part {part}")
    return link
