"""From what clients hold to graphs with the same features and classes, and the same again for new data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import issparse

from graft.data import preparation_file
from graft.data.agreement import agree
from graft.data.class_agreement import Source as Source
from graft.data.class_agreement import agree_on_classes, check_features, find_positive, other_features, own_classes
from graft.data.class_agreement import check_labels as check_labels
from graft.data.encoding import Encoding
from graft.data.exchange import Exchange, as_bytes
from graft.data.graphs import Bools, Graph, Ints, make_graph
from graft.data.npz import read_npz
from graft.data.scaling import Scaling, multiplied, standard
from graft.data.schema import ClientFiles, Schema
from graft.data.tables import NodeTable, TableError, read_table
from graft.data.tables.classes import class_spelling
from graft.errors import InputError

SCALINGS = ("local", "federated")
FEATURES = ("auto", "raw", "row", "l2", "standard")


@dataclass(frozen=True, eq=False)
class Encoded:
    """The graphs of all clients with the same features and classes, not scaled yet."""

    graphs: list[Graph]
    encodings: list[Encoding | None]  # None: the client's graph came with features
    exchange: Exchange
    class_names: tuple[str, ...] | None
    positive: str | None = None  # the class of interest, if there is one
    notes: list[str] = field(default_factory=list)  # what a person should know of each table
    agreement_notes: list[str] = field(default_factory=list)  # and of columns that were left out everywhere


@dataclass(frozen=True, eq=False)
class Scaled:
    """The graphs of all clients, scaled, and how."""

    graphs: list[Graph]
    scalings: list[Scaling]
    exchange: Exchange


def load_source(source: str | Path | ClientFiles, schema: Schema | None = None, name: str | None = None) -> Source:
    """Returns what a client holds: a table for a folder or a pair of tables, a graph for a .npz file."""
    files = source if isinstance(source, ClientFiles) else ClientFiles(path=Path(source))
    if files.path is not None and files.path.is_file():
        graph = read_npz(files.path)
        return graph if name is None else replace(graph, name=name)
    if files.path is not None and not files.path.exists():
        raise InputError(f"There is no file or folder {files.path}.")
    default = (files.path or files.nodes_file or Path("table")).resolve()
    return read_table(files, schema, name or (default.name if default.is_dir() else default.parent.name))


def load_sources(clients: Mapping[str, str | Path | ClientFiles], schema: Schema | None = None) -> list[Source]:
    """Returns what all clients hold; what is wrong with their tables is raised in one error."""
    sources, problems, count = [], [], 0
    for name, files in clients.items():
        try:
            sources.append(load_source(files, schema, name))
        except TableError as error:
            problems += error.problems
            count += error.count
    if count:
        raise TableError(problems, count)
    return sources


def encode(sources: Sequence[Source], names: Sequence[str], scaling: str = "local") -> Encoded:
    """Returns the graphs of all clients with the same features, classes and names.

    Of several tables, clients tell each other what the exchange says; a single table is shared out among simulated
    clients later, and its categories are known to all of them.
    """
    if scaling not in SCALINGS:
        raise InputError(f"There is no scaling '{scaling}'; choose one of {', '.join(SCALINGS)}.")
    tables = {name: source for name, source in zip(names, sources, strict=True) if isinstance(source, NodeTable)}
    encodings: dict[str, Encoding] = {}
    exchange, agreement_notes = Exchange(), list[str]()
    if tables:
        agreement = agree(list(tables.values()), list(tables), scaling)
        encodings = dict(zip(tables, agreement.encodings, strict=True))
        exchange, agreement_notes = _everyone(agreement.exchange, names, list(tables)), agreement.notes
    class_names, labels = agree_on_classes(sources)
    if len(sources) > 1:
        exchange += _class_exchange(sources, class_names)
    feature_names = next(iter(encodings.values())).feature_names if encodings else None
    check_features(sources, names, feature_names)
    graphs = [
        _table_graph(source, encodings[name], y, class_names)
        if isinstance(source, NodeTable)
        else replace(source, y=y, classes=_class_count(class_names, sources), class_names=class_names)
        for source, name, y in zip(sources, names, labels, strict=True)
    ]
    if feature_names is not None:
        graphs = [replace(graph, feature_names=feature_names) for graph in graphs]
    positive = find_positive((table.schema.positive for table in tables.values()), class_names)
    notes = [note for table in tables.values() for note in table.notes]
    by_client = [encodings.get(name) for name in names]
    return Encoded(graphs, by_client, exchange, class_names, positive, notes, agreement_notes)


def _everyone(exchange: Exchange, names: Sequence[str], tables: Sequence[str]) -> Exchange:
    """Returns the exchange of the clients that have tables as one of all clients."""
    if not exchange.up:
        return exchange
    up, down = (dict(zip(tables, messages, strict=True)) for messages in (exchange.up, exchange.down))
    return Exchange(
        tuple(up.get(name, {}) for name in names), tuple(down.get(name, {}) for name in names), exchange.reveals
    )


def _class_exchange(sources: Sequence[Source], class_names: tuple[str, ...] | None) -> Exchange:
    up = tuple({"classes": as_bytes(own_classes(source))} for source in sources)
    agreed = class_names or [str(label) for label in range(_class_count(None, sources))]
    return Exchange(up, ({"classes": as_bytes(agreed)},) * len(sources), {"classes": "names of the classes that occur"})


def _class_count(class_names: tuple[str, ...] | None, sources: Sequence[Source]) -> int:
    if class_names is not None:
        return len(class_names)
    return max((source.classes for source in sources if isinstance(source, Graph)), default=1)


def _table_graph(table: NodeTable, encoding: Encoding, y: Ints, class_names: tuple[str, ...] | None) -> Graph:
    x, _ = encoding.encode(table)
    return _graph(table, x, y, encoding.feature_names, class_names)


def _graph(
    table: NodeTable, x: Any, y: Ints, feature_names: tuple[str, ...], class_names: tuple[str, ...] | None
) -> Graph:
    return make_graph(
        table.name,
        x,
        table.edges,
        y,
        len(class_names) if class_names else None,
        table.masks,
        ids=table.ids.to_numpy().astype(np.str_),
        feature_names=feature_names,
        class_names=class_names or None,
        node_times=table.node_times,
        weights=table.weights,
        edge_times=table.edge_times,
    )


def scale(
    graphs: Sequence[Graph],
    names: Sequence[str],  # noqa: ARG001
    encodings: Sequence[Encoding | None] | None,
    features: str = "auto",
    scaling: str = "local",
    fitted_on: Sequence[Bools] | None = None,
    norm: float = 0.0,
) -> Scaled:
    """Returns the graphs with scaled features: of tables the numbers alone, of other graphs all.

    One encoding may stand for all graphs, where these were cut out of one table. Moments are those of all nodes, or of
    those that `fitted_on` marks in each graph. With a norm, each client multiplies all its features by one number of
    its own, so that this is the median length of its rows.
    """
    encoding = next((entry for entry in encodings or () if entry is not None), None)
    features = resolve_features(features, encodings)
    if features != "standard":
        plain = Scaling(features)
        alike = Scaled([_scaled(graph, plain, None) for graph in graphs], [plain] * len(graphs), Exchange())
        return with_norm(alike, norm, fitted_on)
    columns = None if encoding is None else encoding.numeric
    missing = [None if encoding is None else missing_cells(graph, encoding) for graph in graphs]
    scalings, exchange = standard([graph.x for graph in graphs], columns, missing, scaling == "federated", fitted_on)
    scaled = [_scaled(*parts) for parts in zip(graphs, scalings, missing, strict=True)]
    return with_norm(Scaled(scaled, scalings, exchange), norm, fitted_on)


def with_norm(scaled: Scaled, norm: float, fitted_on: Sequence[Bools] | None = None) -> Scaled:
    """Returns the graphs with rows of features of a norm; 0 leaves them as they are."""
    if not norm:
        return scaled
    counted = [graph.x for graph in scaled.graphs]
    if fitted_on is not None:
        counted = [x[rows] for x, rows in zip(counted, fitted_on, strict=True)]
    scalings = [scaling.to_norm(norm, x) for scaling, x in zip(scaled.scalings, counted, strict=True)]
    graphs = [
        replace(graph, x=multiplied(graph.x, scaling.factor))
        for graph, scaling in zip(scaled.graphs, scalings, strict=True)
    ]
    return Scaled(graphs, scalings, scaled.exchange)


def resolve_features(features: str, encodings: Sequence[Encoding | None] | None) -> str:
    """Returns what auto means: standard for what came from tables, raw otherwise."""
    if features not in FEATURES:
        raise InputError(f"There is no feature normalisation '{features}'; choose one of {', '.join(FEATURES)}.")
    if features != "auto":
        return features
    return "standard" if any(encoding is not None for encoding in encodings or ()) else "raw"


def missing_cells(graph: Graph, encoding: Encoding) -> Bools | None:
    """Returns which of the numeric features are missing, by the features that say so."""
    if (encoding.indicators < 0).all():
        return None
    missing = np.zeros((graph.nodes, len(encoding.indicators)), bool)
    for column, indicator in enumerate(encoding.indicators):
        if indicator >= 0:
            cells = graph.x[:, [indicator]]
            missing[:, column] = (cells.toarray() if issparse(cells) else cells)[:, 0] > 0
    return missing


def _scaled(graph: Graph, scaling: Scaling, missing: Bools | None) -> Graph:
    return replace(graph, x=scaling.apply(graph.x, missing))


@dataclass(frozen=True, eq=False)
class Preparation:
    """All that was done to a client's data, to be done again with new data."""

    encoding: Encoding | None
    scaling: Scaling | None
    features: int
    feature_names: tuple[str, ...] | None
    classes: int
    class_names: tuple[str, ...] | None
    positive: str | None = None

    @property
    def schema(self) -> Schema | None:
        """Returns what the columns of new tables mean, which need no more than the features; None without tables."""
        return None if self.encoding is None else self.encoding.schema_of_new_tables

    @property
    def positive_class(self) -> int | None:
        """Returns the number of the class of interest, if there is one."""
        return None if self.positive is None else (self.class_names or ()).index(self.positive)

    def apply(self, source: Source) -> Graph:
        """Returns new data with the features of the old: unknown categories count as other, labels may be missing."""
        graph, missing = self._encoded(source)
        if self.scaling is None:
            return graph
        return _scaled(graph, self.scaling, missing)

    def _encoded(self, source: Source) -> tuple[Graph, Bools | None]:
        if isinstance(source, NodeTable):
            if self.encoding is None:
                raise InputError(
                    f"'{source.name}' is a table, but the model was trained on a graph with {self.features} features: "
                    f"give a .npz file or a PyG Data."
                )
            x, missing = self.encoding.encode(source)
            return _graph(source, x, self._labels(source), self.encoding.feature_names, self.class_names), missing
        if source.features != self.features:
            raise InputError(f"'{source.name}' has {source.features} features, but the model takes {self.features}.")
        if source.feature_names is not None and self.feature_names not in (None, source.feature_names):
            raise InputError(other_features(source.name, source.feature_names, "before", self.feature_names or ()))
        graph = replace(
            source,
            y=self._labels(source),
            classes=self.classes,
            feature_names=self.feature_names,
            class_names=self.class_names,
        )
        return graph, None if self.encoding is None else missing_cells(graph, self.encoding)

    def _labels(self, source: Source) -> Ints:
        """Returns the labels of new data as the numbers of the old classes."""
        if self.class_names is None:
            if isinstance(source, Graph) and len(source.y) and source.y.max() >= self.classes:
                raise InputError(f"'{source.name}' has label {source.y.max()}, but labels are 0 to {self.classes - 1}.")
            return source.y
        position = {name.casefold(): index for index, name in enumerate(self.class_names)}
        occurring = np.unique(source.y[source.y >= 0])
        own = list(class_spelling(own_classes(source)).values())
        unknown = [own[label] for label in occurring if own[label].casefold() not in position]
        if unknown:
            raise InputError(
                f"'{source.name}' has the label '{unknown[0]}', but the classes are {', '.join(self.class_names)}: "
                f"correct it, or leave it empty."
            )
        return np.array([*(position.get(name.casefold(), -1) for name in own), -1], np.int64)[source.y]

    def to_json(self) -> dict[str, Any]:
        """Returns all of it as JSON can hold it."""
        return {
            "format": 1,
            "encoding": None if self.encoding is None else self.encoding.to_json(),
            "scaling": None if self.scaling is None else self.scaling.to_json(),
            "features": self.features,
            "feature_names": None if self.feature_names is None else list(self.feature_names),
            "classes": self.classes,
            "class_names": None if self.class_names is None else list(self.class_names),
            "positive": self.positive,
        }

    @classmethod
    def from_json(cls, content: Any) -> Preparation:
        """Returns what `to_json` gave; anything else is refused with one sentence."""
        parsed = preparation_file.parse(content)
        encoding = preparation_file.to_encoding(parsed)
        return cls(
            encoding,
            preparation_file.to_scaling(parsed, encoding),
            parsed.features,
            None if parsed.feature_names is None else tuple(parsed.feature_names),
            parsed.classes,
            None if parsed.class_names is None else tuple(parsed.class_names),
            parsed.positive,
        )


def preparations(encoded: Encoded, scaled: Scaled) -> list[Preparation]:
    """Returns every client's preparation; one encoding may stand for all clients."""
    encodings = encoded.encodings * (len(scaled.graphs) if len(encoded.encodings) == 1 else 1)
    return [
        Preparation(
            encoding,
            scaling,
            graph.features,
            graph.feature_names,
            graph.classes,
            encoded.class_names,
            encoded.positive,
        )
        for graph, scaling, encoding in zip(scaled.graphs, scaled.scalings, encodings, strict=True)
    ]
