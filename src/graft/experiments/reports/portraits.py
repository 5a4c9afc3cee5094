"""Heat maps of a federation's data: classes, homophily and structure of each client, and how alike clients are."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graft.data.federation import FederationData
from graft.data.graphs import Graph, adjacency
from graft.engines.in_process import InProcess
from graft.experiments.build import build_federation, build_setup
from graft.experiments.experiment import Experiment, make_experiment
from graft.experiments.given import Given
from graft.experiments.make_method import make_method
from graft.experiments.reports.link_portraits import write_links
from graft.experiments.reports.pages import Page, Picture, Section, Table, Text, render
from graft.experiments.reports.study_charts import Heat, heat_panels, sheet
from graft.experiments.reports.study_figures import draw
from graft.experiments.reports.summary_table import Cell
from graft.experiments.run import run_experiment
from graft.experiments.studies.study import Portrait
from graft.files import write_text
from graft.methods.dfed_sst.fingerprints import Fingerprint, fingerprint
from graft.methods.dfed_sst.paths import Paths
from graft.methods.dfed_sst.selection import similarity
from graft.tensors.trees import broadcast_tree

Report = Callable[[str], None]  # told of every column that is done


def write_portrait(
    portrait: Portrait, name: str, out: Path, datasets: Sequence[str], clients: Sequence[int], report: Report
) -> list[Path]:
    """Writes figure.svg, a table as CSV and portrait.html for the chosen columns."""
    if portrait.links_of:
        return write_links(portrait, name, out, datasets, clients, report)
    panels: list[Heat] = []
    table: list[Sequence[Any]] = []
    for dataset in datasets:
        for count in clients:
            experiment = make_experiment({**portrait.values(dataset), "dataset": dataset, "clients": count})
            federation = build_federation(experiment)
            maps, rows = describe_clients(portrait, experiment, federation, f"{dataset}-{count}")
            panels += maps
            table += [(dataset, count, *row) for row in rows]
            report(f"{dataset} with {count} clients")
    head = ("dataset", "clients", "client", *METRICS, "nodes_of_each_class", "homophily_of_each_class")
    figure = draw(sheet(heat_panels(panels), columns=1, gap=62))
    shown = [(*line[:-2], join(line[-2]), join(line[-1])) for line in table]
    numbers = Table(head, [[Cell(str(cell)) for cell in line] for line in shown])
    notes = [Text(text, "note") for text in (portrait.note, figure.missing) if text]
    pictured = Section("Maps", [*notes, *([Picture([figure.svg])] if figure.svg else [])])
    page = render(Page(name, sections=[pictured, Section("Numbers", [numbers])], subtitle=f"{portrait.meaning}."))
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([head, *shown])
    texts = {"table.csv": file.getvalue(), "portrait.html": page}
    if figure.svg:
        texts = {"figure.svg": figure.svg + "\n", **texts}
    else:
        report(figure.missing)
    out.mkdir(parents=True, exist_ok=True)
    for file_name, text in texts.items():
        write_text(out / file_name, text)
    return [out / file_name for file_name in texts]


def describe_clients(
    portrait: Portrait, experiment: Experiment, federation: FederationData, column: str
) -> tuple[list[Heat], list[Sequence[Any]]]:
    """Returns the heat maps of a federation, and a row of numbers for each client."""
    cards = federation.card["per_client"]
    scattered = [true_fingerprint(graph, federation.classes) for graph in federation.clients]
    structure = [
        metrics(graph, card, own.wlsd) for graph, card, own in zip(federation.clients, cards, scattered, strict=True)
    ]
    clients = [str(card["client"]) for card in cards]
    classes = [str(label) for label in range(federation.classes)]
    shares = [[count / max(sum(card["labels"]), 1) for count in card["labels"]] for card in cards]
    panels = {
        "labels": Heat(f"{column}: share of each class", clients, classes, shares),
        "homophily": Heat(
            f"{column}: homophily of each class", clients, classes, [card["class_homophily"] for card in cards]
        ),
        "structure": Heat(f"{column}: structure", clients, list(METRICS), min_max_scaled(structure), structure),
        "similarity": Heat(f"{column}: similarity of fingerprints", clients, clients, cosines(scattered)),
    }
    maps = [panels[name] for name in portrait.maps]
    if portrait.without is not None:
        maps.append(leave_one_out(portrait.without, experiment, federation, column, classes))
    rows: list[Sequence[Any]] = [
        (card["client"], *numbers, card["labels"], card["class_homophily"])
        for card, numbers in zip(cards, structure, strict=True)
    ]
    return maps, rows


METRICS = ("nodes", "edges", "mean degree", "components", "isolated", "homophily", "clustering", "WLSD")


def true_fingerprint(graph: Graph, classes: int) -> Fingerprint:
    """Returns how scattered the classes of a client are, by DFed-SST's measures and the true labels of all nodes."""
    links = adjacency(graph.nodes, graph.edges)
    paths = Paths(links.indptr.astype(np.int64), links.indices.astype(np.int64))
    return fingerprint(paths, graph.y, np.eye(classes)[graph.y])


