"""Pictures of who heard whom in rounds without a server."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from html import escape
from typing import Any

from graft.experiments.reports.pages import Picture

LinkWeights = dict[tuple[int, int], float]  # (to, from) -> weight
Client = int | str  # a number, or a name
MOST_ARROWS = 3000  # in a picture: of more links the strongest are drawn
MOST_NAMED = 30  # whom a peer hears, in the words beside it


def link_networks(
    rounds: Sequence[dict[str, Any]], peers: Sequence[Client], drawn: Sequence[int] | None = None
) -> list[Picture]:
    """Returns the links of some rounds: of the first, the middle and the last one, unless others are asked for; none
    where no links are on record."""
    linked = {record["round"]: record for record in rounds if record.get("links")}
    if not linked:
        return []
    numbers = list(linked)
    shown = list(dict.fromkeys(drawn or (numbers[0], numbers[(len(numbers) - 1) // 2], numbers[-1])))
    panels = [
        (f"round {number}" + (f", {exchange}" if len(linked[number]["links"]) > 1 else ""), linked[number], links)
        for number in shown
        if number in linked
        for exchange, links in linked[number]["links"].items()
    ]
    tables = [link_weights(links) for _, _, links in panels]
    # One scale for all pictures, so that rounds can be compared.
    thickest = max((weight for table in tables for (to, sender), weight in table.items() if to != sender), default=1.0)
    largest = max((weight for table in tables for weight in weight_from_others(table).values()), default=1.0)
    pictures = [
        network(title, table, peers, record["participants"], thickest, largest)
        for (title, record, _), table in zip(panels, tables, strict=True)
    ]
    crowded = (
        f" Of each round the {MOST_ARROWS:,} strongest links." if max(map(len, tables), default=0) > MOST_ARROWS else ""
    )
    missing = [str(number) for number in shown if number not in linked]
    absent = f" No links are on record for round {', '.join(missing)}." if missing else ""
    note = (
        "An arrow leads from a peer to one that hears it, the thicker the more weight that one gives it. A circle is "
        "the larger the more weight the others give to that peer; hollow ones did not take part." + crowded + absent
    )
    return [Picture(pictures, "Who hears whom", note)]


def link_weights(links: Sequence[Sequence[float]]) -> LinkWeights:
    """Returns the weights of recorded links; where parts of a message were sent apart, the mean over the parts."""
    parts = 1 + max((int(link[3]) for link in links if len(link) > 3), default=0)
    weights: LinkWeights = defaultdict(float)
    for to, sender, weight, *_ in links:
        weights[int(to), int(sender)] += weight / parts
    return weights


def weight_from_others(weights: LinkWeights) -> dict[int, float]:
    """Returns the sum of the weights that the other peers give to each sender."""
    sums: dict[int, float] = defaultdict(float)
    for (to, sender), weight in weights.items():
        if to != sender:
            sums[sender] += weight
    return sums


def network(
    title: str,
    weights: LinkWeights,
    peers: Sequence[Client],
    present: Sequence[Client],
    thickest: float,
    largest: float,
    side: int = 320,
) -> str:
    """Peers on a circle with arrows along their links, as SVG."""
    around = side / 2 - 34
    room = min(13.0, 0.45 * 2 * math.pi * around / len(peers))  # for a circle, so that neighbours do not touch
    fine = room / 13  # the more peers, the finer their arrows
    received = weight_from_others(weights)
    radius = {peer: room * (0.35 + 0.65 * math.sqrt(received.get(peer, 0) / largest)) for peer in range(len(peers))}
    turn = 2 * math.pi / len(peers)
    position = {
        peer: complex(side / 2 + around * math.sin(peer * turn), side / 2 - around * math.cos(peer * turn))
        for peer in range(len(peers))
    }
    arrows: dict[float, list[str]] = defaultdict(list)
    strongest = sorted(weights.items(), key=lambda link: -link[1])[:MOST_ARROWS]
    for (to, sender), weight in strongest:
        if to != sender:
            width = max(0.1, round(fine * (0.4 + 2.6 * weight / thickest), 1))
            arrows[width].append(arrow(position[sender], position[to], radius[sender], radius[to], 3 * fine + width))
    parts = [
        f'<path d="{"".join(paths)}" stroke-width="{width}" fill="none" class="link" stroke-opacity=".5"/>'
        for width, paths in sorted(arrows.items())
    ]
    by_listener: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for (to, sender), weight in weights.items():
        by_listener[to].append((sender, weight))
    font_size = max(6, min(12, round(400 / len(peers))))
    for peer, centre in position.items():
        name = escape(str(peers[peer]))
        heard = [f"{escape(str(peers[sender]))} ({weight:.3g})" for sender, weight in by_listener[peer][:MOST_NAMED]]
        more = len(by_listener[peer]) - len(heard)
        about = f"peer {name} hears {', '.join(heard) or 'nobody'}" + (f" and {more} more" if more else "")
        look = "peer" if peers[peer] in present else "peer absent"
        parts.append(
            f'<circle cx="{centre.real:.1f}" cy="{centre.imag:.1f}" r="{radius[peer]:.1f}" '
            f'class="{look}"><title>{about}</title></circle>'
        )
        label = side * (0.5 + 0.5j) + (centre - side * (0.5 + 0.5j)) * (1 + 22 / around)
        parts.append(
            f'<text x="{label.real:.1f}" y="{label.imag + 4:.1f}" text-anchor="middle" '
            f'style="font-size:{font_size}px">{name}</text>'
        )
    head = f'<text x="4" y="14">{escape(title)}</text>'
    return f'<svg viewBox="0 0 {side} {side}" role="img" aria-label="{escape(title)}">{head}{"".join(parts)}</svg>'


def arrow(start: complex, end: complex, leave: float, arrive: float, head: float) -> str:
    """Returns an SVG path of an arrow between two circles, bent so that the opposite arrow does not lie upon it."""
    bend = (start + end) / 2 + 0.1j * (end - start)
    direction = (end - bend) / abs(end - bend)
    tip = end - arrive * direction
    start += leave * (bend - start) / abs(bend - start)
    sides = [tip + head * direction * complex(-0.9, side) for side in (-0.5, 0.5)]
    points = [f"{point.real:.1f} {point.imag:.1f}" for point in (start, bend, tip, sides[0], sides[1])]
    return f"M{points[0]}Q{points[1]} {points[2]}M{points[3]}L{points[2]}L{points[4]}"
