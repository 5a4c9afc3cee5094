"""What a client holds, in numbers that tell whether a graph can be learned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from graft.data.agreement import agreed_kind
from graft.data.class_agreement import Source, agree_on_classes, own_classes
from graft.data.graphs import Graph, Ints, undirected
from graft.data.schema import Schema
from graft.data.tables.node_table import NodeTable

DIFFERENT_SHARE = 0.1  # of a class, between two clients, that is worth a word
DIFFERENT_RATIO = 3.0
FAR_OUT = 10.0  # standard deviations from the mean
ENOUGH_VALUES = 100


@dataclass(frozen=True)
class Survey:
    """One client's row."""

    nodes: int
    edges: int  # different ones, whatever their direction
    isolated: int
    duplicates: int
    self_loops: int
    labelled: int
    class_counts: dict[str, int]
    homophily: float | None  # share of edges between nodes of the same class, of those with two labels
    missing_cells: int


def survey(source: Source) -> Survey:
    """Returns the numbers of a client."""
    edges = undirected(source.edges) if isinstance(source, Graph) else _different_pairs(source)
    degree = np.bincount(edges.ravel(), minlength=source.nodes)
    ends = source.y[edges]
    both = (ends >= 0).all(axis=0)
    same = ends[0, both] == ends[1, both]
    labels = source.y[source.y >= 0]
    names = own_classes(source)
    counts = np.bincount(labels, minlength=len(names)).tolist()
    table = source if isinstance(source, NodeTable) else None
    return Survey(
        source.nodes,
        edges.shape[1],
        int((degree == 0).sum()),
        0 if table is None else table.duplicate_edges,
        0 if table is None else table.self_loops,
        len(labels),
        dict(zip(names, counts, strict=True)),
        float(same.mean()) if len(same) else None,
        0 if table is None else table.missing_cells,
    )


def _different_pairs(table: NodeTable) -> Ints:
    low, high = table.edges.min(axis=0), table.edges.max(axis=0)
    keys = np.unique(low * table.nodes + high)
    return np.stack([keys // table.nodes, keys % table.nodes])


def class_remarks(sources: Sequence[Source], names: Sequence[str]) -> list[str]:
    """Returns sentences about classes that clients lack, and about shares that differ much."""
    agreed, labels = agree_on_classes(sources)
    classes = agreed or tuple(map(str, range(max((int(y.max()) for y in labels if len(y)), default=-1) + 1)))
    counts = np.array([np.bincount(y[y >= 0], minlength=len(classes)) for y in labels], np.float64)
    remarks = []
    for name, row in zip(names, counts, strict=True):
        lacking = [classes[label] for label in np.flatnonzero(row == 0)]
        if not row.sum():
            remarks.append(f"{name} has no label")
        elif lacking:
            remarks.append(f"{name} has no node of class {', '.join(lacking)}")
    labelled = counts.sum(axis=1) > 0
    if labelled.sum() > 1:
        shares = counts[labelled] / counts[labelled].sum(axis=1, keepdims=True)
        remarks += _share_remarks(shares, [name for name, keep in zip(names, labelled, strict=True) if keep], classes)
    return remarks


def _share_remarks(shares: np.ndarray, names: Sequence[str], classes: Sequence[str]) -> list[str]:
    remarks = []
    for label, column in enumerate(shares.T):
        low, high = int(column.argmin()), int(column.argmax())
        if not column[low]:
            continue  # said already
        far = column[high] - column[low] > DIFFERENT_SHARE or column[high] > DIFFERENT_RATIO * column[low] > 0
        if far and (len(classes) > 2 or column.mean() <= 0.5):  # of two classes the rarer says it all
            remarks.append(
                f"class {classes[label]} is {column[high]:.1%} of the labelled nodes of {names[high]}, but "
                f"{column[low]:.1%} of {names[low]}"
            )
    return remarks


def skewed_columns(table: NodeTable) -> list[str]:
    """Returns the columns whose largest value is so far out that few others count after scaling."""
    skewed = []
    for name, column in table.columns.items():
        if column.kind != "number" or column.numbers is None or name in table.schema.log:
            continue
        numbers = column.numbers[~np.isnan(column.numbers)]
        if len(numbers) >= ENOUGH_VALUES and np.abs(numbers - numbers.mean()).max() > FAR_OUT * numbers.std() > 0:
            skewed.append(name)
    return skewed


def schema_sentence(table: NodeTable) -> str:
    """Returns in one line what the columns of a client's tables were taken for."""
    schema = table.schema
    roles = [f"id {schema.id}", f"label {schema.label or 'none'}", f"edges from {schema.source} to {schema.target}"]
    roles += [f"weight {schema.edge_weight}"] if schema.edge_weight else []
    groups = (("numbers", schema.numeric), ("categories", schema.categorical), ("dates", schema.date))
    features = [f"{kind} {', '.join(names)}" for kind, names in groups if names]
    return f"{table.name}: {', '.join(roles)}; {'; '.join(features) or 'no feature'}"


def common_schema(tables: Sequence[NodeTable]) -> Schema:
    """Returns one schema that fits all tables: names of the first, and what others call them under rename."""
    first = tables[0].schema
    rename = dict(first.rename)
    for other in (table.schema for table in tables[1:]):
        for key in ("id", "label", "split", "source", "target", "edge_weight"):
            old, new = getattr(other, key), getattr(first, key)
            if None not in (old, new) and old != new:
                rename[old] = new
    kinds: dict[str, set[str]] = {}
    for table in tables:
        for name, column in table.columns.items():
            kinds.setdefault(name, set()).add(column.kind)
    agreed = {name: agreed_kind(seen) for name, seen in kinds.items()}
    groups = {kind: tuple(name for name in agreed if agreed[name] == kind) for kind in ("number", "category", "date")}
    texts = tuple(name for name, seen in kinds.items() if seen <= {"text", "empty"} and name not in first.ignore)
    forms = [table.schema.date_formats for table in tables]
    return replace(
        first,
        label=next((table.schema.label for table in tables if table.schema.label), None),
        rename=rename,
        numeric=groups["number"],
        categorical=groups["category"],
        date=groups["date"],
        ignore=(*first.ignore, *texts),
        date_formats=forms[0] if all(form == forms[0] for form in forms) else {},
    )