def cosines(fingerprints: Sequence[Fingerprint]) -> list[list[float | None]]:
    """Returns how similar every client's fingerprint (CSE) is to every other's."""
    flat = torch.tensor(np.stack([own.cse.ravel() for own in fingerprints]))
    table: list[list[float | None]] = similarity(flat, flat).tolist()
    return table


def metrics(graph: Graph, card: dict[str, Any], wlsd: float) -> list[float]:
    """Returns the values of `METRICS` for one client."""
    links = adjacency(graph.nodes, graph.edges)
    degree = np.asarray(links.sum(1)).ravel()
    wedges = (degree * (degree - 1)).sum()
    closed = links.multiply(links @ links).sum()
    return [
        card["nodes"],
        card["edges"],
        round(float(degree.mean()), 3),
        card["components"],
        card["isolated"],
        round(card["homophily"] or 0.0, 4),
        round(float(closed / wedges), 4) if wedges else 0.0,
        round(wlsd, 4),
    ]


def min_max_scaled(rows: list[list[float]]) -> list[list[float | None]]:
    """Every column scaled from 0 for its lowest value to 1 for its highest."""
    table = np.array(rows, float)
    low, high = table.min(0), table.max(0)
    spans = np.where(high > low, high - low, 1)
    return [[float(value) for value in row] for row in (table - low) / spans]


def leave_one_out(
    client: int, experiment: Experiment, federation: FederationData, column: str, classes: list[str]
) -> Heat:
    """Returns the accuracy of FedAvg's global model on each class when it was trained with and without one client."""
    others = [*federation.clients[:client], *federation.clients[client + 1 :]]
    rest = replace(
        federation,
        clients=others,
        card={**federation.card, "hash": f"{federation.card['hash']}-without-{client}"},
    )
    rows = []
    for part in (federation, rest):
        result = run_experiment(replace(experiment, clients=len(part.clients)), given=Given(federation=part))
        rows.append(class_accuracy(experiment, federation, result.server.model))
    return Heat(
        f"{column}: test accuracy of the global model", ["all clients", f"without client {client}"], classes, rows
    )


def class_accuracy(experiment: Experiment, federation: FederationData, model: Any) -> list[float | None]:
    """Returns the accuracy of a global model on each class, over the test nodes of all clients."""
    method = make_method("fedavg", {})
    engine = InProcess(build_setup(experiment, method, federation))
    classes = federation.classes
    correct, total = torch.zeros(classes), torch.zeros(classes)
    for fleet in engine.fleets:
        weights = broadcast_tree(model, len(fleet.clients), fleet.device)
        predicted = fleet.predict(weights).logits.argmax(2)
        tested = fleet.labels.masks[:, 2]
        truth = fleet.labels.classes[tested]
        total += torch.bincount(truth, minlength=classes).cpu()
        correct += torch.bincount(truth[predicted[tested] == truth], minlength=classes).cpu()
    return [float(hits / count) if count else None for hits, count in zip(correct, total, strict=True)]


def join(values: Sequence[Any]) -> str:
    return " ".join("-" if value is None else f"{value:.3g}" for value in values)
