"""`graft partition`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from graft.cli.console import out_console, safe, say
from graft.data import check_partition, is_one_graph, parse_dataset
from graft.errors import InputError
from graft.options import split_options


def partition(
    dataset: Annotated[str, typer.Argument(help="A name, a .npz file, or a folder with nodes.csv and edges.csv.")],
    clients: Annotated[int, typer.Option(help="How many clients share the graph.")] = 5,
    by: Annotated[str, typer.Option(help="louvain, metis, random, label-skew, or a file of client ids.")] = "louvain",
    seed: Annotated[int, typer.Option(help="Seed of the partition.")] = 0,
    out: Annotated[Optional[Path], typer.Option(help="Where to save it; partitions/... if not given.")] = None,  # noqa: UP045
) -> None:
    """Share a graph out among clients, show what each would hold, and save it for `graft run --partition FILE`."""
    parse_dataset(dataset)
    name, settings = split_options(by)
    check_partition(name)
    from graft.data import cards, partitions
    from graft.data.preparation import encode
    from graft.data.sources import open_data

    if not is_one_graph(dataset):
        raise InputError(f"In {dataset} every client brings its own graph: nothing is shared out.")
    data: Any = open_data(dataset)
    (graph,) = encode([data], [data.name]).graphs
    membership, names = partitions.assign(graph, clients, name, seed, **settings)
    card = cards.card(graph, membership, name, seed, settings, names)
    destination = out or Path("partitions") / f"{graph.name}-{Path(name).stem}-{clients}-{seed}.json"
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        cards.save(card, membership, destination)
    except OSError as error:
        raise InputError(f"{destination} cannot be written: {error.strerror}.") from error
    out_console.print(card_table(safe(card)))
    say(f"{card['edges']['lost']} of {card['edges']['total']} edges run between clients and are lost.")
    say(f"Saved as {destination}, content hash {card['hash'][:16]}.")


def card_table(card: dict[str, Any]) -> Any:
    """Returns what each client would hold."""
    from rich.table import Table

    table = Table(title=f"{card['dataset']}: {card['clients']} clients by {card['method']}", title_justify="left")
    for name in ("client", "nodes", "edges", "components", "isolated", "homophily", "labels"):
        table.add_column(name, justify="left" if name == "labels" else "right")
    for row in card["per_client"]:
        homophily = "-" if row["homophily"] is None else f"{row['homophily']:.2f}"
        labels = " ".join(map(str, row["labels"])) + (f" (+{row['unlabelled']} without)" if row["unlabelled"] else "")
        counts = (row["client"], row["nodes"], row["edges"], row["components"], row["isolated"])
        table.add_row(*map(str, counts), homophily, labels)
    return table
