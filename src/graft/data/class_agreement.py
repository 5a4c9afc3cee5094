"""Whether what clients hold fits together: the classes of all of them, and the same features."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from graft.data.graphs import Graph, Ints
from graft.data.tables.classes import class_spelling, sort_classes
from graft.data.tables.node_table import NodeTable
from graft.errors import InputError

Source: TypeAlias = Graph | NodeTable  # what a client holds


def own_classes(source: Source) -> tuple[str, ...]:
    """Returns the names of a client's classes; of a graph without names, the numbers."""
    return source.class_names or tuple(map(str, range(source.classes if isinstance(source, Graph) else 0)))


def agree_on_classes(sources: Sequence[Source]) -> tuple[tuple[str, ...] | None, list[Ints]]:
    """Returns the classes of all clients together, sorted, and every client's labels in them; None for numbers that
    nobody named, and where there is no label."""
    if all(isinstance(source, Graph) and source.class_names is None for source in sources):
        return None, [source.y for source in sources]
    spelling: dict[str, str] = {}
    for name in sorted({name for source in sources for name in class_spelling(own_classes(source)).values()}):
        spelling[name.casefold()] = name  # Yes and yes are one class, and the latter is its name
    names = sort_classes(spelling.values())
    position = {name.casefold(): index for index, name in enumerate(names)}
    labels = []
    for source in sources:
        own = [position[name.casefold()] for name in class_spelling(own_classes(source)).values()]
        labels.append(np.array([*own, -1], np.int64)[source.y])
    return names or None, labels


def find_positive(declared: Iterable[str | None], class_names: tuple[str, ...] | None) -> str | None:
    """Returns the class of interest as the classes spell it."""
    wanted = next((positive for positive in declared if positive is not None), None)
    if wanted is None:
        return None
    spelled = class_spelling([wanted])[wanted].casefold()
    for name in class_names or ():
        if name.casefold() == spelled:
            return name
    raise InputError(
        f"The positive class '{wanted}' does not occur; the classes are {', '.join(class_names or ('none',))}."
    )


def check_labels(graphs: Sequence[Graph], names: Sequence[str]) -> None:
    """Refuses graphs whose nodes have no label at all, or all the same."""
    labels = np.unique(np.concatenate([np.unique(graph.y[graph.y >= 0]) for graph in graphs]))
    if len(labels) > 1:
        return
    whose = f"'{names[0]}' has" if len(graphs) == 1 else f"{', '.join(names)} have"
    if not len(labels):
        raise InputError(
            f"{whose} no label at all: a table needs a column of classes (named by label = ... in the schema), any "
            f"other graph y."
        )
    class_names = graphs[0].class_names
    only = class_names[labels[0]] if class_names else labels[0]
    raise InputError(f"{whose} a single class, '{only}': there is nothing to learn; at least two are needed.")


def check_features(sources: Sequence[Source], names: Sequence[str], feature_names: tuple[str, ...] | None) -> None:
    """Refuses graphs whose features are not those of the other clients, with client and feature."""
    first = next(
        (name for name, source in zip(names, sources, strict=True) if _names_of(source, feature_names)), names[0]
    )
    expected = next(filter(None, (_names_of(source, feature_names) for source in sources)), None)
    widths = [len(feature_names or ()) if isinstance(source, NodeTable) else source.features for source in sources]
    for name, source, width in zip(names, sources, widths, strict=True):
        own = _names_of(source, feature_names)
        if own is not None and expected is not None and own != expected:
            raise InputError(other_features(name, own, first, expected))
        if width != widths[0]:
            raise InputError(
                f"Client {name} has {width} features, but client {names[0]} has {widths[0]}: all clients need the same."
            )


def _names_of(source: Source, of_tables: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return of_tables if isinstance(source, NodeTable) else source.feature_names


def other_features(name: str, own: tuple[str, ...], first: str, expected: tuple[str, ...]) -> str:
    """Returns the sentence about features that are not those of another client."""
    lacking, extra = [text for text in expected if text not in own], [text for text in own if text not in expected]
    if lacking:
        return f"Client {name} has no feature '{lacking[0]}', which client {first} has ({len(lacking)} are lacking)."
    if extra:
        return f"Client {name} has a feature '{extra[0]}', which client {first} has not ({len(extra)} are too many)."
    position = next(index for index, (mine, other) in enumerate(zip(own, expected, strict=False)) if mine != other)
    return f"Feature {position} of client {name} is '{own[position]}', but of client {first} '{expected[position]}'."
