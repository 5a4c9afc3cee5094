"""What columns mean where nobody said it: by their names, and failing that by their values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches

import polars as pl

from graft.data.schema import Schema, canonical
from graft.data.tables.problems import Problems
from graft.data.tables.sheets import Sheet
from graft.data.tables.usual_names import FILLERS, ID_NAMES, LABEL_NAMES, SOURCE_NAMES, TARGET_NAMES, WEIGHT_NAMES
from graft.registry import close_to

SHARE_OF_IDS = 0.5  # of the values of a column that are ids, for it to be an end of edges
MISSPELT = 0.8  # similarity of names from which on a missing label is a typing error
SAMPLE = 100_000  # rows of edges that are looked at


def resolve(schema: Schema, nodes: Sheet, edges: Sheet, problems: Problems, notes: list[str]) -> Schema | None:
    """Returns the schema with id, label, split, source and target filled in; None, and problems, where that fails."""
    before = problems.count
    _check_declared(schema, nodes, edges, problems)
    if problems.count > before:
        return None
    source, target = schema.source or edge_end(edges, SOURCE_NAMES), schema.target or edge_end(edges, TARGET_NAMES)
    ends = [column for column in (source, target) if column]
    id_ = schema.id or id_column(nodes, edges, ends)
    if id_ is None:
        problems.add(
            nodes.path,
            f"the header lacks id, and no column has another value in every row (columns: {_listed(nodes.columns)})",
            'name the column that identifies nodes, as id = "account_id" in the schema',
            1,
        )
    elif source is None or target is None:
        source, target = ends_by_values(nodes, edges, id_, source, target)
        if _is_headerless(nodes[id_], edges):
            problems.add(edges.path, "the first line holds ids rather than names", "begin with source and target", 1)
            return None
    missing_ends = [name for name, end in (("source", source), ("target", target)) if end is None]
    if missing_ends:
        problems.add(
            edges.path,
            f"the header lacks {' and '.join(missing_ends)} (columns: {_listed(edges.columns)})",
            'name them, as source = "from_account" in [schema.edges]',
            1,
        )
    if problems.count > before:
        return None
    label = schema.label if schema.label is not None else _by_name(nodes, LABEL_NAMES, taken={id_})
    if label is not None and label not in nodes.columns:
        notes.append(f"{nodes.path} has no column '{label}': its nodes count as unlabelled")
    elif label is None:
        notes.append(f"{nodes.path}: no column was taken for the label; declare one, as label = ... in the schema")
    split = schema.split or ("split" if "split" in nodes.columns and not _has_meaning(schema, "split") else None)
    weight = schema.edge_weight or _by_name(edges, WEIGHT_NAMES, taken={source, target})
    unused = [name for name in edges.columns if name not in (source, target, weight, schema.edge_time)]
    if unused:
        notes.append(f"{edges.path}: {_listed(unused)} not used; [schema.edges] can name a weight and a time")
    return replace(schema, id=id_, label=label, split=split, source=source, target=target, edge_weight=weight)


def _is_headerless(ids: pl.Series, edges: Sheet) -> bool:
    """Returns whether two names of columns are ids, so that the first edge was taken for a header."""
    names = pl.Series(edges.columns, dtype=pl.String)
    return int(names.is_in(ids.str.to_lowercase().implode()).sum()) >= 2


def _has_meaning(schema: Schema, column: str) -> bool:
    return schema.kind_of(column) is not None or column in (schema.id, schema.label, schema.time)


def _listed(columns: Iterable[str]) -> str:
    names = list(columns)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _check_declared(schema: Schema, nodes: Sheet, edges: Sheet, problems: Problems) -> None:
    """Lists columns of the schema that a table lacks; a label may be lacking, if no other column looks like it."""
    of_nodes = {"id": schema.id, "split": schema.split, "time": schema.time}
    of_edges = {
        "source": schema.source,
        "target": schema.target,
        "time": schema.edge_time,
        "weight": schema.edge_weight,
    }
    declared = [(nodes, key, name) for key, name in of_nodes.items()]
    declared += [(edges, key, name) for key, name in of_edges.items()]
    for kind in ("numeric", "log", "categorical", "date"):
        named = [name for name in getattr(schema, kind) if kind != "log" or name not in schema.numeric]
        declared += [(nodes, kind, name) for name in named]
    for sheet, key, name in declared:
        if name is not None and name not in sheet.columns:
            problems.add(
                sheet.path,
                f"there is no column '{name}'{close_to(name, sheet.columns)}, which the schema names as {key}",
                f"the columns are {_listed(sheet.columns)}",
                1,
            )
    label = schema.label
    misspelt = get_close_matches(label or "", nodes.columns, n=1, cutoff=MISSPELT)
    if label is not None and label not in nodes.columns and misspelt:
        problems.add(
            nodes.path,
            f"there is no column '{label}', the label (did you mean '{misspelt[0]}'?)",
            "rename the column, or correct the schema",
            1,
        )


def _by_name(sheet: Sheet, names: Iterable[str], taken: set[str | None]) -> str | None:
    return next((name for name in names if name in sheet.columns and name not in taken), None)


def edge_end(edges: Sheet, names: tuple[str, ...]) -> str | None:
    """Returns the column of edges with one of the usual names, with or without a word such as account in it."""
    exact = _by_name(edges, names, taken=set())
    if exact is not None:
        return exact
    for column in edges.columns:
        words = [word for word in column.split("_") if word not in FILLERS]
        if "_".join(words) in names and words:
            return column
    return None


def id_column(nodes: Sheet, edges: Sheet, ends: list[str]) -> str | None:
    """Returns the column that identifies nodes: one with a usual name, or else one that is unique, best one whose
    values the edges use."""
    stem = canonical(nodes.path.name.partition(".")[0])
    stems = (f"{stem}_id", f"{stem.removesuffix('s')}_id", stem.removesuffix("s"))
    named = [name for name in ("id", *stems, *ID_NAMES) if name in nodes.columns]
    # A column called user may well be a category; one that identifies nodes hardly repeats itself.
    mostly_unique = [name for name in named if 2 * nodes[name].n_unique() > nodes.rows]
    if mostly_unique or "id" in named:
        return mostly_unique[0] if mostly_unique else "id"
    unique = [name for name in nodes.columns if _is_unique(nodes[name])]
    if not unique:
        return None
    used = pl.concat([edges[name].head(SAMPLE) for name in ends or edges.columns]).unique().drop_nulls()
    return max(unique, key=lambda name: used.is_in(nodes[name].implode()).sum()) if len(used) else unique[0]


def _is_unique(values: pl.Series) -> bool:
    return len(values) > 0 and not values.null_count() and values.n_unique() == len(values)


def ends_by_values(
    nodes: Sheet, edges: Sheet, id_: str, source: str | None, target: str | None
) -> tuple[str | None, str | None]:
    """Returns the columns of edges whose values are ids of nodes, in the order of the file."""
    ids = nodes[id_].drop_nulls().unique().implode()
    candidates = []
    for name in edges.columns:
        values = edges[name].head(SAMPLE).drop_nulls()
        if name not in (source, target) and len(values) and values.is_in(ids).sum() >= SHARE_OF_IDS * len(values):
            candidates.append(name)
    ends = iter(candidates)
    source = source or next(ends, None)
    return source, target or next(ends, None)
