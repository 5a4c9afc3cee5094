"""Which file of a folder is the table of nodes, and which that of edges."""

from __future__ import annotations

from pathlib import Path

from graft.data.schema import ClientFiles, Schema, canonical
from graft.data.tables.inference import SAMPLE, edge_end, ends_by_values, id_column
from graft.data.tables.problems import Problems
from graft.data.tables.sheets import SUFFIXES, Sheet, is_table, read_sheet
from graft.data.tables.usual_names import EDGE_FILES, NODE_FILES, SOURCE_NAMES, TARGET_NAMES
from graft.errors import InputError


def read_sheets(files: ClientFiles, schema: Schema, problems: Problems) -> tuple[Sheet | None, Sheet | None]:
    """Returns the table of nodes and the table of edges; None for one that cannot be read."""
    nodes, edges = files.nodes_file, files.edges_file
    if nodes is None or edges is None:
        tables = _tables(files)
        nodes, edges = _named(tables, schema.nodes, NODE_FILES), _named(tables, schema.edges, EDGE_FILES)
        if len(tables) == 2 and (nodes is None) != (edges is None):
            nodes = nodes or next(path for path in tables if path != edges)
            edges = edges or next(path for path in tables if path != nodes)
        if len(tables) == 2 and nodes is None:
            return _told_apart(tables, schema, problems)
        if nodes is None or edges is None or nodes == edges:
            raise _no_tables(files, tables, schema, nodes, edges)
    return read_sheet(nodes, schema, problems), read_sheet(edges, schema, problems)


def _tables(files: ClientFiles) -> list[Path]:
    folder = files.path
    try:
        if folder is not None and folder.is_dir():
            return sorted(path for path in folder.iterdir() if path.is_file() and is_table(path))
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror or error}.") from error
    raise InputError(f"{files} is not a folder with a table of nodes and a table of edges.")


def _named(tables: list[Path], declared: str | None, usual: tuple[str, ...]) -> Path | None:
    """Returns the table of the declared name, or else of the first usual one."""
    if declared is not None:
        return next((path for path in tables if path.name == declared), None)
    stems = {canonical(path.name.partition(".")[0]): path for path in reversed(tables)}
    return next((stems[stem] for stem in usual if stem in stems), None)


def _no_tables(
    files: ClientFiles, tables: list[Path], schema: Schema, nodes: Path | None, edges: Path | None
) -> InputError:
    wanted = ((schema.nodes or "nodes.csv", nodes), (schema.edges or "edges.csv", edges))
    lacking = " and no ".join(name for name, path in wanted if path is None) or "second table"
    has = f"its tables are {', '.join(path.name for path in tables)}" if tables else "it has no table"
    return InputError(
        f"The folder {files.path} has no {lacking}: a dataset needs a table of nodes and one of edges "
        f'({", ".join(SUFFIXES)}), but {has}; name them, as nodes = "accounts.csv" in the schema.'
    )


def _told_apart(tables: list[Path], schema: Schema, problems: Problems) -> tuple[Sheet | None, Sheet | None]:
    """Returns two tables, the nodes first: the edges' ends are ids of the nodes."""
    first, second = (read_sheet(path, schema, problems) for path in tables)
    if first is None or second is None:
        return first, second
    overlaps = [(_share_of_known_ends(*pair, schema), pair) for pair in ((first, second), (second, first))]
    (share, pair), (other, _) = sorted(overlaps, key=lambda overlap: -overlap[0])
    if share == other:
        raise InputError(
            f"Which of {tables[0]} and {tables[1]} holds the nodes cannot be told from their names or values; name "
            f'them, as nodes = "{tables[0].name}" in the schema.'
        )
    return pair


def _share_of_known_ends(nodes: Sheet, edges: Sheet, schema: Schema) -> float:
    """Returns which share of the ends of edges are ids of nodes, if one table were the nodes and the other the
    edges."""
    source, target = schema.source or edge_end(edges, SOURCE_NAMES), schema.target or edge_end(edges, TARGET_NAMES)
    ends = [name for name in (source, target) if name in edges.columns]
    id_ = schema.id if schema.id in nodes.columns else id_column(nodes, edges, ends)
    if id_ is None:
        return 0.0
    if source is None or target is None:
        source, target = ends_by_values(nodes, edges, id_, source, target)
    if source not in edges.columns or target not in edges.columns:
        return 0.0
    ids = nodes[id_].drop_nulls().unique().implode()
    values = [edges[name].head(SAMPLE).drop_nulls() for name in (source, target)]
    shares = [int(column.is_in(ids).sum()) / len(column) for column in values if len(column)]
    return min(shares, default=0.0) + 1e-3  # that both ends exist counts for something, even with wrong values
