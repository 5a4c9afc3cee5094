"""`graft check`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from graft.cli.console import complain, out_console, safe, say
from graft.data import is_sharded
from graft.data.data_file import check_names, read_data_file, read_schema
from graft.data.schema import ClientFiles, Schema
from graft.errors import InputError

if TYPE_CHECKING:
    from graft.data.preparation import Source
    from graft.data.survey import Survey

MOST_CLASSES = 4  # whose shares are shown one by one


def check(
    data: Annotated[
        list[str], typer.Argument(help="Folders with tables, .npz files, one data file (.toml), or shards.")
    ],
    schema: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="A TOML file that says what the columns mean, as the table schema of a data file does."),
    ] = None,
) -> None:
    """Say what tables hold, what was inferred of them, and all that is wrong: exit code 2 if anything is."""
    if len(data) == 1 and is_sharded(data[0]):
        check_shards(data[0])
        return
    clients, declared = find_clients(data, schema)
    sources, problems = load_all(clients, declared)
    names = list(sources)
    if sources:
        problems += show_sources(list(sources.values()), names)
    if problems:
        complain("\n".join(problems))
        raise typer.Exit(2)
    say("No problem was found.")


def check_shards(source: str) -> None:
    """Reads all that shards hold, one client at a time, and says what it is; damage is refused."""
    from graft.data.shards import ShardedGraphs

    graphs = ShardedGraphs(source)
    nodes, edges = graphs.nodes(), graphs.edges()
    for client, graph in enumerate(graphs):
        graphs.scoring(client)
        if (graph.nodes, graph.edge_count) != (nodes[client], edges[client]):
            raise InputError(f"Client {client} of {source} has another size than its manifest says.")
    sizes = f"{int(nodes.sum()):,} nodes and {int(edges.sum()):,} edges"
    say(f"{graphs.name}: shards of {len(graphs):,} clients with {sizes}, {graphs.features:,} features.")
    say("No problem was found.")


def find_clients(data: Sequence[str], schema_file: Path | None) -> tuple[dict[str, ClientFiles], Schema | None]:
    """Returns whose data are where, and the schema if one was given."""
    schema = None if schema_file is None else read_schema(schema_file)
    if any(text.endswith(".toml") for text in data):
        if len(data) > 1:
            raise InputError("A data file names all clients: give it alone.")
        content = read_data_file(Path(data[0]))
        single = {} if content.single is None else {Path(data[0]).stem: content.single}
        return content.clients or single, schema or content.schema
    clients: dict[str, ClientFiles] = {}
    for text in data:
        path = Path(text)
        name, given, rest = text.partition("=")
        if given and not path.exists():
            path = Path(rest)
        else:
            resolved = path.resolve()
            name = resolved.name if path.is_dir() else resolved.stem
        if not path.exists():
            raise InputError(f"There is no file or folder {path}.")
        if path.is_file() and path.suffix != ".npz":
            raise InputError(f"{path} cannot be checked: give a folder with two tables, a .npz file or a data file.")
        check_names("The command line", [*clients, name])
        clients[name] = ClientFiles(path=path)
    return clients, schema


def load_all(clients: dict[str, ClientFiles], schema: Schema | None) -> tuple[dict[str, Source], list[str]]:
    """Returns what could be read, and a text about each client whose data could not."""
    from graft.data.preparation import load_source

    sources, problems = {}, []
    for name, files in clients.items():
        try:
            sources[name] = load_source(files, schema, name)
        except InputError as error:
            problems.append(str(error))
    return sources, problems


def show_sources(sources: Sequence[Source], names: Sequence[str]) -> list[str]:
    """Shows the schema, a row a client and how they agree; returns what is wrong."""
    from graft.data.agreement import describe, disagreements
    from graft.data.preparation import check_labels, encode
    from graft.data.survey import class_remarks, common_schema, skewed_columns, survey
    from graft.data.tables import NodeTable

    tables = {name: source for name, source in zip(names, sources, strict=True) if isinstance(source, NodeTable)}
    if tables:
        say("The schema, to be pasted into a data file:\n")
        say(common_schema(list(tables.values())).to_toml())
    show_clients([survey(source) for source in sources], names)
    for note in dict.fromkeys(note for table in tables.values() for note in table.notes):
        say(f"Note: {note}.")
    if tables and not any(table.schema.directed for table in tables.values()):
        say("Note: edges count both ways; directed = true in [schema.edges] adds how many come in and go out.")
    skewed = dict.fromkeys(name for table in tables.values() for name in skewed_columns(table))
    if skewed:
        say(f"Note: {', '.join(skewed)} have values far out; log = {json.dumps(list(skewed))} takes their logarithm.")
    for remark in class_remarks(sources, names):
        say(f"Note: {remark}.")
    differences = disagreements(list(tables.values()), list(tables))
    if differences:
        return [describe(differences)]
    try:
        encoded = encode(sources, names)
        for note in encoded.agreement_notes:
            say(f"Note: {note}.")
        check_labels(encoded.graphs, names)
    except InputError as error:
        return [str(error)]
    return []


def show_clients(surveys: Sequence[Survey], names: Sequence[str]) -> None:
    """Shows a row a client, in a table on a terminal, and the shares of its classes."""
    columns = ("client", "nodes", "edges", "isolated", "twice", "loops", "labelled", "homophily", "missing")
    rows = []
    for name, row in zip(names, surveys, strict=True):
        homophily = "-" if row.homophily is None else f"{row.homophily:.2f}"
        counts = [f"{count:,}" for count in (row.nodes, row.edges, row.isolated, row.duplicates, row.self_loops)]
        rows.append((name, *counts, f"{row.labelled / row.nodes:.1%}", homophily, f"{row.missing_cells:,}"))
    show_table(columns, rows)
    say("(twice: rows that repeat an edge; loops: edges from a node to itself; missing: empty cells of features)")
    for name, row in zip(names, surveys, strict=True):
        say(f"{name}: {class_balance(row)}")


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Shows rows below each other: in a table on a terminal, and as plain lines elsewhere."""
    if not out_console.is_terminal:
        widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
        for first, *rest in (columns, *rows):
            say("  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]))
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=0)
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right", overflow="fold")
    for row in rows:
        table.add_row(*safe(list(row)))
    out_console.print(table)


def class_balance(row: Survey) -> str:
    """Returns the shares of classes in words."""
    shares = {name: count / max(row.labelled, 1) for name, count in row.class_counts.items()}
    if not row.labelled:
        return "no label"
    if len(shares) > MOST_CLASSES:
        return f"{len(shares)} classes, {min(shares.values()):.1%} to {max(shares.values()):.1%}"
    return ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
