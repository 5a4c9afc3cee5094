"""The data of a federation: sizes, labels and homophily of every client, and what clients told before training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from annotated_types import MinLen
from pydantic import Field

from graft.experiments.comparison.finished_runs import FinishedRun
from graft.experiments.record_files import Client, Count, Record, Score
from graft.experiments.reports.client_sections import MANY, client_name
from graft.experiments.reports.pages import Block, Facts, Figure, Figures, Table, Text
from graft.experiments.reports.row_charts import bars, heat_map, histogram
from graft.experiments.reports.summary_table import Cell, readable_bytes
from graft.files import parse_json, read_text

MOST_CLASSES = 60  # of a heat map


class ClientCard(Record):
    """What partition.json says of a client."""

    client: Client
    nodes: Count
    labels: list[Count]
    unlabelled: Count = 0
    homophily: Score = None


class PartitionCard(Record):
    """What partition.json says of a partition, as far as it is shown."""

    per_client: Annotated[list[ClientCard], MinLen(1)]
    edges: dict[str, float] = Field(default_factory=dict)
    method: str = ""
    perturbation: dict[str, Any] = Field(default_factory=dict)


def read_card(folder: Path | None) -> PartitionCard | None:
    """Returns the statistics of a run's partition; None where there are none that can be read."""
    if folder is None or not folder.is_dir():
        return None
    try:
        card = PartitionCard.model_validate_json(read_text(folder / "partition.json"))
    except (OSError, ValueError):
        return None
    same = len({len(row.labels) for row in card.per_client}) == 1
    return card if same else None


def read_classes(folder: Path | None) -> list[str]:
    """Returns the names of the classes; none where they have numbers alone."""
    if folder is None or not folder.is_dir():
        return []
    try:
        names = parse_json(read_text(folder / "preparation.json"))["preparations"][0]["class_names"]
        return [str(name) for name in names or []]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return []


def partition_blocks(card: PartitionCard | None, classes: Sequence[str]) -> list[Block]:
    """Returns who holds what: facts, and figures of labels, homophily and sizes."""
    if card is None:
        return [Text("What each client holds is not on record for this run (partition.json).", "note")]
    rows = card.per_client
    blocks: list[Block] = [Facts(partition_facts(card))]
    clients = [client_name(str(row.client)) for row in rows]
    labels = len(rows[0].labels)
    names = [*classes] if len(classes) == labels else [str(label) for label in range(labels)]
    homophily = {client: row.homophily for client, row in zip(clients, rows, strict=True) if row.homophily is not None}
    if len(rows) > MANY:
        totals = {name: float(sum(row.labels[index] for row in rows)) for index, name in enumerate(names)}
        figures = [Figure("Nodes of a client", histogram([row.nodes for row in rows], "nodes"))]
        if homophily:
            figures.append(Figure("Homophily of a client", histogram(list(homophily.values()), "homophily")))
        held = [sum(count > 0 for count in row.labels) for row in rows]
        figures.append(Figure("Classes that a client holds", histogram(held, "classes")))
        if labels <= MOST_CLASSES:
            figures.append(Figure("Labels of all clients", bars(totals, "nodes")))
        return [*blocks, Figures(figures)]
    figures = []
    if labels <= MOST_CLASSES:
        shares = [[count / max(sum(row.labels), 1) for count in row.labels] for row in rows]
        counts = [[f"{count:,}" for count in row.labels] for row in rows]
        titles = ("", "class", "share of the client's nodes")
        figures.append(Figure("Labels of each client", heat_map(clients, names, shares, titles, counts)))
    figures.append(Figure("Nodes", bars({c: row.nodes for c, row in zip(clients, rows, strict=True)}, "nodes")))
    if homophily:
        figures.append(
            Figure("Homophily", bars(homophily, "homophily"), "Share of the edges that join nodes of one class.")
        )
    return [*blocks, Figures(figures)]


def partition_facts(card: PartitionCard) -> list[tuple[str, str]]:
    """Returns the numbers of a partition as a whole."""
    rows, edges = card.per_client, card.edges
    nodes = [row.nodes for row in rows]
    facts = [
        ("Partition", card.method or "own graphs"),
        ("Clients", f"{len(rows):,}"),
        ("Nodes", f"{sum(nodes):,}"),
        ("Nodes of a client", f"{min(nodes):,} to {max(nodes):,}"),
    ]
    if {"total", "lost", "lost_share"} <= edges.keys():
        facts.append(("Edges", f"{edges['total']:,.0f}"))
        facts.append(("Edges lost between clients", f"{edges['lost']:,.0f} ({100 * edges['lost_share']:.1f} %)"))
    if unlabelled := sum(row.unlabelled for row in rows):
        facts.append(("Nodes without a label", f"{unlabelled:,}"))
    facts += [(name.replace("_", " "), str(value)) for name, value in card.perturbation.items()]
    return facts


def agreement_table(sent: dict[str, Any]) -> list[Block]:
    """Returns what clients told each other before the first round, field by field; nothing where that was nothing."""
    rows = [
        [
            Cell(name),
            Cell(field["reveals"]),
            Cell(readable_bytes(field["up_bytes"]), field["up_bytes"]),
            Cell(readable_bytes(field["down_bytes"]), field["down_bytes"]),
        ]
        for name, field in sent.items()
    ]
    head = ("field", "what it reveals", "sent up", "sent down")
    return [Table(head, rows, 2, "What clients told before training")] if rows else []


def partitions_of(runs: Sequence[FinishedRun]) -> Table:
    """Returns the partitions of some runs by their hashes, each once, with its seeds."""
    seeds: dict[str, list[FinishedRun]] = {}
    for run in runs:
        seeds.setdefault(run.hashes.get("partition", "unknown"), []).append(run)
    rows = []
    for digest, alike in seeds.items():
        numbers = sorted({run.seed for run in alike})
        clients = [row["nodes"] for row in alike[0].summary.get("per_client", [])]
        sizes = f"{min(clients):,} to {max(clients):,}" if clients else "-"
        rows.append(
            [
                Cell(", ".join(map(str, numbers)), float(numbers[0])),
                Cell(digest[:16]),
                Cell(str(len(clients)), len(clients)),
                Cell(sizes, min(clients, default=0)),
            ]
        )
    return Table(("seed", "hash of the partition", "clients", "nodes of a client"), rows, 2)
